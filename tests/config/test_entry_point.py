"""How a command ends where it can't run, that it trusts whom its user names, and how it takes places without a name."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from slow_cases import slow_after

from showattendtell.config.entry_point import NAMES_CLASS
from showattendtell.runtime.files import LOCK, lock_file

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.mark.parametrize(
    ("setting", "word"),
    slow_after(
        1,
        [
            ("hydra.run.dir=file/run", "file/run cannot be written (File exists); set hydra.run.dir to another"),
            ("hydra.job.env_set.A=1", "hydra.job.env_set.A=1 concerns the runs of a sweep (-m); leave it out"),
            ("hydra/job_logging=stdout", "hydra/job_logging=stdout concerns the runs of a sweep (-m); leave it out"),
            ("hydra/launcher=joblib", "hydra/launcher=joblib concerns the runs of a sweep (-m); leave it out"),
            ("--config-name=foo", "config_name"),
            ("--cfg=job weight_decay=0.1", "there is no setting weight_decay; did you mean 'optimizer.weight_decay'"),
            ("-m seed=range(5,1)", "seed=range(5,1) has no values"),
            ("-m seed=range(1,5,step=0)", "seed=range(1,5,step=0) has no values"),
        ],
    ),
)
def test_a_run_that_hydra_cannot_start_ends_in_a_sentence(
    run_forked: Callable[..., Any], tmp_path: Path, setting: str, word: str
):
    (tmp_path / "file").write_text("in the way")
    done = run_forked("train", *setting.split(), folder=tmp_path)
    assert done.status == 2
    assert done.err.startswith("error: ")
    assert word in done.err
    assert len(done.err.splitlines()) == 1


NAMING = ["dataset._target_=own.Data", "--dataset._target_", "metrics=[own.Brevity]", "--metrics", "--config-dir=own"]


@pytest.mark.parametrize(
    ("argument", "may_name"),
    [*((each, True) for each in NAMING), ("metrics=[meteor]", False), ("cache=own.Data", False)],
)
def test_classes_of_the_working_directory_are_looked_for_where_one_may_be_named(argument: str, may_name: bool):
    assert bool(NAMES_CLASS.search(argument)) is may_name


FAILING = """
class Data:
    def __init__(self, root="", **sizes):
        try:
            {}["cause"]
        except KeyError:
            raise ValueError("what went wrong") from None
"""


@pytest.mark.parametrize("how", slow_after(1, ["--debug", "environment"]))
def test_debugging_shows_the_traceback_and_what_caused_it(run_forked: Callable[..., Any], tmp_path: Path, how: str):
    """Of a class of the user's own that the command line names."""
    (tmp_path / "own.py").write_text(FAILING)
    path = f"sys.path.insert(0, {str(tmp_path)!r})"
    arguments, environment = (["--debug"], {}) if how == "--debug" else ([], {"HYDRA_FULL_ERROR": "1"})
    done = run_forked("prepare", "dataset._target_=own.Data", *arguments, folder=tmp_path, first=path, **environment)
    assert done.status == 2
    assert "KeyError: 'cause'" in done.err
    assert "own.py" in done.err
    assert done.err.splitlines()[-1] == "error: dataset: what went wrong"


LIGHT = "light_command.py"
RUN_LIGHT = f"runpy.run_path({str(FIXTURES / LIGHT)!r}, run_name='__main__')"


def test_a_run_that_fails_before_it_writes_anything_leaves_no_folder(run_light: Callable[..., Any], tmp_path: Path):
    done = run_light(RUN_LIGHT, LIGHT, "seed=2", folder=tmp_path)
    assert (done.status, done.err) == (2, "error: a seed of 2 is a fault; take another\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("own", slow_after(1, [LOCK, ".hydra/notes.txt", "notes.txt"]))
def test_a_run_that_fails_leaves_a_folder_that_holds_something_else(
    run_light: Callable[..., Any], tmp_path: Path, own: str
):
    """Also the lock of another run that is starting."""
    path = tmp_path / "mine" / own
    path.parent.mkdir(parents=True)
    held = lock_file(path) if own == LOCK else path.open("w")
    assert run_light(RUN_LIGHT, LIGHT, "seed=2", "hydra.run.dir=mine", folder=tmp_path).status == 2
    assert path.exists()
    assert held
    held.close()


@pytest.mark.parametrize(
    ("arguments", "names"),
    slow_after(
        1,
        [
            (["hydra.sweep.subdir=${hydra.job.num}", "+decoder.tie_embeddings=true"], ["0", "1"]),
            (["hydra.sweep.subdir=${hydra.job.override_dirname}"], ["seed=6", "seed=7"]),
            (["decoder.hidden_dim=${data.batch_size}"], ["0", "1"]),
        ],
    ),
)
def test_runs_of_a_sweep_have_the_folders_and_the_arguments_that_were_given(
    run_light: Callable[..., Any], tmp_path: Path, arguments: list[str], names: list[str]
):
    done = run_light(RUN_LIGHT, LIGHT, "-m", "seed=6,7", "hydra.sweep.dir=mine", *arguments, folder=tmp_path)
    assert (done.status, done.err) == (0, "")
    assert sorted(folder.name for folder in (tmp_path / "mine").iterdir() if folder.is_dir()) == names
    given = [line.lstrip("+") for line in arguments if not line.startswith("hydra")]
    for name, seed in zip(names, ("seed=6", "seed=7"), strict=True):
        stored = yaml.safe_load((tmp_path / "mine" / name / ".hydra/overrides.yaml").read_text())
        assert [line.replace("\\", "").replace("True", "true") for line in stored] == [seed, *given]


PLACE = "größe/日本"
"""A folder with letters that ASCII and Windows' code page lack."""


@pytest.mark.parametrize(
    ("environment", "shown"),
    slow_after(
        1,
        [
            ({"PYTHONIOENCODING": "ascii"}, r"gr\xf6\xdfe/\u65e5\u672c"),
            ({"PYTHONIOENCODING": "cp1252"}, r"größe/\u65e5\u672c"),
            ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, r"gr\udcc3"),
        ],
    ),
)
@pytest.mark.parametrize("launched", slow_after(1, [False, True]))
def test_any_text_can_be_printed(tmp_path: Path, environment: dict[str, str], shown: str, launched: bool):
    place = [f"hydra.run.dir={PLACE}", "seed=6"]
    if launched:
        place = ["-m", "hydra/launcher=joblib", f"hydra.sweep.dir={PLACE}", "seed=6,7"]
    line = [sys.executable, str(FIXTURES / LIGHT), *place, f"cache={tmp_path}"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, env={**os.environ, **environment}, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert shown in done.stdout.decode(environment.get("PYTHONIOENCODING", "ascii"))


def test_a_place_that_cannot_be_written_is_reported_with_its_setting(run_light: Callable[..., Any], tmp_path: Path):
    done = run_light(RUN_LIGHT, LIGHT, "-m", "seed=6,7", "hydra.sweep.dir=/proc/x", folder=tmp_path)
    assert done.status == 2
    assert "set hydra.sweep.dir to another folder" in done.err
    assert len(done.err.splitlines()) == 1


def test_a_run_that_fails_leaves_the_folder_of_one_that_is_starting(run_light: Callable[..., Any], tmp_path: Path):
    (tmp_path / "mine").mkdir()
    held = lock_file(tmp_path / "mine" / LOCK)
    assert run_light(RUN_LIGHT, LIGHT, "seed=2", "hydra.run.dir=mine", folder=tmp_path).status == 2
    assert held
    assert (tmp_path / "mine" / LOCK).exists()
    held.close()
