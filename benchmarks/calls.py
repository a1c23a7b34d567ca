"""The package's functions that run before the first training step: what a reader of `train` has to follow.

Trains on few drawn scenes, in a new process, twice: the second time their features are stored. Functions are counted
once, lambdas, comprehensions and generated methods not at all.
"""

import subprocess
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness.figures import Figure
from benchmarks.harness.script import Results, main

COMMAND = ["dataset.train=8", "dataset.val=2", "dataset.test=2", "trainer.max_steps=1", "trainer.limit_val_batches=0"]
FUNCTIONS, FILES = "functions before the first training step", "files of these functions"
GOALS = {FUNCTIONS: 170, FILES: 40}

TRACE = """
import atexit, runpy, sys
seen = set()
def note(frame, event, _):
    code = frame.f_code
    is_function = code.co_flags & 1 and not code.co_name.startswith("<")  # not the body of a class or a module
    if event != "call" or not is_function or "/showattendtell/" not in code.co_filename:
        return
    if code.co_qualname == "CaptioningModule.training_step":
        sys.setprofile(None)
    else:
        seen.add((code.co_filename.rpartition("/showattendtell/")[2], code.co_qualname))
output = sys.argv.pop(1)
atexit.register(lambda: open(output, "w").write("\\n".join("\\t".join(function) for function in sorted(seen))))
sys.argv[0] = "train"
sys.setprofile(note)
runpy.run_module("showattendtell.train", run_name="__main__", alter_sys=True)
"""


def measure(options: Namespace) -> Results:
    with TemporaryDirectory() as folder:
        functions = [trace_training(Path(folder)) for _ in range(2)][1]
    files = Counter(file for file, _ in functions)
    notes = [f"{file}: {number}" for file, number in files.most_common()]
    counts = {FUNCTIONS: len(functions), FILES: len(files)}
    return Results([], [Figure(name, counts[name], better="lower", goal=goal) for name, goal in GOALS.items()], notes)


def trace_training(folder: Path) -> list[tuple[str, str]]:
    """Return the file and the name of each function of a training whose cache is in the folder."""
    output = folder / "functions"
    with TemporaryDirectory(dir=folder) as run:
        settings = [*COMMAND, f"cache={folder}/cache", f"hydra.run.dir={run}/run"]
        subprocess.run([sys.executable, "-c", TRACE, str(output), *settings], check=True, capture_output=True, cwd=run)
    return [tuple(line.split("\t")) for line in output.read_text().splitlines()]  # type: ignore[misc]


if __name__ == "__main__":
    main(measure)
