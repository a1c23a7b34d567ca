"""How a command ends where it can't run, that it trusts whom its user names, and how it takes places without a name."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import assume, example, given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from slow_cases import slow_after

from showattendtell.cli import COMMANDS
from showattendtell.config.command_line import check_command
from showattendtell.config.compose import compose
from showattendtell.config.entry_point import as_argument, expand_homes, name_positional, quote_path, without_dashes
from showattendtell.config.validation import DEBUG
from showattendtell.errors import CLOSED_PIPE, UserError
from showattendtell.runtime.files import LOCK, lock_file

FIXTURES = Path(__file__).parents[1] / "fixtures"

ANSWER = "the class that the user named was built"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the user stands: with a file in the way, and a module of their own."""
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "own.py").write_text(
        f"class Data:\n    def __init__(self, root='', **sizes): raise ValueError({ANSWER!r})\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("setting", "word"),
    slow_after(
        2, [("hydra.run.dir=file/run", "file/run: "), ("hydra.run.dir=file", "file: "), ("--config-name=foo", "'foo'")]
    ),
)
def test_a_run_that_hydra_cannot_start_ends_in_a_sentence(
    run_forked: Callable[..., Any], folder: Path, setting: str, word: str
):
    done = run_forked("train", setting, folder=folder)
    assert done.status == 2
    assert done.err.startswith("error: ")
    assert word in done.err
    assert len(done.err.splitlines()) == 1


def test_a_class_of_your_own_that_the_command_line_names_is_built(run_forked: Callable[..., Any], folder: Path):
    done = run_forked(
        "prepare", "dataset._target_=own.Data", folder=folder, first=f"sys.path.insert(0, {str(folder)!r})"
    )
    assert done.status == 2
    assert ANSWER in done.err


def settings_of(command: str, arguments: list[str]) -> DictConfig:
    """What a command's configuration is after its command line was read."""
    config, _ = compose(command, check_command(command, arguments))
    return config


@given(st.lists(st.text(st.characters(exclude_characters="=", exclude_categories=["Cs"])), min_size=1, max_size=3))
@example(["a b.jpg", "it's", 'say "hi"', "[x]", "{y}", "a,b", "x\\", '\\"', "${seed}", "\\${seed}", "\\\\${seed}"])
@example(["null", "3", "*.jpg", "ünï/日本.jpg", "~x", "new\nline", " ", ""])
def test_a_place_of_any_name_arrives_as_it_was_given(names: list[str]):
    assume(not any(name.startswith("-") or name == "???" for name in names))
    [line] = name_positional(names, "runs")
    override = OverridesParser.create().parse_override(line)
    assert list(OmegaConf.create({"runs": override.value()}).runs) == names


def test_places_stand_among_settings_in_any_order():
    line = name_positional(["a b.jpg", "checkpoint=best.ckpt", "c,d.jpg", "seed=3"], "images")
    assert line == ["checkpoint=best.ckpt", "seed=3", 'images=["a b.jpg","c,d.jpg"]']
    config = settings_of("caption", line)
    assert (config.checkpoint, list(config.images), config.seed) == ("best.ckpt", ["a b.jpg", "c,d.jpg"], 3)


def test_a_name_with_an_equals_sign_is_a_place_where_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=1").mkdir()
    assert name_positional(["lr=1", "lr=2"], "runs") == ["lr=2", 'runs=["lr=1"]']


def test_a_line_without_places_is_left_as_it_is():
    line = ["checkpoint=best.ckpt", "images=[a.jpg]", "--cfg", "job"]
    assert name_positional(line, "images") == line


@pytest.mark.parametrize("named", ["images=b.jpg", "++images=b.jpg"])
def test_places_given_by_name_as_well_are_reported(named: str):
    with pytest.raises(UserError, match="^images are given twice, as a.jpg and as .*images=b.jpg"):
        name_positional(["checkpoint=best.ckpt", "a.jpg", named], "images")


@pytest.mark.parametrize("path", ["runs/a b", 'x"y', "end\\", "${seed}", "a=b,c"])
def test_a_printed_argument_is_read_as_the_value_that_it_stands_for(path: str):
    [argument] = shlex.split(as_argument("checkpoint", path))
    assert settings_of("evaluate", [argument]).checkpoint == path


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("images=~/a.jpg", "HOME/a.jpg"),
        ("images=~", "HOME"),
        ("--images=~/a.jpg", "HOME/a.jpg"),
        ("images=[~/a.jpg,b.jpg]", ["HOME/a.jpg", "b.jpg"]),
        ("images='~/a.jpg'", "~/a.jpg"),
        ("images='a~b.jpg'", "a~b.jpg"),
    ],
)
def test_the_home_folder_is_known_by_its_sign_where_no_shell_looks(typed: str, value: str | list[str]):
    images = settings_of("caption", without_dashes([expand_homes(typed)])).images
    expected = OmegaConf.create({"images": value}).images
    assert str(images) == str(expected).replace("HOME", str(Path.home()))


def test_an_existing_path_may_have_an_equals_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in ("epoch=1-step=32.ckpt", "a=b=c"):
        (tmp_path / name).touch()
    assert settings_of("evaluate", [quote_path("checkpoint=epoch=1-step=32.ckpt")]).checkpoint == "epoch=1-step=32.ckpt"
    for other in ("checkpoint=epoch=1-step=3.ckpt", "a=b=c", "checkpoint=best.ckpt", "a.jpg"):
        assert quote_path(other) == other


FAILING = """
class Data:
    def __init__(self, root="", **sizes):
        try:
            {}["cause"]
        except KeyError:
            raise ValueError({!r}) from None
"""


