"""How long a user waits: for `--help`, for an import of the package, and for the caption of a photograph, by the
command and in Python.

Each is a Python of its own, on a warm disk: the median of three. The photograph is drawn by code; the checkpoint has
the sizes of the Flickr8k recipe, and weights that nobody trained, so captions are cut at 12 words.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path

import torch
from rich.table import Table

from benchmarks.decoding import draw_photographs
from benchmarks.frame.figures import Figure
from benchmarks.frame.script import Measured, main
from showattendtell.cli import COMMANDS
from showattendtell.config.compose import compose
from showattendtell.config.entry_point import Choices
from showattendtell.config.instantiate import build
from showattendtell.data.vocabulary import SPECIAL, Vocabulary
from showattendtell.inference.checkpoints import build_metadata
from showattendtell.training.trainer import build_module
from showattendtell.types import Dataset

REPEATS = 3
RECIPE = ["experiment=flickr8k_lite0", "dataset.root=flickr8k"]
WORDS = 10_000
SLOWEST, IMPORT, CAPTION = "--help, the slowest command's", "import showattendtell", "caption of a photograph"
LOAD = "load() and the first caption"
CODE = "import showattendtell, sys; showattendtell.load(sys.argv[1], max_length=12)(sys.argv[2])"
BYTECODE = Path(tempfile.gettempdir()) / "showattendtell-bytecode"
"""Where Python keeps what it compiled, if the packages were installed without."""


def write_checkpoint(file: Path) -> None:
    """As training leaves it, with the optimiser's two moments of every weight."""
    config, _ = compose("train", RECIPE)
    del config.hydra
    encoder = build(config.encoder)
    vocabulary = Vocabulary([*SPECIAL, *(f"word{number}" for number in range(WORDS - len(SPECIAL)))])
    card = build_metadata(config, Choices({}, []), vocabulary, encoder, Dataset("none", {}))
    module = build_module(config, encoder, vocabulary, card)
    moments = [torch.zeros_like(weight) for weight in module.captioner.parameters() for _ in range(2)]
    torch.save({"state_dict": module.state_dict(), "optimizer_states": moments, **card}, file)


def has_bytecode() -> bool:
    """Whether the packages were compiled when they were installed, as `make setup` does."""
    return Path(torch.__file__).with_name("__pycache__").is_dir()


def environment(threads: int) -> dict[str, str]:
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    if not has_bytecode():
        variables.pop("PYTHONDONTWRITEBYTECODE", None)
        variables["PYTHONPYCACHEPREFIX"] = str(BYTECODE)
    return variables


class User:
    """Runs Python in a folder and waits for it."""

    def __init__(self, folder: Path, variables: dict[str, str]):
        self._folder, self._variables = folder, variables

    def wait_for(self, *line: str) -> float:
        """The median of some runs, in seconds."""
        return statistics.median(self.run(*line) for _ in range(REPEATS))

    def run(self, *line: str) -> float:
        began = time.perf_counter()
        command = [sys.executable, *line]
        subprocess.run(command, env=self._variables, cwd=self._folder, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began


def measure(options: Namespace) -> Measured:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        photograph, *_ = draw_photographs(folder)
        write_checkpoint(folder / "best.ckpt")
        user = User(folder, environment(options.threads))
        settings = ["checkpoint=best.ckpt", str(photograph), "decoding.max_length=12"]
        user.run("-m", "showattendtell.caption", *settings)  # warms the disk
        helps = {f"{name} --help": user.wait_for("-m", f"showattendtell.{name}", "--help") for name in COMMANDS}
        imported = user.wait_for("-c", "import showattendtell")
        captioned = user.wait_for("-m", "showattendtell.caption", *settings)
        loaded = user.wait_for("-c", CODE, "best.ckpt", str(photograph))
    figures = [
        Figure(SLOWEST, max(helps.values()), "s", "lower", goal=0.5),
        Figure(IMPORT, imported, "s", "lower", goal=0.1),
        Figure(CAPTION, captioned, "s", "lower", goal=2.5),
        Figure(LOAD, loaded, "s", "lower", goal=2.5),
        *(Figure(command, seconds, "s", "lower") for command, seconds in helps.items()),
    ]
    return Measured([make_table({**helps, IMPORT: imported, CAPTION: captioned, LOAD: loaded})], figures, make_notes())


def make_table(waits: dict[str, float]) -> Table:
    table = Table("until it has ended")
    table.add_column("s", justify="right")
    for name, seconds in waits.items():
        table.add_row(name, f"{seconds:.2f}")
    return table


def make_notes() -> list[str]:
    if has_bytecode():
        return []
    return [f"the packages are installed without bytecode; the commands used that in {BYTECODE}, as after make setup"]


if __name__ == "__main__":
    main(measure, threads=2)
