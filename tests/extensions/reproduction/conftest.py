from collections.abc import Callable
from pathlib import Path

import pytest
from small_table import TABLE, configured

from showattendtell.extensions.reproduction.runs import TableRun, make_runs


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., list[TableRun]]:
    """The runs of the table in a folder, as the command's settings ask for them."""
    return lambda *settings: make_runs(TABLE, configured(*settings), tmp_path)
