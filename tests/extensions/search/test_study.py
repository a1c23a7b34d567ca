"""Studies: which trials a worker takes, resumes and ends, what may be stored by others, and the report."""

import multiprocessing
import os
import re
import signal
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import optuna
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner, MedianPruner
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from showattendtell.errors import UserError
from showattendtell.extensions.search import study as studies
from showattendtell.extensions.search.study import (
    FILE,
    MOST_ATTEMPTS,
    Worker,
    current_trial,
    distribution_of,
    find_study,
    open_storage,
    report,
)
from showattendtell.runtime.files import LAST

RATE: dict[str, BaseDistribution] = {"optimizer.lr": FloatDistribution(1e-4, 1e-1, log=True)}
SEEDS: dict[str, BaseDistribution] = {"seed": CategoricalDistribution([1, 2, 3])}


def worker(
    folder: Path,
    space: dict[str, BaseDistribution] = RATE,
    total: int = 99,
    pruner: BasePruner | None = None,
    **fixed: str,
) -> Worker:
    storage = open_storage(str(folder / "journal"), folder)
    study = optuna.create_study(
        study_name="own",
        storage=storage,
        direction="maximize",
        load_if_exists=True,
        pruner=pruner,
        sampler=RandomSampler(3),
    )
    return Worker(study, folder, space, fixed, "bleu4", total)


def in_fork(work: Callable[[], None]) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    return process.exitcode


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("seed=1,2,3", CategoricalDistribution([1, 2, 3])),
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


def test_a_log_scale_of_a_range_is_refused():
    with pytest.raises(UserError, match="only an interval has a log scale"):
        distribution_of(OverridesParser.create().parse_override("decoder.hidden_dim=tag(log,range(1,1000))"))


def test_a_study_has_its_number_of_trials_and_no_more(tmp_path: Path):
    first = worker(tmp_path, total=3)
    claimed = first.take(2)
    for number in claimed:
        first.end(number, 1.0)
    last = worker(tmp_path, total=3)
    assert list(last.take(5)) == [2]
    last.end(2, 1.0)
    assert worker(tmp_path, total=3).take(1) == worker(tmp_path, total=2).take(1) == {}


def test_few_values_are_each_tried_once_by_all_workers_together(tmp_path: Path):
    for _ in range(2):  # one process after the other
        own = worker(tmp_path, SEEDS)
        for number in own.take(2):
            own.end(number, 1.0)
    trials = worker(tmp_path, SEEDS).study.trials
    assert sorted(trial.params["seed"] for trial in trials) == [1, 2, 3]
    assert worker(tmp_path, SEEDS).take(1) == {}


def test_values_beyond_the_former_bounds_are_tried_too(tmp_path: Path):
    for bounds in ((1, 3), (3, 5)):
        own = worker(tmp_path, {"seed": IntDistribution(*bounds)})
        for number in own.take(9):
            own.end(number, 1.0)
    assert [trial.params["seed"] for trial in own.study.trials] == [1, 2, 3, 4, 5]


def test_a_trial_of_a_killed_worker_is_run_again_in_its_folder_with_its_values(tmp_path: Path):
    def begin() -> None:
        worker(tmp_path).take(1)
        (tmp_path / "0" / LAST).touch()
        die()

    assert in_fork(begin) == -signal.SIGKILL
    resumed = worker(tmp_path).take(1)
    assert list(resumed) == [0]
    assert resumed[0][-1] == "resume=true"
    [trial] = find_study(tmp_path, str(tmp_path / "journal")).trials
    assert resumed[0][0] == f"optimizer.lr={trial.params['optimizer.lr']}"


def test_the_trials_of_a_living_worker_are_left_to_it(tmp_path: Path):
    def take(number: int) -> None:
        os._exit(list(worker(tmp_path).take(1)) != [number])

    holder = worker(tmp_path)
    holder.take(1)
    assert in_fork(lambda: take(1)) == 0
    assert list(holder.take(1)) == [1]  # its worker is gone


def test_a_trial_that_is_interrupted_again_and_again_has_failed(tmp_path: Path):
    for _ in range(MOST_ATTEMPTS):
        in_fork(lambda: (worker(tmp_path).take(1), die())[0])
    assert list(worker(tmp_path).take(1)) == [1]
    first = find_study(tmp_path, str(tmp_path / "journal")).trials[0]
    assert (first.state, first.user_attrs["error"]) == (TrialState.FAIL, "it was interrupted 3 times")


@pytest.mark.parametrize("name", ["hydra.run.dir", "seed"])
def test_a_trial_with_values_that_the_search_cannot_have_is_not_run(tmp_path: Path, name: str):
    """They come from a database, and would be arguments."""
    own = worker(tmp_path)
    space = {name: CategoricalDistribution(["x"])}
    own.study.add_trial(create_trial(state=TrialState.RUNNING, params={name: "x"}, distributions=space))
    (tmp_path / "0").mkdir()
    [settings] = own.take(1).values()
    assert settings[0].startswith("optimizer.lr=")
    assert own.study.trials[0].state == TrialState.FAIL


