"""`export` as a user types it, and what the folder that it leaves does without this package."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from runs import Run, assert_done, assert_error, held_out

needs_onnx = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="needs the extra onnx")

ALONE = """
import runpy, sys
for name in ("torch", "torchvision", "showattendtell"):
    sys.modules[name] = None
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script in a Python that has none of these."""


def captions_of(printed: str) -> list[str]:
    """With the mark of those that a model is not sure of, which the command prints in a column of its own."""
    said = [re.split(r"\.png(?:: |\t)", line)[1] for line in printed.splitlines() if ".png" in line]
    return [caption.replace("\tnot sure", " (not sure)") for caption in said]


@needs_onnx
@pytest.mark.slow
def test_the_script_of_an_export_alone_says_what_the_command_caption_says(run: Run, checkpoint: Path, folder: Path):
    photographs = [example.path for example in held_out(folder)[:4]]
    images = f"images={json.dumps(photographs)}"
    done = assert_done(run("export", f"checkpoint={checkpoint}", "output=handed/on"))
    assert re.match(r"onnxruntime says '.+', as PyTorch; scores and maps differ by .e-..\n", done.out)
    assert "written to handed/on" in done.out
    graphs = [f"onnx/{name}.onnx" for name in ("begin", "encode", "step", "unlikeness")]
    names = ["captioner.json", *graphs, "run_onnx.py"]
    exported = folder / "handed/on"
    assert sorted(str(file.relative_to(exported)) for file in exported.rglob("*") if file.is_file()) == names
    for beam in (1, 3):
        own = assert_done(
            run("caption", f"checkpoint={checkpoint}", images, f"decoding.beam_size={beam}", "formats=[html]")
        )
        arguments = [sys.executable, "-c", ALONE, folder / "handed/on/run_onnx.py", *photographs, "--beam", str(beam)]
        alone: Any = subprocess.run(arguments, capture_output=True, text=True, check=True)
        assert captions_of(alone.stdout) == captions_of(own.out)
        assert len(captions_of(own.out)) == 4
    assert_error(run("export", f"checkpoint={checkpoint}", "output=handed/on"), "handed/on", "exists")


def test_a_package_that_is_missing_is_named(run: Run, checkpoint: Path, tmp_path: Path):
    missing = 'import sys; sys.modules["onnxscript"] = None\n'
    missing += "import importlib.util as u; own = u.find_spec\n"
    missing += "u.find_spec = lambda name, *rest: None if name == 'onnxscript' else own(name, *rest)\n"
    done = run("export", f"checkpoint={checkpoint}", f"output={tmp_path}/out", first=missing)
    assert_error(done, "export needs the package onnxscript", "pip install 'showattendtell[onnx]'")
    assert list(tmp_path.iterdir()) == []
