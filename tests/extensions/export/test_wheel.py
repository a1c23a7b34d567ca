"""A wheel of an export, installed in an environment of its own without torch."""

import subprocess
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from showattendtell.errors import UserError
from showattendtell.extensions.export.packages import check_package
from showattendtell.runtime.tracing import lacks_onnx

RUN = """
import sys, time
start = time.perf_counter()
from my_captioner import caption
found = caption(sys.argv[1])
print(time.perf_counter() - start)
print(found.text, found.attention.shape, found.unsure, sep="|")
print(sorted({"torch", "showattendtell"} & {*sys.modules}))
"""


INSTALLERS = ("pip", "setuptools", "pkg_resources", "_distutils_hack")


def size_of(path: Path) -> float:
    """The size of a file or folder in MB."""
    return sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file()) / 1e6


NAMES = ["my-captioner", "2nd", "class", "json", "größe", "a.b", "", "__init__", "numpy", "NumPy", "PIL", "pillow"]
NAMES += ["_a", "a" * 300, "a b", "../a", "a\n", "except", "match", "onnxruntime", "n\u043ene"]


@pytest.mark.parametrize("name", NAMES)
def test_a_package_that_cannot_be_imported_is_refused(name: str):
    with pytest.raises(UserError, match="cannot be imported or is taken; use letters"):
        check_package(name)


def test_a_package_needs_a_name():
    with pytest.raises(UserError, match=r"formats=\[wheel\] needs a name for the package; give it as package="):
        check_package(None)


@pytest.mark.slow
@pytest.mark.skipif(lacks_onnx() != "", reason="needs the extra onnx")
def test_a_wheel_captions_photographs_in_an_environment_without_torch(run_forked: Any, tmp_path: Path):
    settings = ["checkpoint=flickr8k_soft", "formats=[wheel]", "package=my_captioner", "precision=float16"]
    done = run_forked("export", *settings, f"output={tmp_path}/out", folder=tmp_path)
    assert done.status == 0, done.err
    [wheel] = (tmp_path / "out").glob("*.whl")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["captioner.json", wheel.name]
    with zipfile.ZipFile(wheel) as archive:
        assert "my_captioner/onnx/step.onnx" in archive.namelist()

    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    installed = subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(f"needs a package index ({installed.stderr.strip().splitlines()[-1]})")
    sizes = {path.name: size_of(path) for path in (tmp_path / "venv/lib").glob("*/site-packages/*")}
    megabytes = sum(size for name, size in sizes.items() if name.split("-")[0] not in INSTALLERS)
    example = Path(__file__).parents[3] / "src/showattendtell/visualization/examples/dog.jpg"
    ran = subprocess.run([python, "-c", RUN, example], capture_output=True, text=True, check=True, cwd=tmp_path)
    seconds, caption, modules = ran.stdout.splitlines()
    print(f"{megabytes:.0f} MB installed; first caption after {float(seconds):.2f} s: {caption}")
    assert "dog" in caption
    assert modules == "[]"
    assert sizes["my_captioner"] < 23

    bad = {"empty.jpg": b"", "page.svg": b"<svg/>", "cut.jpg": example.read_bytes()[:5000]}
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
    Image.new("1", (30_000, 30_000)).save(tmp_path / "bomb.png")
    command = [tmp_path / "venv/bin/my_captioner", *bad, "bomb.png", "missing.jpg", example]
    said = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert said.returncode == 1
    assert "dog" in said.stdout
    lines = said.stderr.splitlines()
    assert [line.split()[0] for line in lines] == [*bad, "bomb.png", "missing.jpg"]
    assert "exceeds limit of 178956970 pixels" in lines[3]
    assert "No such file" in lines[4]
