from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
from omegaconf import DictConfig
from small_table import TABLE, configured

from showattendtell.config.compose import compose
from showattendtell.extensions.reproduction import tables, work
from showattendtell.extensions.reproduction.tables import PaperTableConfig, TableRun
from showattendtell.extensions.reproduction.work import CommandRunner, Reproduction


@pytest.fixture(autouse=True)
def composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose the settings of each run, which many tests make, once."""

    def copied(command: str, arguments: Sequence[str]) -> DictConfig:
        return deepcopy(composed(command, *arguments))

    for module in (tables, work):
        monkeypatch.setattr(module, "compose", copied)


@cache
def composed(command: str, *arguments: str) -> DictConfig:
    return compose(command, arguments)


@pytest.fixture
def work_of(tmp_path: Path) -> Callable[..., Reproduction]:
    """The work of the command in a folder, with these settings."""

    def make(*settings: str, table: PaperTableConfig = TABLE) -> Reproduction:
        return Reproduction(table, configured(*settings), tmp_path, CommandRunner())

    return make


@pytest.fixture
def made(work_of: Callable[..., Reproduction]) -> Callable[..., list[TableRun]]:
    """The runs of the table in a folder, as the command's settings ask for them."""
    return lambda *settings, **table: work_of(*settings, **table).runs