@pytest.mark.parametrize("message", ["what went wrong", "", "  \n "], ids=["message", "empty", "blank"])
def test_an_exception_of_any_message_ends_in_a_sentence(run_forked: Callable[..., Any], folder: Path, message: str):
    (folder / "own.py").write_text(FAILING.format("{}", message))
    path = f"sys.path.insert(0, {str(folder)!r})"
    done = run_forked("prepare", "dataset._target_=own.Data", folder=folder, first=path)
    assert (done.status, done.err) == (2, f"error: dataset: {message.strip() or 'ValueError'}\n")


@pytest.mark.parametrize("how", ["--debug", "environment"])
def test_debugging_shows_the_traceback_and_what_caused_it(run_forked: Callable[..., Any], folder: Path, how: str):
    (folder / "own.py").write_text(FAILING.format("{}", "what went wrong"))
    path = f"sys.path.insert(0, {str(folder)!r})"
    arguments, environment = (["--debug"], {}) if how == "--debug" else ([], {"HYDRA_FULL_ERROR": "1"})
    done = run_forked("prepare", "dataset._target_=own.Data", *arguments, folder=folder, first=path, **environment)
    assert done.status == 2
    assert "KeyError: 'cause'" in done.err
    assert "own.py" in done.err
    assert done.err.splitlines()[-1] == "error: dataset: what went wrong"


@pytest.mark.parametrize("command", slow_after(2, sorted(COMMANDS)))
def test_every_command_takes_debug(run_light: Callable[..., Any], command: str, tmp_path: Path):
    run = "runpy.run_module(f'showattendtell.{sys.argv[0]}', run_name='__main__', alter_sys=True)"
    done = run_light(run, command, "--debug", "nonsense_setting=3", folder=tmp_path)
    assert done.status == 2
    assert "Traceback" in done.err
    assert "debug" not in done.err.splitlines()[-1]


def test_a_command_that_another_one_starts_shows_no_traceback_unless_asked(
    run_light: Callable[..., Any], tmp_path: Path
):
    code = f"for name in ('HYDRA_FULL_ERROR', '{DEBUG}'): os.environ.pop(name, None)\n"
    code += "from showattendtell.config.entry_point import take_debug as take; take([]); take([]); "
    code += f"print(os.environ['{DEBUG}'])"
    assert run_light(code, folder=tmp_path).out == "0\n"


LIGHT = "light_command.py"
RUN_LIGHT = f"runpy.run_path({str(FIXTURES / LIGHT)!r}, run_name='__main__')"


def test_a_run_that_fails_before_it_writes_anything_leaves_no_folder(run_light: Callable[..., Any], tmp_path: Path):
    done = run_light(RUN_LIGHT, LIGHT, "seed=2", "hydra/job_logging=none", folder=tmp_path)
    assert (done.status, done.err) == (2, "error: a seed of 2 is a fault; take another\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("own", ["notes.txt", "config/notes.txt"])
def test_a_run_that_fails_leaves_a_folder_that_holds_something_else(
    run_light: Callable[..., Any], tmp_path: Path, own: str
):
    (tmp_path / "mine/config").mkdir(parents=True)
    (tmp_path / "mine" / own).touch()
    assert run_light(RUN_LIGHT, LIGHT, "seed=2", "hydra.run.dir=mine", folder=tmp_path).status == 2
    assert (tmp_path / "mine" / own).exists()


def test_a_run_that_fails_leaves_the_folder_of_one_that_is_starting(run_light: Callable[..., Any], tmp_path: Path):
    (tmp_path / "mine").mkdir()
    held = lock_file(tmp_path / "mine" / LOCK)
    assert run_light(RUN_LIGHT, LIGHT, "seed=2", "hydra.run.dir=mine", folder=tmp_path).status == 2
    assert held
    assert (tmp_path / "mine" / LOCK).exists()
    held.close()


@pytest.mark.parametrize("name", slow_after(1, ["flickr8k", "flickr30k", "coco", "coco2017"]))
def test_training_without_the_data_names_the_command_that_downloads_them(
    run_forked: Callable[..., Any], tmp_path: Path, name: str
):
    done = run_forked("train", f"dataset={name}", "encoder=efficientnet_lite0", folder=tmp_path)
    assert f"showattendtell download dataset={name} dataset.root=DIR" in done.err
    assert done.status == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", ["train", "cli"])
def test_help_ends_quietly_where_its_reader_is_gone(module: str, tmp_path: Path):
    reader, writer = os.pipe()
    os.close(reader)
    line = [sys.executable, "-m", f"showattendtell.{module}", "--help"]
    done = subprocess.run(line, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (CLOSED_PIPE, "")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["-m", "--decoder.hidden_dim", "256,512"], ["-m", "decoder.hidden_dim=256,512"]),
        (["--decoder.hidden_dim=256,512", "-m"], ["decoder.hidden_dim=256,512", "-m"]),
        (["--multirun", "--seed", "range(1,4)"], ["--multirun", "seed=range(1,4)"]),
        (["-m", "--optimizer.lr=choice(1e-3,1e-4)"], ["-m", "optimizer.lr=choice(1e-3,1e-4)"]),
        (["-m", "--checkpoint", "best (1).ckpt"], ["-m", 'checkpoint="best (1).ckpt"']),
        (["--images", "a,b.jpg"], ['images="a,b.jpg"']),
    ],
)
def test_several_values_after_dashes_are_swept_with_m(given: list[str], expected: list[str]):
    assert without_dashes(given) == expected
