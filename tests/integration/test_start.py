"""What a command does not wait for before it begins."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from runs import held_out

REPORT = """
import atexit, runpy, sys
heavy = {"pytorch_lightning", "torchmetrics", "transformers", "pycocoevalcap", "matplotlib", "scipy", "numba"}
heavy |= {"pandas", "requests"}
opened = set()
sys.addaudithook(lambda event, about: opened.add(str(about[0])) if event == "open" else None)

def report():
    loaded = sys.modules.keys()
    parsed = [] if "torch" in loaded else [name for name in opened if name.endswith("torch/__init__.py")]
    print("IMPORTED", sorted(heavy & loaded) + parsed, "torch" in loaded, len(loaded))

atexit.register(report)
"""
RUN = f"""{REPORT}
sys.argv = sys.argv[1:]
runpy.run_module(f"showattendtell.{{sys.argv[0]}}", run_name="__main__", alter_sys=True)
"""


def run(code: str, *arguments: str, folder: Path) -> tuple[list[str], str, int]:
    """What is printed, and at the end which of the others were imported and how many modules there are."""
    line = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    imported, _, number = last.removeprefix("IMPORTED ").rpartition(" ")
    return lines, imported, int(number)


@pytest.mark.slow
def test_captioning_imports_nothing_of_training(checkpoint: Path, folder: Path, tmp_path: Path):
    photograph = held_out(folder)[0].path
    settings = [f"checkpoint={checkpoint}", photograph, "decoding.max_length=2", "formats=[jsonl,html]"]
    lines, imported, number = run(RUN, "caption", *settings, folder=tmp_path)
    assert len(lines) == 1
    assert imported == "[] True"
    assert number < 3_700
    assert sorted(file.name for file in (tmp_path / "captions").iterdir()) == ["captions.jsonl", "index.html"]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="PyTorch for CPUs has no Triton")
def test_a_script_that_imports_the_training_ends_without_reports_of_leaks(tmp_path: Path):
    code = "import triton, pytorch_lightning, showattendtell; showattendtell.CaptioningModule"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, "")


def test_settings_are_checked_without_parsing_the_source_of_all_of_torch(tmp_path: Path):
    lines, imported, number = run(RUN, "train", "--help", "optimizer.lr=0.1", folder=tmp_path)
    assert "  optimizer.lr=0.1" in lines
    assert imported == "[] False"
    assert number < 800
