"""The package of a user's own."""

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from showattendtell.config.signatures import SOURCES, read_signature

PARTS = """
    class Soft:
        def __init__(self, region_dim, score, gate: bool = True): self.score = score

    class Hard:
        def __init__(self, region_dim, score, samples: int = 1): ...
"""


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The importable module `parts`, which is no part of showattendtell."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "parts.py").write_text(dedent(PARTS))
    monkeypatch.syspath_prepend(folder)
    yield "parts"
    sys.modules.pop("parts", None)
    read_signature.cache_clear()
    SOURCES.members.clear()
