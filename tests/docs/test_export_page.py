"""The sections of docs/extensions/export.md on web pages and wheels, and `make web-demo`, each from an empty folder."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from chromium import started_browser
from documentation import FENCED, SHELL
from repository import ROOT

from showattendtell.errors import UserError
from showattendtell.extensions.export.packages import find_runtime
from showattendtell.runtime.tracing import lacks_onnx

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(lacks_onnx() != "", reason="needs the extra onnx"),
]
PAGE = ROOT / "docs/extensions/export.md"
EXAMPLE = ROOT / "src/showattendtell/visualization/examples/dog.jpg"
ADDRESS = re.compile(r"\((http://[\d.]+:\d+/)\)")


def section(title: str) -> tuple[list[str], list[str]]:
    """The lines of a section's blocks of commands, and its blocks of Python."""
    [text] = re.findall(rf"^## {title}\n(.*?)^## ", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    found = FENCED.findall(text)
    commands = [re.sub(r" *\\\n *", " ", body) for language, body in found if language in SHELL]
    lines = [line for body in commands for line in body.splitlines()]
    return lines, [body for language, body in found if language == "python"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One in which `python` is this Python, with the archive of onnxruntime-web in the cache."""
    tools, cache = tmp_path_factory.mktemp("tools"), tmp_path_factory.mktemp("cache")
    python = tools / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    return {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SHOWATTENDTELL_CACHE": str(cache)}


@pytest.fixture
def runtime(environment: dict[str, str]) -> None:
    try:
        find_runtime(None, Path(environment["SHOWATTENDTELL_CACHE"]))
    except UserError as fault:
        pytest.skip(f"needs onnxruntime-web ({fault})")


def follow(line: str, folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    print(line)
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done


@contextmanager
def serving(line: str, folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Run a command that serves until Ctrl-C; yield the address that it prints."""
    process = subprocess.Popen(
        ["bash", "-c", line],
        cwd=folder,
        env={**environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout
        lines = list[str]()
        for printed in process.stdout:
            lines.append(printed)
            if found := ADDRESS.search(printed):
                break
        else:
            pytest.fail("".join(lines))
        yield found[1].replace("0.0.0.0", "127.0.0.1")
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate()


def assert_captions(address: str) -> None:
    """The page is served, and loads its model in a browser."""
    with urllib.request.urlopen(address) as answer:
        assert b"<title>" in answer.read()
    with started_browser() as browser:
        tab = browser.new_page()
        tab.goto(address)
        tab.locator("#loading", has_text="ready").wait_for(timeout=900_000)


def test_put_it_on_a_web_page(tmp_path: Path, environment: dict[str, str], runtime: None):
    lines, _ = section("Put it on a web page")
    export, serve = lines
    assert f"serve it with: {serve}\n" in follow(export, tmp_path, environment).stdout
    with serving(f"{serve} 0", tmp_path, environment) as address:  # any free port
        assert_captions(address)


def test_make_web_demo(tmp_path: Path, environment: dict[str, str], runtime: None):
    settings = f"-C {shlex.quote(str(ROOT))} RUN=python READY=Makefile PORT=0 WEB={shlex.quote(str(tmp_path / 'demo'))}"
    with serving(f"make web-demo {settings}", tmp_path, environment) as address:
        assert_captions(address)


def test_ship_it_as_a_wheel(tmp_path: Path, environment: dict[str, str]):
    lines, [program] = section("Ship it as a wheel")
    export, install, caption = lines
    shutil.copy(EXAMPLE, tmp_path / "photo.jpg")
    follow(export, tmp_path, environment)
    venv.create(tmp_path / "venv", with_pip=True)
    names = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    own = {**names, "PATH": f"{tmp_path / 'venv/bin'}:{os.environ['PATH']}"}
    installed = subprocess.run(["bash", "-c", install], cwd=tmp_path, env=own, capture_output=True, text=True)
    if "Could not find a version" in installed.stderr:
        pytest.skip(f"needs a package index ({installed.stderr.strip().splitlines()[-1]})")
    assert installed.returncode == 0, installed.stderr
    (tmp_path / "program.py").write_text(program)
    said = follow(caption, tmp_path, own).stdout
    assert "dog" in said
    text, shape = follow("python program.py", tmp_path, own).stdout.splitlines()
    assert text.split(" 0.")[0] in said
    assert re.fullmatch(r"\(\d+, \d+, \d+\)", shape)
    assert follow("pip list --format freeze", tmp_path, own).stdout.count("torch") == 0
