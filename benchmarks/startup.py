"""Start-up time: `--help`, import of the package, and the caption of a photograph with the command and in Python.

Each runs in a new Python process with a warm disk cache. Times are medians of three runs, or one run for `--help` of
all but the slowest command. The checkpoint has the sizes of `experiment=flickr8k` and random weights, so captions
end after 12 words.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.decoding import draw_photographs
from benchmarks.harness.figures import Figure
from benchmarks.harness.script import Results, main
from benchmarks.harness.timing import seconds_of
from showattendtell.__main__ import COMMANDS
from showattendtell.config.compose import as_settings, compose, training_record
from showattendtell.config.instantiate import build
from showattendtell.loading.checkpoints import build_metadata
from showattendtell.text.vocabulary import SPECIAL, Vocabulary
from showattendtell.training.build import build_module
from showattendtell.types import Dataset

REPEATS = 3
OVERRIDES = ["experiment=flickr8k", "dataset.root=flickr8k"]
WORDS = 10_000
SLOWEST, IMPORT, CAPTION = "--help of the slowest command", "import showattendtell", "caption of a photograph"
LOAD = "load() and the first caption"
GOALS = {SLOWEST: 0.5, IMPORT: 0.1, CAPTION: 2.5, LOAD: 2.5}
CODE = "import showattendtell, sys; showattendtell.load(sys.argv[1], max_length=12)(sys.argv[2])"
BYTECODE = Path(tempfile.gettempdir()) / "showattendtell-bytecode"
"""Bytecode cache, used if the packages were installed without bytecode."""


def write_checkpoint(file: Path) -> None:
    """Write a checkpoint like that of a training run, with optimizer state."""
    config = as_settings(compose("train", OVERRIDES))
    encoder = build(config.encoder)
    vocabulary = Vocabulary([*SPECIAL, *(f"word{number}" for number in range(WORDS - len(SPECIAL)))])
    card = build_metadata(training_record(config), {}, vocabulary, encoder, Dataset("none", {}))
    module = build_module(config, encoder, vocabulary, card)
    moments = [torch.zeros_like(weight) for weight in module.captioner.parameters() for _ in range(2)]
    torch.save({"state_dict": module.state_dict(), "optimizer_states": moments, **card}, file)


def has_bytecode() -> bool:
    """Return whether the packages were installed with bytecode, as by `make setup`."""
    return Path(torch.__file__).with_name("__pycache__").is_dir()


def environment(threads: int) -> dict[str, str]:
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    if not has_bytecode():
        variables.pop("PYTHONDONTWRITEBYTECODE", None)
        variables["PYTHONPYCACHEPREFIX"] = str(BYTECODE)
    return variables


def run_python(folder: Path, variables: dict[str, str], *arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], env=variables, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def measure(options: Namespace) -> Results:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        [photograph] = draw_photographs(folder, 1)
        write_checkpoint(folder / "best.ckpt")
        python = partial(run_python, folder, environment(options.threads))
        caption = ["-m", "showattendtell.caption", "checkpoint=best.ckpt", str(photograph), "decoding.max_length=12"]
        python(*caption)  # warms the disk cache
        commands = {name: partial(python, "-m", f"showattendtell.{name}", "--help") for name in COMMANDS}
        helps = {name: seconds_of(command) for name, command in commands.items()}
        times = {
            SLOWEST: median_of(commands[max(helps, key=lambda name: helps[name])]),
            IMPORT: median_of(partial(python, "-c", "import showattendtell")),
            CAPTION: median_of(partial(python, *caption)),
            LOAD: median_of(partial(python, "-c", CODE, "best.ckpt", str(photograph))),
        }
    times |= {f"{name} --help": seconds for name, seconds in helps.items()}
    figures = [Figure(name, seconds, "s", "lower", goal=GOALS.get(name)) for name, seconds in times.items()]
    notes = [] if has_bytecode() else [f"the packages have no bytecode; it was cached in {BYTECODE}"]
    return Results([], figures, notes)


def median_of(work: Callable[[], None]) -> float:
    return statistics.median(seconds_of(work) for _ in range(REPEATS))


if __name__ == "__main__":
    main(measure, threads=2)
