"""Without an extension's folder, options, tests and page, what is left is imported, trains and captions."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

EXTENSIONS = sorted(file.parent.name for file in ROOT.glob("src/showattendtell/extensions/*/__init__.py"))

USE = """
import importlib, json, pkgutil, runpy, sys
import showattendtell

for module in pkgutil.walk_packages(showattendtell.__path__, "showattendtell."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
for line in json.loads(sys.argv[1]):
    sys.argv = line
    try:
        runpy.run_module(f"showattendtell.{line[0]}", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        assert not ended.code, line
"""
"""Import all modules, and run commands."""

TRAIN = ["dataset.train=8", "dataset.val=2", "dataset.test=2", "encoder.weights=random", "encoder.size=64"]
TRAIN += ["trainer.max_epochs=1", "decoder.hidden_dim=8", "decoder.embedding_dim=8", "hydra.run.dir=run"]


def copy_without(name: str, folder: Path) -> None:
    """Copy the repository without the extension `name`."""
    for part in ("src", "conf", "docs", "tests"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "*.onnx"))
    shutil.rmtree(folder / "src/showattendtell/extensions" / name)
    shutil.rmtree(folder / "tests/extensions" / name)
    (folder / "docs/extensions" / f"{name}.md").unlink()
    for option in (folder / "conf").rglob("*.yaml"):
        if f"showattendtell.extensions.{name}." in option.read_text():
            option.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("name", EXTENSIONS)
def test_what_is_left_without_an_extension_works(name: str, tmp_path: Path):
    copy_without(name, tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "SHOWATTENDTELL_CACHE": str(tmp_path / "cache")}
    models = ["checkpoint=run/best.ckpt", "compare=flickr8k_soft"]
    lines = [["train", *TRAIN], ["caption", "docs/figures/bird.jpg", *models, "output=captions"]]
    command = [sys.executable, "-c", USE, json.dumps(lines)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "captions/captions.jsonl").read_text().splitlines()) == 2
    sources = (tmp_path / "src").rglob("*.py")
    assert [str(file) for file in sources if f"showattendtell.extensions.{name}" in file.read_text()] == []
