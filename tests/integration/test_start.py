"""What a command does not wait for before it begins."""

import subprocess
import sys
from pathlib import Path

import pytest
from documentation import ROOT
from runs import held_out

from showattendtell.cli import COMMANDS

REPORT = """
import atexit, runpy, sys
others = {"pytorch_lightning", "torchmetrics", "transformers", "pycocoevalcap", "matplotlib", "scipy", "numba"}
others |= {"pandas", "torch._dynamo", "torch._inductor", "sympy", "wandb"}
loaded = sys.modules.keys()
atexit.register(lambda: print("IMPORTED", sorted(others & loaded), "torch" in loaded, len(loaded)))
"""
RUN = f"""{REPORT}
sys.argv = sys.argv[1:]
runpy.run_module(f"showattendtell.{{sys.argv[0]}}", run_name="__main__", alter_sys=True)
"""
LOAD = f"""{REPORT}
import showattendtell
print(showattendtell.load(max_length=2)(sys.argv[1]).caption)
"""


def run(code: str, *arguments: str, folder: Path) -> tuple[list[str], str, int]:
    """What is printed, and at the end which of the others were imported and how many modules there are."""
    line = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    imported, _, number = last.removeprefix("IMPORTED ").rpartition(" ")
    return lines, imported, int(number)


def test_captioning_imports_nothing_of_training_and_leaves_the_drawing_to_another_process(
    checkpoint: Path, folder: Path, tmp_path: Path
):
    photograph = held_out(folder)[0].path
    settings = [f"checkpoint={checkpoint}", photograph, "decoding.max_length=2", "formats=[png,html]"]
    lines, imported, number = run(RUN, "caption", *settings, folder=tmp_path)
    assert len(lines) == 1
    assert imported == "[] True"
    assert number < 3_000
    assert sorted(file.name for file in (tmp_path / "captions").iterdir()) == ["index.html", Path(photograph).name]


@pytest.mark.slow
def test_a_model_is_loaded_without_what_training_needs(tmp_path: Path):
    lines, imported, number = run(LOAD, str(ROOT / "docs/figures/skater.jpg"), folder=tmp_path)
    assert lines == ["a man"]
    assert imported == "[] True"
    assert number < 2_700


OTHERS = [pytest.param(command, marks=pytest.mark.slow) for command in COMMANDS if command not in ("caption", "train")]


@pytest.mark.parametrize("command", ["caption", "train", *OTHERS])
def test_help_imports_no_torch(command: str, tmp_path: Path):
    _, imported, number = run(RUN, command, "--help", folder=tmp_path)
    assert imported == "[] False"
    assert number < 1_000
