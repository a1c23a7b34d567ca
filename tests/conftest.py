"""Commands as users type them, each in a process of its own."""

import gc
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings

settings.register_profile("quick", deadline=None, max_examples=25)  # a busy machine fails no test
settings.register_profile("thorough", deadline=None)

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the shapes are tiny, and the tests run side by side

gc.set_threshold(20_000, 50, 50)  # a tenth of the time went into garbage collection

os.fsync = lambda descriptor: None  # no test turns the power off, and each call waits for the disk

FIXTURES = Path(__file__).with_name("fixtures")

RUN_HERE = """
import atexit, multiprocessing, os, runpy, signal, sys
multiprocessing.set_start_method(None, force=True)  # the default, as in a new Python
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell ignores in its background
os.chdir(folder)
os.environ.update(environment)
for descriptor, path in ((1, out), (2, err)):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
sys.argv = list(arguments)
try:
    exec(code)
finally:
    atexit._run_exitfuncs()
"""
RUN_MODULE = "runpy.run_module(arguments[0], run_name='__main__', alter_sys=True)"


class Finished(NamedTuple):
    """A command that has ended, and what it printed."""

    status: int | None
    out: str
    err: str


class Running(NamedTuple):
    """A command, and the files that it prints to."""

    process: BaseProcess
    out: Path
    err: Path

    def finish(self) -> Finished:
        self.process.join()
        return Finished(self.process.exitcode, self.out.read_text(), self.err.read_text())


StartCommand = Callable[..., Running]
RunCommand = Callable[..., Finished]
WriteModule = Callable[[str, str], Path]


LARGE = {"docs", "export", "metrics", "visualization", "test_encoding.py", "test_launchers.py"}
"""Folders and files whose tests start Java, Chromium, the ONNX exporter or sweeps: each worker would start its own."""


def pytest_configure(config: pytest.Config) -> None:
    """Try more examples of each property where the slow tests are run too."""
    settings.load_profile("quick" if config.option.markexpr == "not slow" else "thorough")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests for `--dist worksteal`: each worker begins with a share in this order and steals from others.

    The first share begins with the files that fork processes, the second with those of `LARGE`: a server that forks, a
    trained model or a Java is then started once. The many tests that take milliseconds are at the ends of the shares.
    """
    forking = {item.path for item in items if "fork_server" in getattr(item, "fixturenames", ())}
    first = [item for item in items if item.path in forking]
    large = [item for item in items if item.path not in forking and LARGE & {*item.path.parts}]
    small = [item for item in items if item.path not in forking and not LARGE & {*item.path.parts}]
    rest = max(0, len(items) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)) - len(first))
    items[:] = [*first, *small[:rest], *large, *small[rest:]]


def pytest_collection_finish() -> None:
    """Exempt all that was imported from garbage collection."""
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # nanobind reports what is not freed at the end


@pytest.fixture(scope="session")
def fork_server() -> ForkServerContext:
    """Start processes that are forked from a Python that has imported tests/fixtures/preloaded.py."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preloaded"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(FIXTURES), prepend=os.pathsep)
        forkserver.ensure_running()
    return context


@pytest.fixture(scope="session")
def start_code(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServerContext) -> StartCommand:
    """Code in a fresh process; the arguments are `sys.argv`."""

    def start(code: str, *arguments: str, folder: Path, **environment: str) -> Running:
        printed = tmp_path_factory.mktemp("printed")
        out, err = printed / "out", printed / "err"
        out.touch()
        names = {"folder": folder, "environment": environment, "arguments": arguments, "code": code}
        process = fork_server.Process(target=exec, args=(RUN_HERE, {**names, "out": out, "err": err}))
        process.start()
        return Running(process, out, err)

    return start


@pytest.fixture(scope="session")
def start_forked(start_code: StartCommand) -> StartCommand:
    """`python -m showattendtell.COMMAND SETTING ...` in a fresh process.

    `first` is code that is executed before the command.
    """

    def start(command: str, *settings: str, first: str = "", **others: Any) -> Running:
        return start_code(f"{first}\n{RUN_MODULE}", f"showattendtell.{command}", *settings, **others)

    return start


@pytest.fixture(scope="session")
def run_forked(start_forked: StartCommand) -> RunCommand:
    """As `start_forked`, to its end."""
    return lambda *arguments, **others: start_forked(*arguments, **others).finish()


@pytest.fixture(scope="session")
def run_code(start_code: StartCommand) -> RunCommand:
    """As `start_code`, to its end."""
    return lambda *arguments, **others: start_code(*arguments, **others).finish()


@pytest.fixture(scope="session")
def run_light(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunCommand]:
    """As `run_code`, in a process without torch. It takes a tenth of the time in which a new Python imports Hydra."""
    line = [sys.executable, FIXTURES / "light_server.py"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin
        assert server.stdout

        def run(code: str, *arguments: str, folder: Path, **environment: str) -> Finished:
            printed = tmp_path_factory.mktemp("printed")
            out, err = printed / "out", printed / "err"
            places = {"folder": str(folder), "out": str(out), "err": str(err)}
            names = {**places, "environment": environment, "arguments": arguments, "code": code}
            server.stdin.write(json.dumps({"code": RUN_HERE, "names": names}) + "\n")
            server.stdin.flush()
            return Finished(int(server.stdout.readline()), out.read_text(), err.read_text())

        yield run


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WriteModule]:
    """Write a module of the user's own to the test's folder, from which it can be imported until the test ends."""
    names = []

    def write(name: str, text: str) -> Path:
        names.append(name)
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        return path

    yield write
    for name in names:
        sys.modules.pop(name, None)
