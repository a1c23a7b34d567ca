"""A server as users start it, with two small untrained models."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from runs import wait_until
from small_checkpoints import save
from small_server import SETTINGS, WORDS, Served

SPEECH = ["decoding.min_length=3", "decoding.max_length=5", "decoding.allow_unk=false"]

Serve = Callable[..., Served]


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    paths = [folder / "soft/best.ckpt", folder / "hard/best.ckpt"]
    for path in paths:
        path.parent.mkdir()
        save(path, 1, *SETTINGS, f"attention={path.parent.name}", words=WORDS, spread=1.0)
    return paths


@pytest.fixture(scope="session")
def serve(start_forked: Callable[..., Any], checkpoints: list[Path], tmp_path_factory: Any) -> Iterator[Serve]:
    """Starts servers, which end with the tests."""
    started: list[Served] = []

    def serve(*settings: str) -> Served:
        line = [f"checkpoint={checkpoints[0]}", f"compare={checkpoints[1]}", "port=0", *SPEECH]
        running = start_forked("serve", *line, *settings, folder=tmp_path_factory.mktemp("user"))
        wait_until(lambda: "http://" in running.out.read_text() or not running.process.is_alive())
        address = re.search(r"http://\S+", running.out.read_text())
        assert address, running.finish().err
        started.append(Served(address[0], running))
        return started[-1]

    yield serve
    for one in started:
        if one.running.process.is_alive():
            one.running.process.terminate()
            one.running.process.join(10)


@pytest.fixture(scope="session")
def served(serve: Serve) -> Served:
    return serve()
