"""What a command does not wait for before it begins."""

import subprocess
import sys
from pathlib import Path

from runs import held_out

RUN = """
import atexit, runpy, sys
others = {"pytorch_lightning", "torchmetrics", "transformers", "pycocoevalcap", "matplotlib", "scipy", "numba"}
atexit.register(lambda: print("IMPORTED", sorted(others & sys.modules.keys())))
sys.argv = sys.argv[1:]
runpy.run_module(f"showattendtell.{sys.argv[0]}", run_name="__main__", alter_sys=True)
"""


def test_captioning_imports_nothing_of_training_and_leaves_the_drawing_to_another_process(
    checkpoint: Path, folder: Path, tmp_path: Path
):
    photograph = held_out(folder)[0].path
    line = [sys.executable, "-c", RUN, "caption", f"checkpoint={checkpoint}", photograph, "decoding.max_length=2"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith(f"{photograph}: ")
    assert done.stdout.splitlines()[-1] == "IMPORTED []"
    assert sorted(file.name for file in (tmp_path / "captions").iterdir()) == ["index.html", Path(photograph).name]
