"""Studies: which trials a worker takes, repeats and ends, what may be stored by others, and the report."""

import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import NopPruner
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from showattendtell.errors import UserError
from showattendtell.extensions.search import study as studies
from showattendtell.extensions.search.study import (
    FILE,
    MOST_RETRIES,
    SearchConfig,
    Worker,
    distribution_of,
    find_study,
    open_storage,
    report,
    search,
    storage_errors,
    trials_of,
)
from showattendtell.runtime.files import LAST

RATE: dict[str, BaseDistribution] = {"optimizer.lr": FloatDistribution(1e-4, 1e-1, log=True)}
SEEDS: dict[str, BaseDistribution] = {"seed": CategoricalDistribution(["1", "2", "3"])}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker waits for a second to see whether trials elsewhere were interrupted."""
    monkeypatch.setattr(studies, "GRACE_PERIOD", 1)


def worker(folder: Path, space: dict[str, BaseDistribution] = RATE, total: int = 99, **fixed: str) -> Worker:
    study = optuna.create_study(
        study_name="own",
        storage=open_storage(None, folder),
        direction="maximize",
        load_if_exists=True,
        sampler=RandomSampler(3),
    )
    return Worker(study, folder, space, fixed, total)


def interrupt(folder: Path) -> None:
    """What is left of trials whose process was killed an hour ago."""
    with sqlite3.connect(folder / FILE) as database:
        database.execute("UPDATE trial_heartbeats SET heartbeat = datetime('now', '-1 hour')")


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("seed=1,2,3", CategoricalDistribution(["1", "2", "3"])),
        ("attention=soft,hard", CategoricalDistribution(["soft", "hard"])),
        ("places=[a,b],[c]", CategoricalDistribution(["[a,b]", "[c]"])),
        ("decoder.hidden_dim=range(32,129,step=32)", IntDistribution(32, 128, step=32)),
        ("decoder.dropout=interval(0.0,0.5)", FloatDistribution(0.0, 0.5)),
        ("lr=tag(log,interval(1e-4,1e-1))", FloatDistribution(1e-4, 1e-1, log=True)),
        ("seed=1", None),
    ],
)
def test_the_space_of_a_setting(setting: str, expected: BaseDistribution | None):
    assert distribution_of(OverridesParser.create().parse_override(setting)) == expected


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("decoder.hidden_dim=tag(log,range(1,1000))", "only an interval has a log scale"),
        ("seed=range(0,4294967295)", "should have 1 to 100,000 values, or be an interval"),
        ("seed=range(5,1)", "should have 1 to 100,000 values"),
        ("seed=range(1,5,step=0)", "should have 1 to 100,000 values"),
        ("optimizer.lr=interval(0.1,inf)", "is not an interval from a number to a larger one"),
        ("optimizer.lr=interval(0.2,0.1)", "is not an interval from a number to a larger one"),
    ],
)
def test_a_range_that_cannot_be_searched_is_refused(setting: str, reason: str):
    with pytest.raises(UserError, match=re.escape(setting) + ".*" + reason):
        distribution_of(OverridesParser.create().parse_override(setting))


def test_a_study_has_its_number_of_trials_and_no_more(tmp_path: Path):
    first = worker(tmp_path, total=3)
    for trial in first.take(2):
        first.end(trial, 1.0)
    [last] = (second := worker(tmp_path, total=3)).take(5)
    assert last.number == 2
    second.end(last, 1.0)
    assert worker(tmp_path, total=3).take(1) == worker(tmp_path, total=2).take(1) == {}


def test_few_values_are_each_tried_once_by_all_workers_together(tmp_path: Path):
    for _ in range(2):  # one process after the other
        own = worker(tmp_path, SEEDS)
        for trial in own.take(2):
            own.end(trial, 1.0)
    trials = worker(tmp_path, SEEDS).study.trials
    assert sorted(trial.params["seed"] for trial in trials) == ["1", "2", "3"]
    assert worker(tmp_path, SEEDS).take(1) == {}


def test_an_interrupted_trial_is_repeated_with_its_values_reports_and_files(tmp_path: Path):
    [killed] = worker(tmp_path, total=1).take(1)
    killed.report(0.5, 1)
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / LAST).write_text("weights")
    interrupt(tmp_path)
    other = worker(tmp_path, total=1)
    [(trial, line)] = other.take(1).items()
    assert (trial.number, trial.params) == (1, killed.params)
    assert line == [f"optimizer.lr={killed.params['optimizer.lr']}", "resume=true"]
    assert other.study.trials[1].intermediate_values == {1: 0.5}
    assert (tmp_path / "1" / LAST).read_text() == "weights"
    other.end(trial, 1.0)
    assert other.take(1) == {}
    assert [each.number for each in trials_of(other.study)] == [1]


def test_a_trial_whose_worker_was_killed_before_the_first_heartbeat_is_repeated(tmp_path: Path):
    lost = worker(tmp_path, SEEDS).study.ask(SEEDS)
    other = worker(tmp_path, SEEDS)
    others = other.take(9)
    assert len(others) == 2
    for trial in others:
        other.end(trial, 1.0)
    [repeated] = other.take(9)
    assert repeated.params == lost.params
    other.end(repeated, 1.0)
    assert other.take(9) == {}


def test_a_trial_with_heartbeats_is_left_to_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(studies, "HEARTBEAT", 0.1)
    [trial] = (holder := worker(tmp_path, total=1)).take(1)
    interrupt(tmp_path)
    with holder.heartbeats([trial]):
        time.sleep(0.5)
        assert worker(tmp_path, total=1).take(1) == {}  # after it has waited
    assert holder.end(trial, 1.0) == ""
    assert [each.value for each in holder.study.trials] == [1.0]


def test_a_worker_that_seemed_to_be_gone_changes_no_trial(tmp_path: Path):
    [trial] = (gone := worker(tmp_path)).take(1)
    interrupt(tmp_path)
    worker(tmp_path).take(1)
    gone.end(trial, 1.0)
    gone.end(trial, ValueError("its folder is gone"))
    assert [each.state for each in gone.study.trials] == [TrialState.FAIL, TrialState.RUNNING]


def test_a_trial_that_is_interrupted_again_and_again_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for _ in range(MOST_RETRIES + 1):
        own = worker(tmp_path, total=1, monitor="bleu4")
        assert len(own.take(1)) == 1
        interrupt(tmp_path)
    assert own.take(1) == {}
    report(own.study, Path("runs/own-study"))
    said = capsys.readouterr().out
    assert said.startswith("own: 1 fail\n")
    assert said.endswith("runs/own-study/2 failed: it was interrupted 3 times\n")


def test_parameters_that_the_search_does_not_have_are_ignored(tmp_path: Path):
    """They come from a database, and would be arguments."""
    own = worker(tmp_path, SEEDS)
    space = {"seed": SEEDS["seed"], "hydra.run.dir": CategoricalDistribution(["x"])}
    state = TrialState.WAITING
    own.study.add_trial(create_trial(state=state, params={"seed": "1", "hydra.run.dir": "x"}, distributions=space))
    lines = own.take(9).values()
    assert sorted(lines) == [["seed=1"], ["seed=2"], ["seed=3"]]


def test_a_study_with_other_choices_of_a_setting_is_reported(tmp_path: Path):
    own = worker(tmp_path, {"seed": CategoricalDistribution(["1", "2"])})
    space = {"seed": CategoricalDistribution(["1 hydra.run.dir=x"])}
    own.study.add_trial(create_trial(value=1.0, params={"seed": "1 hydra.run.dir=x"}, distributions=space))
    with pytest.raises(UserError, match="the storage"):
        own.take(1)


@pytest.mark.parametrize("returned", [None, float("nan"), "text", ValueError("of the run")])
def test_a_trial_without_a_finite_number_has_failed_and_counts(tmp_path: Path, returned: Any):
    own = worker(tmp_path, total=1)
    [trial] = own.take(1)
    error = own.end(trial, returned)
    assert str(returned) in error
    assert own.study.trials[0].state == TrialState.FAIL
    assert own.study.trials[0].user_attrs["error"] == error
    assert own.take(1) == {}


@pytest.mark.parametrize(("total", "sentence"), [(1, "no trial of the study own has"), (9, "all of the first trials")])
def test_a_search_without_a_finished_trial_is_an_error(tmp_path: Path, total: int, sentence: str):
    settings = SearchConfig("own", RandomSampler, NopPruner(), n_trials=total)
    with pytest.raises(UserError, match=sentence):
        search(settings, tmp_path, RATE, {"monitor": "bleu4"}, lambda runs: [ValueError("of the run")])


@pytest.mark.parametrize("other", [{"cache": "here", "seed": "4"}, {"attention": "hard"}])
def test_a_study_of_other_settings_is_refused(tmp_path: Path, other: dict[str, str]):
    worker(tmp_path, seed="3")
    with pytest.raises(UserError, match=r"was started with other values of .*(seed|attention)"):
        worker(tmp_path, **other)
    worker(tmp_path, seed="3", cache="elsewhere")


def test_a_folder_without_a_study_is_reported(tmp_path: Path):
    with pytest.raises(UserError, match=r"has no study.db; give the folder of a search"):
        find_study(tmp_path, None)


@pytest.mark.parametrize("url", ["postgresql://me:secret@localhost:1/x", "nosuch://me:secret@host/x"])
def test_a_password_is_not_reported(tmp_path: Path, url: str):
    with pytest.raises(UserError) as error:
        open_storage(url, tmp_path)
    assert "secret" not in str(error.value)


def test_a_study_with_any_damaged_page_is_read_or_reported(tmp_path: Path):
    storage = open_storage(None, tmp_path)
    study = optuna.create_study(study_name="own", storage=storage)
    study.tell(study.ask(RATE), 1.0)
    storage.engine.dispose()  # type: ignore[attr-defined]
    content = (tmp_path / "study.db").read_bytes()
    damaged = 0
    for page in range(0, len(content), 4096):
        (tmp_path / "study.db").write_bytes(content[:page] + b"\xff" * 4096 + content[page + 4096 :])
        try:
            with storage_errors(tmp_path):
                find_study(tmp_path, None).get_trials()
        except UserError:  # and no other error
            damaged += 1
    assert damaged > 0  # the first page at least, which has the header


SPACE = {
    "optimizer.lr": FloatDistribution(1e-4, 1e-1, log=True),
    "attention/score": CategoricalDistribution(["dot", "cosine"]),
}


def made_trial(state: TrialState, value: float | None, rate: float, **attributes: object) -> FrozenTrial:
    settings = {"dataset.root": "'a folder'", "optimizer.lr": str(rate), "attention/score": "dot"}
    return create_trial(
        state=state,
        value=value,
        params={"optimizer.lr": rate, "attention/score": "dot"},
        distributions=SPACE,
        user_attrs={"settings": settings, **attributes},
    )


@pytest.fixture
def study() -> optuna.Study:
    study = optuna.create_study(study_name="mine", direction="maximize")
    study.set_user_attr("space", {"monitor": "bleu4"})
    study.add_trial(made_trial(TrialState.COMPLETE, 20.0, 0.001))
    study.add_trial(made_trial(TrialState.COMPLETE, 30.0, 0.01))
    study.add_trial(made_trial(TrialState.PRUNED, 4.0, 0.0001))
    study.add_trial(made_trial(TrialState.FAIL, None, 0.1, error="the loss of step 3 is nan <&>"))
    study.add_trial(made_trial(TrialState.RUNNING, None, 0.02))
    return study


def test_the_screen_has_the_best_first_what_failed_and_the_command_of_the_best(
    study: optuna.Study, capsys: pytest.CaptureFixture[str]
):
    report(study, Path("runs/mine-study"))
    printed = capsys.readouterr().out
    assert printed.startswith("mine: 2 complete, 1 pruned, 1 fail, 1 running")
    rows = re.findall(r"│ (\d) +│ ([\d.]+) +│ (\S+ \S+)", printed)
    assert rows == [
        ("1", "30.000", "optimizer.lr=0.01 attention/score=dot"),
        ("0", "20.000", "optimizer.lr=0.001 attention/score=dot"),
    ]
    assert "runs/mine-study/3 failed: the loss of step 3 is nan <&>" in printed
    command = """showattendtell train 'dataset.root='"'"'a folder'"'"'' optimizer.lr=0.01 attention/score=dot"""
    assert printed.endswith(f"  {command}\n")
