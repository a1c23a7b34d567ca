"""Without the folders of an extension, what is left is collected, trains and captions, and nothing names it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

FOLDERS = ("src/showattendtell/extensions", "tests/extensions")
EXTENSIONS = sorted(file.parent.name for file in ROOT.glob(f"{FOLDERS[0]}/*/__init__.py"))

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


def run(folder: Path, *arguments: str) -> None:
    """Run Python with the copy of the package."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "SHOWATTENDTELL_CACHE": str(folder / "cache")}
    line = [sys.executable, *arguments]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", EXTENSIONS)
def test_what_is_left_without_an_extension_works(name: str, tmp_path: Path):
    for entry in ROOT.iterdir():
        if entry.name in ("src", "tests"):
            shutil.copytree(entry, tmp_path / entry.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif entry.name != ".git":
            (tmp_path / entry.name).symlink_to(entry)
    for place in FOLDERS:
        shutil.rmtree(tmp_path / place / name)
    run(tmp_path, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider")
    models = ["checkpoint=run/best.ckpt", "compare=flickr8k_soft"]
    lines = [["train", *TRAIN], ["caption", "docs/figures/bird.jpg", *models, "output=captions"]]
    run(tmp_path, "-c", USE, json.dumps(lines))
    assert len((tmp_path / "captions/captions.jsonl").read_text().splitlines()) == 2


def patterns_of(name: str) -> list[str]:
    """Return patterns of the modules, helpers, commands and options of an extension, as tests write them."""
    own = ROOT / FOLDERS[0] / name
    commands = "|".join(file.stem for file in own.glob("commands/[!_]*.py")) or "no command"
    patterns = [rf"extensions[./]{name}\b", rf"[\[(]\"({commands})\",", rf"showattendtell ({commands})\b"]
    patterns += [rf"(?m)^(from|import) {file.stem}\b" for file in (ROOT / FOLDERS[1] / name).glob("*.py")]
    for file in own.glob("conf/*/**/*.yaml"):
        group, _, option = str(file.relative_to(own / "conf").with_suffix("")).rpartition("/")
        patterns += [rf"{group}/{option}\b", rf"{group}s?[\"']?[=:] ?[\"']?\[?(\w+,)*{option}\b"]
    return patterns


@pytest.mark.parametrize("name", EXTENSIONS)
def test_nothing_else_names_an_extension(name: str):
    """But the tests of the documentation, which has its commands."""
    patterns, inside = patterns_of(name), {ROOT / place / name for place in FOLDERS}
    files = [file for place in ("tests", "benchmarks") for file in (ROOT / place).rglob("*.py")]
    others = [file for file in files if not inside & {*file.parents} and file.parent.name != "docs"]
    texts = {str(file): file.read_text(encoding="utf-8") for file in others}
    assert [file for file, text in texts.items() if any(re.search(pattern, text) for pattern in patterns)] == []
    sources = [file for file in (ROOT / "src").rglob("*.py") if not inside & {*file.parents}]
    assert [str(file) for file in sources if f"extensions.{name}" in file.read_text(encoding="utf-8")] == []
