from collections.abc import Iterator

import pytest
from archive_server import ArchiveServer, serve_archives

from showattendtell.data import download as fetching


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Iterator[ArchiveServer]:
    monkeypatch.setattr(fetching, "BACKOFF", 0.0)
    monkeypatch.setattr(fetching, "CHUNK", 1000)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serve_archives() as server:
        yield server
