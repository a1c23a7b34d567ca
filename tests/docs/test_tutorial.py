"""The tutorial notebook runs from top to bottom."""

import re
from pathlib import Path

import pytest
from documentation import ROOT

NOTEBOOK = ROOT / "docs/tutorial.ipynb"


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path):
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat, which make setup installs")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient, which make setup installs")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    nbclient.NotebookClient(notebook, timeout=1800, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in shown) == 5
    printed = "".join(output.get("text", "") for output in shown)
    soft, hard = map(float, re.search(r"bleu4 +([\d.]+) +([\d.]+)", printed).groups())
    assert soft > 60
    assert hard > 20
