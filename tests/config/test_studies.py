"""Which trials a study has, which is next, and who runs it."""

import multiprocessing
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import optuna
import pytest
from omegaconf import OmegaConf
from optuna.trial import TrialState, create_trial
from slow_cases import slow_after

from showattendtell.config.compose import config_folder
from showattendtell.config.study import (
    FILE,
    STUDY_FILE,
    CurrentTrial,
    Study,
    find_study,
    open_storage,
    write_study_file,
)
from showattendtell.errors import UserError
from showattendtell.report import report_study
from showattendtell.runtime.files import LOCK, lock_file

RANDOM = {"_target_": "optuna.samplers.RandomSampler"}
GP = {"_target_": "optuna.samplers.GPSampler", "n_startup_trials": 4}
TPE = {"_target_": "optuna.samplers.TPESampler", "n_startup_trials": 4}
NONE = {"_target_": "optuna.pruners.NopPruner"}
MIXED = ["dataset=shapes", "optimizer=adam,rmsprop", "optimizer.lr=tag(log, interval(1e-4, 1e-2))"]
MIXED += ["++decoder.dropout=interval(0.0, 0.5)", "decoder.hidden_dim=range(32, 129, step=32)"]


def study(folder: Path, *arguments: str, sampler: Any = RANDOM, storage: str | None = "journal") -> Study:
    """In a file of the folder, which takes less time than the database that None stands for."""
    place = str(folder / storage) if storage else None
    return Study("own", place, folder, OmegaConf.create(sampler), OmegaConf.create(NONE), 1, list(arguments or MIXED))


def take_one(study: Study, total: int = 99) -> tuple[int, list[str]]:
    """The number of the trial and the arguments of its run."""
    [taken] = study.take(1, total).items()
    return taken


def run_all(study: Study, total: int, returned: Callable[[Any], Any] = lambda trial: float(trial.number)) -> None:
    while taken := study.take(1, total):
        [number] = taken
        study.end(number, returned(study.trials()[number]))


def states(study: Study) -> list[str]:
    return [trial.state.name for trial in study.trials()]


def in_fork(work: Callable[[], None]) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    return process.exitcode


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_run_is_given_the_settings_of_all_the_values_of_its_trial_and_its_folder(tmp_path: Path):
    own = study(tmp_path)
    _, overrides = take_one(own)
    params = own.trials()[0].params
    assert params.keys() == {"optimizer", "optimizer.lr", "decoder.dropout", "decoder.hidden_dim"}
    assert overrides == [
        "dataset=shapes",
        f"optimizer={params['optimizer']}",
        f"optimizer.lr={params['optimizer.lr']}",
        f"++decoder.dropout={params['decoder.dropout']}",
        f"decoder.hidden_dim={params['decoder.hidden_dim']}",
        "hydra.sweep.subdir=0",
    ]
    assert 1e-4 <= params["optimizer.lr"] <= 1e-2
    assert params["optimizer.lr"] == float(f"{params['optimizer.lr']:.4g}")
    assert params["decoder.hidden_dim"] in (32, 64, 96, 128)


def test_a_study_continues_to_its_number_of_trials_and_no_further(tmp_path: Path):
    run_all(study(tmp_path), 3)
    again = study(tmp_path)
    assert again.take(5, 3) == {}
    assert list(again.take(5, 5)) == [3, 4]


@pytest.mark.parametrize("sampler", [RANDOM, TPE, GP], ids=["random", "tpe", "gp"])
def test_what_is_proposed_depends_on_the_seed_and_the_trials_and_not_on_who_continues(tmp_path: Path, sampler: Any):
    uninterrupted = study(tmp_path / "uninterrupted", sampler=sampler)
    run_all(uninterrupted, 6)
    for total in (2, 5, 6):
        run_all(study(tmp_path / "parts", sampler=sampler), total)
    params = [trial.params for trial in study(tmp_path / "parts").trials()]
    assert params == [trial.params for trial in uninterrupted.trials()]


@pytest.mark.parametrize("sampler", [RANDOM, TPE, GP], ids=["random", "tpe", "gp"])
def test_few_values_are_each_tried_once_and_then_there_is_nothing_left(tmp_path: Path, sampler: Any):
    own = study(tmp_path, "seed=1,2,3", "++decoder.tie_embeddings=true,false", sampler=sampler)
    run_all(own, 99, lambda trial: 1.0)
    tried = {(trial.params["seed"], trial.params["decoder.tie_embeddings"]) for trial in own.trials()}
    assert tried == {(seed, tied) for seed in (1, 2, 3) for tied in (True, False)}
    assert len(own.trials()) == 6


