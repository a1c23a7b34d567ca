"""`showattendtell COMMAND`, the console script, and what is inside the wheel that a user installs."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from repository import ROOT
from slow_cases import slow_after

from showattendtell.__main__ import COMMANDS


def showattendtell(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The installed console script, run in `folder`."""
    script = Path(sys.executable).with_name("showattendtell")
    return subprocess.run([script, *arguments], cwd=folder, capture_output=True, text=True, timeout=900)


@pytest.mark.parametrize("arguments", slow_after(1, [[], ["-h"], ["--help"]]))
def test_the_overview_names_every_command(arguments: list[str], tmp_path: Path):
    done = showattendtell(tmp_path, *arguments)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")] == list(COMMANDS)


def test_the_overview_names_every_module_that_can_be_run():
    package = Path(importlib.util.find_spec("showattendtell").origin).parent
    runnable = {file.stem for file in package.glob("*.py") if 'if __name__ == "__main__"' in file.read_text()}
    runnable |= {file.parent.name for file in package.glob("*/__main__.py")}
    runnable |= {file.stem for file in package.glob("extensions/*/commands/*.py")}
    assert runnable - {"__main__"} == set(COMMANDS)


@pytest.mark.parametrize(
    ("typo", "hint"), slow_after(1, [("trian", "did you mean 'train'"), ("zzz", "available: average, ")])
)
def test_an_unknown_command_is_reported_in_a_sentence(typo: str, hint: str, tmp_path: Path):
    done = showattendtell(tmp_path, typo, "attention=soft")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: there is no command {typo}; {hint}")
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The project built as a wheel; it needs the network, or the build backend in uv's cache."""
    if importlib.util.find_spec("uv") is None:
        pytest.skip("uv is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    line = [sys.executable, "-m", "uv", "build", "--wheel", "--out-dir", str(folder), str(ROOT)]
    built = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"uv cannot build here: {built.stderr.strip().splitlines()[-1]}")
    [file] = folder.glob("*.whl")
    return zipfile.ZipFile(file)


def test_the_wheel_holds_every_module_template_and_yaml_and_nothing_else(wheel: zipfile.ZipFile):
    listed = subprocess.run(["git", "ls-files", "src", "conf"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert inside == {
        name.replace("conf/", "showattendtell/conf/", 1) if name.startswith("conf/") else name[4:] for name in files
    }
    assert "showattendtell/visualization/templates/page.html" in inside


def test_the_unpacked_wheel_answers_help_from_its_own_yaml(wheel: zipfile.ZipFile, tmp_path: Path):
    wheel.extractall(tmp_path)
    marked = tmp_path / "showattendtell/conf/train.yaml"
    marked.write_text(marked.read_text().replace("seed: 1\n", "seed: 4711\n"))
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from showattendtell.train import main; main()"
    line = [sys.executable, "-c", code, str(tmp_path), "--help"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0
    assert "seed=4711" in done.stdout


@pytest.mark.parametrize("closed", slow_after(1, [1, 2]))
def test_a_closed_stream_is_no_fault(closed: int):
    line = f"exec {closed}>&-; exec {sys.executable} -m showattendtell.report --version"
    assert subprocess.run(["bash", "-c", line], check=False).returncode == 0


@pytest.mark.parametrize(
    "arguments",
    slow_after(1, [["train", "--help"], ["--help"], ["--version"], ["demo", "--help"], ["train", "--version"]]),
)
@pytest.mark.parametrize("buffered", slow_after(1, ["", "1"]))
def test_a_full_standard_output_is_a_fault_in_one_line(arguments: list[str], buffered: str):
    line = [sys.executable, "-m", "showattendtell", *arguments]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            line, stdout=full, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": buffered}
        )
    assert (done.returncode, done.stderr) == (2, "error: No space left on device\n")
