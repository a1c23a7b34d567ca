from collections.abc import Iterator

import pytest
from publisher import Publisher, publishing

from showattendtell.data import download as fetching


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    monkeypatch.setattr(fetching, "BACKOFF", 0.0)
    monkeypatch.setattr(fetching, "CHUNK", 1000)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with publishing() as server:
        yield server