@pytest.mark.parametrize("sampler", [TPE, GP], ids=["tpe", "gp"])
def test_trials_taken_together_differ_from_each_other(tmp_path: Path, sampler: Any):
    own = study(tmp_path, sampler=sampler)
    run_all(own, 5)
    points = [own.trials()[number].params for number in own.take(4, 99)]
    assert all(point not in points[:number] for number, point in enumerate(points))


def test_a_sampler_comes_closer_to_the_best_point_than_chance_does(tmp_path: Path):
    def best(sampler: Any) -> float:
        own = study(tmp_path / str(sampler), "decoder.dropout=interval(0.0, 1.0)", sampler=sampler)
        run_all(own, 15, lambda trial: -abs(trial.params["decoder.dropout"] - 0.7))
        return max(trial.value for trial in own.trials())

    assert best(GP) > max(best(RANDOM), -0.01)


@pytest.mark.parametrize(
    ("returned", "fault"),
    [(float("nan"), "it returned nan"), (float("inf"), "it returned inf"), (None, "it returned None")],
)
def test_a_trial_without_a_number_has_failed_and_counts(tmp_path: Path, returned: Any, fault: str):
    own = study(tmp_path)
    run_all(own, 3, lambda trial: returned if trial.number == 1 else 1.0)
    assert states(own) == ["COMPLETE", "FAIL", "COMPLETE"]
    assert own.trials()[1].user_attrs["error"] == fault


@pytest.mark.parametrize("storage", ["journal", None], ids=["file", "database"])
def test_a_trial_whose_worker_was_killed_is_run_again_in_its_folder_with_its_values(
    tmp_path: Path, storage: str | None
):
    def killed() -> None:
        take_one(study(tmp_path, storage=storage))
        die()

    run_all(study(tmp_path, storage=storage), 2)
    assert in_fork(killed) == -signal.SIGKILL
    own = study(tmp_path, storage=storage)
    before = own.trials()[2]
    assert before.state == TrialState.RUNNING
    again, overrides = take_one(own)
    assert again == 2
    assert overrides[-2:] == ["hydra.sweep.subdir=2", "resume=true"]
    assert f"optimizer.lr={before.params['optimizer.lr']}" in overrides
    own.end(2, 1.0)
    run_all(own, 4)
    assert states(own) == ["COMPLETE"] * 4


def test_a_trial_that_is_cut_off_again_and_again_has_failed(tmp_path: Path):
    def killed() -> None:
        take_one(study(tmp_path))
        die()

    for _ in range(3):
        in_fork(killed)
    own = study(tmp_path)
    assert take_one(own)[0] == 1
    assert own.trials()[0].user_attrs["error"] == "it was interrupted 3 times"


def test_a_worker_leaves_the_trials_of_others_alone_as_long_as_they_live(tmp_path: Path):
    own = study(tmp_path)
    taken, _ = take_one(own)

    def other() -> None:
        another = study(tmp_path)
        assert list(another.take(9, 3)) == [1, 2]
        assert another.trials()[0].params != another.trials()[1].params

    assert in_fork(other) == 0
    own.end(taken, 1.0)
    assert list(own.take(9, 3)) == [1, 2]


def test_a_trial_that_a_scheduler_still_runs_is_not_taken_from_it(tmp_path: Path):
    in_fork(lambda: (take_one(study(tmp_path)), die()))
    training = lock_file(tmp_path / "0" / LOCK)

    def other() -> None:
        assert take_one(study(tmp_path))[0] == 1

    assert in_fork(other) == 0
    training.close()
    assert take_one(study(tmp_path))[0] == 0


def test_a_trial_of_a_machine_whose_folders_are_not_seen_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    journal = str(tmp_path / "journal")
    monkeypatch.setattr("socket.gethostname", lambda: "there")
    there = study(tmp_path / "there", storage=journal)
    take_one(there)
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    here = study(tmp_path / "here", storage=journal)
    assert take_one(here)[0] == 1
    assert [trial.user_attrs["host"] for trial in here.trials()] == ["there", "here"]


