"""The table and the page of a study."""

import os
import re
import sqlite3
from datetime import timedelta
from pathlib import Path

import optuna
import pytest
from axe import assert_accessible
from chromium import started_browser
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from showattendtell.errors import UserError
from showattendtell.extensions.search import study as studies
from showattendtell.extensions.search.study import FILE, open_storage, print_study, render, summarize_study

SPACE = {
    "optimizer.lr": FloatDistribution(1e-4, 1e-1, log=True),
    "attention/score": CategoricalDistribution(["dot", "cosine"]),
}


def trial(state: TrialState, value: float | None, rate: float, seconds: float = 0, **attributes: object) -> FrozenTrial:
    curve = {} if value is None else {1: value / 2, 2: value}
    settings = {"dataset.root": "'a folder'", "optimizer.lr": str(rate), "attention/score": "dot"}
    found = create_trial(
        state=state,
        value=value,
        params={"optimizer.lr": rate, "attention/score": "dot"},
        distributions=SPACE,
        intermediate_values=curve,
        user_attrs={"settings": settings, **attributes},
    )
    if found.datetime_complete:
        found.datetime_start = found.datetime_complete - timedelta(seconds=seconds)
    return found


def headings(page: str) -> list[str]:
    return re.findall("<h2[^>]*>(.*?)</h2>", page)


def by_bleu() -> optuna.Study:
    study = optuna.create_study(study_name="mine", direction="maximize")
    study.set_user_attr("space", {"monitor": "bleu4"})
    return study


@pytest.fixture
def study() -> optuna.Study:
    study = by_bleu()
    study.add_trial(trial(TrialState.COMPLETE, 20.0, 0.001, seconds=60.0))
    study.add_trial(trial(TrialState.COMPLETE, 30.0, 0.01, seconds=7200.0))
    study.add_trial(trial(TrialState.PRUNED, 4.0, 0.0001, seconds=12.0))
    study.add_trial(trial(TrialState.FAIL, None, 0.1, error="the loss of step 3 is nan <&>"))
    study.add_trial(trial(TrialState.FAIL, None, 0.1))  # it gave way to another worker's
    study.add_trial(trial(TrialState.RUNNING, None, 0.02))
    return study


def test_the_screen_has_the_best_first_what_failed_and_the_command_of_the_best(
    study: optuna.Study, capsys: pytest.CaptureFixture[str]
):
    print_study(summarize_study(study, Path("runs/mine-study")))
    printed = capsys.readouterr().out
    assert printed.startswith("mine: 2 finished, 1 pruned, 1 failed, 1 running")
    rows = re.findall(r"│ (\d) +│ ([\d.]+) +│ ([\d.]+ \w+)", printed)
    assert rows == [("1", "30.000", "2.0 h"), ("0", "20.000", "60 s")]
    assert "runs/mine-study/3 failed: the loss of step 3 is nan <&>" in printed
    assert "  python -m showattendtell.train 'dataset.root=" in printed


def test_a_command_is_quoted_for_the_shell(study: optuna.Study):
    assert summarize_study(study, Path("x")).command == (
        """python -m showattendtell.train 'dataset.root='"'"'a folder'"'"'' optimizer.lr=0.01 attention/score=dot"""
    )


def test_the_page_is_one_file_with_every_figure_and_nothing_of_the_network(study: optuna.Study):
    page = render(summarize_study(study, Path("runs/mine-study")))
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=\"(?!data:)", page)
    assert "<script" not in page
    assert headings(page) == ["Best trials", "Train the best trial again", "Settings", "Failed trials"]
    assert "the loss of step 3 is nan &lt;&amp;&gt;" in page


@pytest.mark.parametrize("number", [0, 1])
def test_a_study_that_has_just_begun_has_a_page(tmp_path: Path, number: int):
    study = by_bleu()
    study.add_trials([trial(TrialState.COMPLETE, 20.0, 0.001)] * number)
    summary = summarize_study(study, tmp_path)
    print_study(summary)
    assert render(summary).count("<img") == number


def test_a_setting_with_a_log_scale_and_one_with_choices_have_such_axes(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
):
    figures = []
    monkeypatch.setattr(studies, "encode", figures.append)
    studies.draw_settings(summarize_study(study, Path("x")))
    rate, score = figures[0].axes
    assert (rate.get_xscale(), score.get_xlabel()) == ("log", "attention/score")
    assert [sorted(line.get_ydata()) for line in rate.lines] == [[4.0], [20.0, 30.0], [30.0]]
    assert [tick.get_text() for tick in score.get_xticklabels()] == ["dot"]


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("dark", 390), ("light", 1280)])
def test_axe_finds_no_fault(study: optuna.Study, scheme: str, width: int, tmp_path: Path):
    with started_browser() as browser:
        page = render(summarize_study(study, Path("runs/mine-study")))
        assert_accessible(lambda **settings: browser.new_context(**settings).new_page(), page, tmp_path, scheme, width)


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT t.* FROM t, n ORDER BY n.x"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (f"ALTER TABLE trials RENAME TO t; CREATE VIEW trials AS {ENDLESS}", "takes more than 1 seconds or 4 GB"),
        ("UPDATE trials SET state = 'OTHER'", "cannot be read (KeyError: 'OTHER')"),
        ("DELETE FROM trial_user_attributes", "cannot be read (KeyError: 'settings')"),
        (
            "UPDATE trial_user_attributes SET value_json = '{'",
            "cannot be read (JSONDecodeError: Expecting property name",
        ),
        ("pipe", "takes more than 1 seconds"),
    ],
)
def test_a_damaged_study_is_reported_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, reason: str
):
    storage = tmp_path / "pipe"
    os.mkfifo(storage)
    study = optuna.create_study(study_name=tmp_path.name, storage=open_storage(None, tmp_path))
    study.set_user_attr("space", {"monitor": "bleu4"})
    study.add_trial(trial(TrialState.COMPLETE, 20.0, 0.001))
    if change != "pipe":
        with sqlite3.connect(tmp_path / FILE) as database:
            database.executescript(change)
    if "seconds" in reason:
        monkeypatch.setattr(studies, "SECONDS", 1)
    with pytest.raises(UserError, match=re.escape(reason)):
        studies.report_study(tmp_path, str(storage) if change == "pipe" else None)
