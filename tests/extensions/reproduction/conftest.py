from collections.abc import Callable
from pathlib import Path

import pytest
from small_table import TABLE, configured

from showattendtell.extensions.reproduction.runs import TableRun, make_runs, select_runs
from showattendtell.extensions.reproduction.tables import PaperTableConfig


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., list[TableRun]]:
    """The runs of the table in a folder, as the command's settings ask for them."""

    def select(*settings: str, table: PaperTableConfig = TABLE) -> list[TableRun]:
        config = configured(*settings)
        return select_runs(make_runs(table, config, tmp_path), table, config)

    return select
