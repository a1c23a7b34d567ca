"""The documentation's commands do what they say, page by page, as a user types them one after the other."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from documentation import PAGES, read, typed, variables
from example_folder import Run, quick
from not_run import reason

FOLLOWED = [page for page in PAGES if any(read(line) and not reason(line) for _, line in typed(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: page.name)
def test_every_command_of_a_page_comes_to_its_end(page: Path, run: Run, folder: Path):
    faults = []
    for _, line in typed(page):
        command = read(line)
        if command and not reason(line):
            print(line)
            if command.name == "train" and "resume=" not in line:
                _remove_run(folder, command.arguments)
            done = run(command.name, *quick(command), **variables(line))
            if done.status:
                faults.append(f"{line}\n    {done.err.strip().splitlines()[-1:]}")
    assert not faults, "\n".join(faults)


def _remove_run(folder: Path, arguments: Sequence[str]) -> None:
    """Remove the folder of a run, which is not trained over: a page has several runs of the same name."""
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name == "hydra.run.dir":
            shutil.rmtree(folder / value, ignore_errors=True)
