"""Pages without faults that axe finds, in light and dark colors, on wide and narrow screens."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from axe import faults
from chromium import sharing_contexts, started_browser
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial
from sample_pages import one_model, two_models
from slow_cases import slow_after

from showattendtell.extensions.search.study_page import render as render_study
from showattendtell.extensions.search.study_page import summarize_study
from showattendtell.visualization.comparison import paper_rows
from showattendtell.visualization.pages import render
from showattendtell.visualization.tables import ResultsTable, TableBlock, html


def search() -> str:
    study = optuna.create_study(study_name="mine", direction="maximize")
    study.set_user_attr("space", {"monitor": "bleu4"})
    states = [TrialState.COMPLETE] * 10 + [TrialState.PRUNED, TrialState.FAIL]
    for number, state in enumerate(states):
        study.add_trial(
            create_trial(
                state=state,
                value=None if state == TrialState.FAIL else float(number),
                params={"optimizer.lr": 10 ** (-4 + number / 4), "attention/score": "dot"},
                distributions={
                    "optimizer.lr": FloatDistribution(1e-4, 1e-1, log=True),
                    "attention/score": CategoricalDistribution(["dot", "cosine"]),
                },
                intermediate_values={1: number / 2, 2: number},
                user_attrs={"settings": {"optimizer.lr": "0.1"}, "fault": "the loss is nan", "seconds": 60.0},
            )
        )
    return render_study(summarize_study(study, Path("runs/mine-study")))


def table() -> str:
    block = TableBlock("Flickr8k", tuple(paper_rows("flickr8k").values()))
    return html(ResultsTable("test", ("bleu4", "meteor"), (block,), ("a note",), "photographs.html"))


PAGES = {
    "one model": lambda: render(one_model()),
    "two models": lambda: render(two_models()),
    "table": table,
    "search": search,
}


@pytest.fixture(scope="module")
def open_tab() -> Iterator[Callable[..., Any]]:
    with started_browser() as browser:
        yield sharing_contexts(browser)


@pytest.mark.parametrize("width", slow_after(1, [390, 1280]))
@pytest.mark.parametrize("scheme", slow_after(1, ["dark", "light"]))
@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_axe_finds_no_fault(
    open_tab: Callable[..., Any], page: Callable[[], str], scheme: str, width: int, tmp_path: Path
):
    (tmp_path / "page.html").write_text(page(), encoding="utf-8")
    viewport = {"width": width, "height": 800}
    tab = open_tab(viewport=viewport, color_scheme=scheme, bypass_csp=True, reduced_motion="reduce")
    tab.goto((tmp_path / "page.html").as_uri())
    tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    if tab.locator(".word").count():
        tab.locator(".word").nth(1).focus()
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert faults(tab) == []
    tab.close()