@pytest.mark.parametrize(("total", "expected"), [(9, [2]), (1, [])])
def test_of_two_machines_that_are_as_fast_one_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total: int, expected: list[int]
):
    """Both propose the same point, which is the last one that the study is to have or not."""
    journal = str(tmp_path / "journal")
    here, there = (study(tmp_path / name, storage=journal) for name in ("here", "there"))
    propose = here._propose

    def slowly(token: str) -> Any:
        proposed = propose(token)
        if not there.trials():
            take_one(there)
        return proposed

    monkeypatch.setattr(here, "_propose", slowly)
    assert list(here.take(1, total)) == expected
    assert states(here) == ["RUNNING", "FAIL", "RUNNING"][: 2 + len(expected)]
    first, second, *third = (trial.params for trial in here.trials())
    assert first == second
    assert first not in third


def write_study(folder: Path) -> list[str]:
    """Write a database that `report` can show; return its tables."""
    folder.mkdir(exist_ok=True)
    shown = optuna.create_study(study_name="own", storage=open_storage(None, folder), direction="maximize")
    shown.set_user_attr("space", {"monitor": "bleu4"})
    space = {"x": optuna.distributions.FloatDistribution(0, 1)}
    for x in (0.25, 0.5):
        done = create_trial(params={"x": x}, distributions=space, value=x, intermediate_values={1: x})
        done.set_user_attr("settings", {"x": x})
        shown.add_trial(done)
    write_study_file(folder, "own", None)
    with closing(sqlite3.connect(folder / FILE)) as database:
        return [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


def report_error(folder: Path) -> str:
    """The error of `report`; empty if it shows the study."""
    try:
        report_study(folder, None)
    except UserError as error:
        return str(error)
    return ""


def error_after(folder: Path, *statements: str) -> str:
    """The error of `report` after changes of the database."""
    with closing(sqlite3.connect(folder / FILE)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
    return report_error(folder)


def test_a_study_with_any_damaged_page_is_read_or_reported(tmp_path: Path):
    write_study(tmp_path)
    file, page = tmp_path / FILE, 4096
    whole = file.read_bytes()
    assert report_error(tmp_path) == ""
    for start in range(0, len(whole), page):
        file.write_bytes(whole[:start] + b"\xa5" * page + whole[start + page :])
        message = report_error(tmp_path)
        assert not message or "cannot be" in message or "has no study own" in message


@pytest.mark.parametrize("statement", ["DROP TABLE {}", "DELETE FROM {}"])
def test_a_study_without_a_table_or_its_rows_is_read_or_reported(tmp_path: Path, statement: str):
    errors = []
    for table in write_study(tmp_path / "whole"):
        folder = shutil.copytree(tmp_path / "whole", tmp_path / table)
        errors.append(error_after(folder, statement.format(table)))
    assert sum("cannot be read" in error or "has no study own" in error for error in errors) > 3


@pytest.mark.slow
@pytest.mark.parametrize("value", ["NULL", "'x'", "x'ff00'", "9e999", "9223372036854775807", "'[1]'"])
def test_a_study_with_any_strange_column_is_read_or_reported(tmp_path: Path, value: str):
    errors = []
    for table in write_study(tmp_path / "whole"):
        with closing(sqlite3.connect(tmp_path / "whole" / FILE)) as database:
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        for column in columns:
            folder = shutil.copytree(tmp_path / "whole", tmp_path / f"{table}-{column}")
            with suppress(sqlite3.IntegrityError):
                errors.append(error_after(folder, f"UPDATE {table} SET {column} = {value}"))
    assert sum("cannot be read" in error for error in errors) > 3


@pytest.mark.parametrize("condition", ["", "WHERE n < 0"], ids=["rows", "no row"])
def test_a_query_without_end_is_stopped(tmp_path: Path, condition: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("showattendtell.report.SECONDS", 2)
    write_study(tmp_path)
    endless = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n, 'own' FROM r"
    view = f"CREATE VIEW studies (study_id, study_name) AS {endless} {condition}"
    error = error_after(tmp_path, "ALTER TABLE studies RENAME TO former", view)
    assert "cannot be read (TimeoutError" in error or "cannot be read (MemoryError" in error


def test_a_locked_study_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run_all(study(tmp_path, storage=None), 1)
    monkeypatch.setattr("showattendtell.config.study.PATIENCE", 0.1)
    with closing(sqlite3.connect(tmp_path / FILE)) as held:
        held.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UserError, match="database is locked"):
            study(tmp_path, storage=None)


def test_a_folder_that_is_no_trial_of_the_study_is_not_written_over(tmp_path: Path):
    (tmp_path / "0").mkdir()
    (tmp_path / "0/best.ckpt").touch()
    with pytest.raises(UserError, match="0 does not belong to the study own; move it"):
        study(tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        [*MIXED[:-1], "decoder.hidden_dim=32"],
        [*MIXED, "trainer.max_epochs=1"],
        ["dataset=shapes", "optimizer=adam", *MIXED[2:]],
        ["dataset=custom", *MIXED[1:-1], f"++{MIXED[-1]}"],
    ],
)
def test_a_study_of_another_space_is_refused(tmp_path: Path, arguments: list[str]):
    study(tmp_path)
    with pytest.raises(UserError, match="the study own was started with other values of"):
        study(tmp_path, *arguments)


def test_ranges_places_and_what_continues_may_change(tmp_path: Path):
    run_all(study(tmp_path), 2)
    wider = [*MIXED[:2], "optimizer.lr=tag(log, interval(1e-5, 1e-1))", *MIXED[3:]]
    own = study(tmp_path, *wider, "cache=elsewhere", "resume=true", sampler=TPE)
    run_all(own, 6)
    assert states(own) == ["COMPLETE"] * 6


def test_nothing_to_search_is_reported(tmp_path: Path):
    with pytest.raises(UserError, match="there is nothing to search"):
        study(tmp_path, "dataset=shapes")


@pytest.mark.parametrize(
    ("storage", "sentence"),
    [
        ("postgresql://localhost:1/none", "the storage postgresql://localhost:1/none cannot be opened: .*refused"),
        ("nonsense://x", "the storage nonsense://x cannot be opened: Can't load plugin"),
        ("mysql+pymysql://x/y", "the storage mysql.* needs a package"),
    ],
)
def test_a_storage_that_cannot_be_opened_is_reported(tmp_path: Path, storage: str, sentence: str):
    with pytest.raises(UserError, match=sentence):
        open_storage(storage, tmp_path)


STAGES = "stages={words: [], reward: ['reward=cider']}"


@pytest.mark.parametrize(
    ("given", "direction"),
    slow_after(
        3,
        [
            (["variant=arctic", "seed=1,2"], "MINIMIZE"),
            (["variant=arctic,paper", "monitor=bleu4"], "MAXIMIZE"),
            (["experiment=paper/flickr8k_soft", STAGES, "seed=1,2"], "MAXIMIZE"),
            (["monitor=nll", "seed=1,2"], "MINIMIZE"),
            (["experiment=paper/flickr8k_soft,paper/flickr8k_hard", "features.views=1"], "MINIMIZE"),
            (["variant=arctic,paper", STAGES], "MAXIMIZE"),
            (["dataset=shapes", "decoder.dropout=interval(0.1, 0.2)"], "MAXIMIZE"),
        ],
    ),
)
def test_the_best_is_where_the_figure_that_trials_go_by_is_best(tmp_path: Path, given: list[str], direction: str):
    assert study(tmp_path, *given).study.direction.name == direction


def test_trials_of_different_figures_are_refused(tmp_path: Path):
    output = "metrics, nll with variant=arctic and bleu4 with variant=paper, and cannot be compared; set monitor=NAME"
    with pytest.raises(UserError, match=output):
        study(tmp_path, "dataset=shapes", "seed=1,2", "variant=arctic,paper")


def test_a_study_keeps_to_the_figure_that_it_began_with(tmp_path: Path):
    run_all(study(tmp_path, "dataset=shapes", "seed=1,2,3"), 1)
    with pytest.raises(UserError, match="the study own was started with other values of monitor; give the same values"):
        study(tmp_path, "dataset=shapes", "seed=1,2,3", "monitor=nll")


def test_a_folder_may_have_any_name_and_its_card_says_where_the_study_is(tmp_path: Path):
    folder = tmp_path / "{a} b%20"
    run_all(study(folder, storage=None), 1)
    assert (folder / FILE).exists()
    assert find_study(folder, None).study_name == "own"
    with pytest.raises(UserError, match="the storage of .* has no study own"):
        find_study(folder, f"sqlite:///{tmp_path}/another.db")
    with pytest.raises(UserError, match=r"has no study\.json; give the folder of a search"):
        find_study(tmp_path, None)


def test_the_card_of_a_study_has_no_password(tmp_path: Path):
    write_study_file(tmp_path, "own", "postgresql://me:secret@host/name")
    assert "secret" not in (tmp_path / STUDY_FILE).read_text()
    assert "me:***@host/name" in (tmp_path / STUDY_FILE).read_text()


MEDIAN = {"_target_": "optuna.pruners.MedianPruner", "n_startup_trials": 1}


def test_a_trial_below_the_median_is_hopeless_and_is_reported_as_pruned(tmp_path: Path):
    own = study(tmp_path, storage=None)
    for number, figure in enumerate([5.0, 6.0, 1.0]):
        take_one(own)
        trial = CurrentTrial(open_storage(None, tmp_path), "own", OmegaConf.create(MEDIAN), number)
        trial.report(figure, 1)
        assert trial.should_prune() == (figure == 1.0)
        own.end(number, figure)
    assert states(own) == ["COMPLETE", "COMPLETE", "PRUNED"]
    assert own.trials()[2].value == 1.0
    assert all(trial.user_attrs["seconds"] >= 0 for trial in own.trials())


def test_hyperband_ends_some_trials_early_and_lets_the_best_come_to_their_end(tmp_path: Path):
    hyperband = OmegaConf.create({"_target_": "optuna.pruners.HyperbandPruner"})
    own = study(tmp_path, sampler=TPE)
    for number in range(20):
        take_one(own)
        trial = CurrentTrial(open_storage(str(tmp_path / "journal"), tmp_path), "own", hyperband, number)
        for step in range(1, 10):
            trial.report(float(number % 5), step)
            if trial.should_prune():
                break
        own.end(number, float(number % 5))
    ended = [trial for trial in own.trials() if trial.state == TrialState.PRUNED]
    assert ended
    assert all(len(trial.intermediate_values) < 9 for trial in ended)
    assert max(trial.value for trial in own.trials() if trial.state == TrialState.COMPLETE) == 4.0


def test_what_is_reported_twice_counts_once_and_the_time_continues(tmp_path: Path):
    own = study(tmp_path, storage=None)
    take_one(own)
    pruner, storage = OmegaConf.create(MEDIAN), open_storage(None, tmp_path)
    CurrentTrial(storage, "own", pruner, 0).report(1.0, 1)
    with closing(sqlite3.connect(tmp_path / FILE)) as database, database:
        database.execute("update trial_user_attributes set value_json = '100.0' where key = 'seconds'")
    again = CurrentTrial(open_storage(None, tmp_path), "own", pruner, 0)
    again.report(1.5, 1)
    again.report(2.0, 2)
    [trial] = own.trials()
    assert trial.intermediate_values == {1: 1.5, 2: 2.0}
    assert 100 <= trial.user_attrs["seconds"] < 200


@pytest.mark.parametrize(
    ("searched", "number"),
    [
        (["seed=1,2,2"], 2),
        (["decoder.dropout=interval(0.1, 0.1)"], 1),
        (["decoder.dropout=interval(0.10001, 0.10003)"], 3),
    ],
)
def test_a_search_ends_when_all_that_can_be_distinguished_was_tried(tmp_path: Path, searched: list[str], number: int):
    """Values are rounded to four digits, but not beyond an interval's ends."""
    own = study(tmp_path, "dataset=shapes", *searched)
    run_all(own, total=9)
    assert 1 <= len(own.trials()) <= number
    assert len({str(trial.params) for trial in own.trials()}) == len(own.trials())


@pytest.mark.parametrize("url", ["postgresql://me:secret@localhost:1/none", "nonsense://me:secret@x/y"])
def test_a_password_is_not_reported(url: str, tmp_path: Path):
    with pytest.raises(UserError, match=r"//me:\*\*\*@") as error:
        open_storage(url, tmp_path)
    assert "secret" not in str(error.value)


def test_the_options_of_a_search_may_be_in_a_folder_of_the_user_s_own(tmp_path: Path):
    (tmp_path / "own/attention").mkdir(parents=True)
    option = Path(config_folder(), "attention/soft.yaml").read_text()
    (tmp_path / "own/attention/mine.yaml").write_text(option)
    searchpath = f'hydra.searchpath=["file://{tmp_path}/own"]'
    line = ["dataset=shapes", "attention=soft,mine", STAGES]
    nodes = [OmegaConf.create(node) for node in (RANDOM, NONE)]
    own = Study("own", str(tmp_path / "journal"), tmp_path, *nodes, 1, line, [searchpath])
    assert own.study.direction.name == "MAXIMIZE"
    run_all(own, 2)
    assert {trial.params["attention"] for trial in own.trials()} == {"soft", "mine"}
    assert {trial.user_attrs["settings"]["hydra.searchpath"] for trial in own.trials()} == {
        searchpath.partition("=")[2]
    }
