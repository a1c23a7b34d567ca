from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
from omegaconf import DictConfig
from small_table import TABLE, configured

from showattendtell.config.compose import compose
from showattendtell.extensions.reproduction import tables
from showattendtell.extensions.reproduction.tables import PaperTableConfig, TableRun, make_runs, select_runs


@pytest.fixture(autouse=True)
def composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose the settings of each run, which many tests make, once."""

    def copied(command: str, arguments: Sequence[str]) -> DictConfig:
        return deepcopy(composed(command, *arguments))

    monkeypatch.setattr(tables, "compose", copied)


@cache
def composed(command: str, *arguments: str) -> DictConfig:
    return compose(command, arguments)


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., list[TableRun]]:
    """The runs of the table in a folder, as the command's settings ask for them."""

    def select(*settings: str, table: PaperTableConfig = TABLE) -> list[TableRun]:
        config = configured(*settings)
        return select_runs(make_runs(table, config, tmp_path), table, config)

    return select
