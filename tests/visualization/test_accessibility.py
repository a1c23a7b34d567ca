"""Pages without faults that axe finds, in light and dark colors, on wide and narrow screens."""

from pathlib import Path
from typing import Any

import pytest
from axe import assert_accessible
from sample_pages import one_model, two_models
from slow_cases import slow_after

from showattendtell.results.comparison import paper_rows
from showattendtell.results.tables import ResultsTable, TableBlock, format_table
from showattendtell.visualization.pages import render


def table() -> str:
    block = TableBlock("Flickr8k", tuple(paper_rows("flickr8k")))
    overview = ResultsTable("test", ("bleu4", "meteor"), (block,), ("a note",))
    return format_table(overview, Path("table.html"))


PAGES = {"one model": lambda: render(one_model()), "two models": lambda: render(two_models()), "table": table}


@pytest.mark.parametrize("width", slow_after(1, [390, 1280]))
@pytest.mark.parametrize("scheme", slow_after(1, ["dark", "light"]))
@pytest.mark.parametrize("page", PAGES)
def test_axe_finds_no_fault(browser: Any, page: str, scheme: str, width: int, tmp_path: Path):
    assert_accessible(browser.new_page, PAGES[page](), tmp_path, scheme, width)
