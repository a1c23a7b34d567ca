"""The report of docs/wandb_report.py as far as it can be made without an account."""

import sys
from importlib import import_module
from typing import Any

import pytest
from repository import ROOT

from showattendtell.extensions.dashboards.loggers import COLUMNS

pytest.importorskip("wandb_workspaces")


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    sys.modules.pop("wandb_report", None)
    return import_module("wandb_report")


def test_the_report_shows_the_documented_figures_of_a_group(report: Any):
    made = report.build_report("me", "captions", "soft or hard")
    grids = [block for block in made.blocks if hasattr(block, "panels")]
    plots = {name for grid in grids for panel in grid.panels for name in getattr(panel, "y", None) or []}
    documented = (ROOT / "docs/dashboards.md").read_text()
    assert {"val/bleu4", "val/attention_entropy"} <= plots
    assert [name for name in plots if name.split("_")[0] not in documented] == []
    assert {run.filters for grid in grids for run in grid.runsets} == {'Group == "soft or hard"'}
    assert [panel.table_name for grid in grids for panel in grid.panels if hasattr(panel, "table_name")] == [
        "val/captions"
    ]
    assert COLUMNS[0] == "image"
