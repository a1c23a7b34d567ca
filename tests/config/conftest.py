"""The package of a user's own."""

from collections.abc import Callable, Iterator
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
def parts(write_module: Callable[[str, str], object]) -> Iterator[str]:
    """The importable module `parts`, which is no part of showattendtell."""
    write_module("parts", dedent(PARTS))
    yield "parts"
    read_signature.cache_clear()
    SOURCES.members.clear()