def test_a_study_with_other_choices_of_a_setting_is_reported(tmp_path: Path):
    own = worker(tmp_path, {"seed": CategoricalDistribution([1, 2])})
    space = {"seed": CategoricalDistribution(["1 hydra.run.dir=x"])}
    own.study.add_trial(create_trial(value=1.0, params={"seed": "1 hydra.run.dir=x"}, distributions=space))
    with pytest.raises(UserError, match="the storage"):
        own.take(1)


@pytest.mark.parametrize("returned", [None, float("nan"), "text"])
def test_a_trial_without_a_finite_number_has_failed_and_counts(tmp_path: Path, returned: Any):
    own = worker(tmp_path, total=1)
    [number] = own.take(1)
    own.end(number, returned)
    assert own.study.trials[0].state == TrialState.FAIL
    assert own.take(1) == {}


@pytest.mark.parametrize("other", [{"cache": "here", "seed": "4"}, {"attention": "hard"}])
def test_a_study_of_other_settings_is_refused(tmp_path: Path, other: dict[str, str]):
    worker(tmp_path, seed="3")
    with pytest.raises(UserError, match=r"was started with other values of .*(seed|attention)"):
        worker(tmp_path, **other)
    worker(tmp_path, {"optimizer.lr": FloatDistribution(1e-3, 1e-2, log=True)}, seed="3", cache="elsewhere")


def trained(own: Worker, values: list[float]) -> int:
    """The number of validations of a trial that is pruned when its study says so."""
    [number] = own.take(1)
    for step, value in enumerate(values, start=1):
        trial = current_trial(own.study, number)
        trial.report(value, step)
        if trial.should_prune():
            trial.set_user_attr("pruned", True)
            break
    own.end(number, values[step - 1])
    return step


def test_a_trial_below_the_median_is_pruned(tmp_path: Path):
    own = worker(tmp_path, pruner=MedianPruner(n_startup_trials=2, n_warmup_steps=2))
    assert trained(own, [3.0, 4.0, 5.0]) == trained(own, [2.0, 3.0, 4.0]) == 3
    assert trained(own, [1.0, 1.0, 1.0]) == 2
    assert own.study.trials[2].state == TrialState.PRUNED
    assert own.study.best_trial.number == 0


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
            find_study(tmp_path, None)
        except UserError:  # and no other error
            damaged += 1
    assert damaged > 0  # the first page at least, which has the header


SPACE = {
    "optimizer.lr": FloatDistribution(1e-4, 1e-1, log=True),
    "attention/score": CategoricalDistribution(["dot", "cosine"]),
}


def made_trial(
    state: TrialState, value: float | None, rate: float, seconds: float = 0, **attributes: object
) -> FrozenTrial:
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


def by_bleu() -> optuna.Study:
    study = optuna.create_study(study_name="mine", direction="maximize")
    study.set_user_attr("space", {"monitor": "bleu4"})
    return study


@pytest.fixture
def study() -> optuna.Study:
    study = by_bleu()
    study.add_trial(made_trial(TrialState.COMPLETE, 20.0, 0.001, seconds=60.0))
    study.add_trial(made_trial(TrialState.COMPLETE, 30.0, 0.01, seconds=7200.0))
    study.add_trial(made_trial(TrialState.PRUNED, 4.0, 0.0001, seconds=12.0))
    study.add_trial(made_trial(TrialState.FAIL, None, 0.1, error="the loss of step 3 is nan <&>"))
    study.add_trial(made_trial(TrialState.RUNNING, None, 0.02))
    return study


def test_the_screen_has_the_best_first_what_failed_and_the_command_of_the_best(
    study: optuna.Study, capsys: pytest.CaptureFixture[str]
):
    report(study, Path("runs/mine-study"))
    printed = capsys.readouterr().out
    assert printed.startswith("mine: 2 finished, 1 pruned, 1 failed, 1 running")
    rows = re.findall(r"│ (\d) +│ ([\d.]+) +│ ([\d.]+ \w+)", printed)
    assert rows == [("1", "30.000", "2.0 h"), ("0", "20.000", "60 s")]
    assert "runs/mine-study/3 failed: the loss of step 3 is nan <&>" in printed
    command = """showattendtell train 'dataset.root='"'"'a folder'"'"'' optimizer.lr=0.01 attention/score=dot"""
    assert printed.endswith(f"  {command}\n")


def test_a_study_that_has_just_begun_has_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    report(by_bleu(), tmp_path)
    assert capsys.readouterr().out.startswith("mine: no trials")


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
        pytest.param("pipe", "takes more than 1 seconds", marks=pytest.mark.slow),
    ],
)
def test_a_damaged_study_is_reported_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, reason: str
):
    storage = tmp_path / "pipe"
    os.mkfifo(storage)
    study = optuna.create_study(study_name=tmp_path.name, storage=open_storage(None, tmp_path))
    study.set_user_attr("space", {"monitor": "bleu4"})
    study.add_trial(made_trial(TrialState.COMPLETE, 20.0, 0.001))
    if change != "pipe":
        with sqlite3.connect(tmp_path / FILE) as database:
            database.executescript(change)
    if "seconds" in reason:
        monkeypatch.setattr(studies, "SECONDS", 1)
    with pytest.raises(UserError, match=re.escape(reason)):
        studies.report_study(tmp_path, str(storage) if change == "pipe" else None)
