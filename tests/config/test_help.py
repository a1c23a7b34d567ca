"""`--help` and typos are answered at once: from any folder, and without the libraries that take seconds to import."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from showattendtell import __version__
from showattendtell.config.compose import compose, read_command
from showattendtell.config.help import OF_LIBRARIES, explain, find_listed, help_page

ANSWER = """
heavy = {"torch", "pytorch_lightning", "timm", "matplotlib", "torchvision", "torchmetrics", "wandb", "scipy"}
opened = set()
sys.addaudithook(lambda event, about: opened.add(str(about[0])) if event == "open" else None)
parsed = lambda: [name for name in opened if name.endswith("torch/__init__.py")]  # and the source of all of torch
atexit.register(lambda: print("IMPORTED", sorted(heavy & sys.modules.keys()) + parsed()))
runpy.run_module(f"showattendtell.{sys.argv[0]}", run_name="__main__", alter_sys=True)
"""

Answer = Callable[..., Any]

COMMANDS = ["prepare", "train", "average", "evaluate", "score", "report", "caption"]


@pytest.fixture
def answer(run_light: Callable[..., Any], tmp_path: Path) -> Answer:
    """Runs a command in `tmp_path`. At the end of its output are the heavy libraries that it has imported or parsed."""
    return lambda *arguments: run_light(ANSWER, *arguments, folder=tmp_path)


@pytest.mark.parametrize("command", [*COMMANDS, "demo"])
def test_help_is_answered_anywhere_and_imports_nothing_heavy(answer: Answer, command: str, tmp_path: Path):
    done = answer(command, "--help", *(["optimizer.lr=0.1"] if command == "train" else []))
    assert done.status == 0
    assert f"showattendtell {command}" in done.out
    assert "IMPORTED []" in done.out
    assert done.err == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line",
    [["train", "sed=3"], ["caption", "checkpoint=best.ckpt", "images=photo.jpg", "sed=3"], ["demo", "sed=3"]],
    ids=lambda line: line[0],
)
def test_a_typo_is_answered_with_status_2_and_imports_nothing_heavy(answer: Answer, line: list[str], tmp_path: Path):
    done = answer(*line)
    assert done.status == 2
    assert done.err.startswith("error: there is no setting sed")
    assert len(done.err.splitlines()) == 1
    assert done.out == "IMPORTED []\n"
    assert list(tmp_path.iterdir()) == []


def test_help_of_training_names_every_group_with_its_options_and_marks_the_present_one():
    page = help_page("train", ["optimizer=rmsprop"])
    words = page[page.index("Config groups") : page.index("Experiments (")].split()
    groups = find_listed(read_command("train", [])[0].hydra.runtime.choices)
    assert {"attention", "attention/score", "dataset", "experiment", "variant"} <= groups.keys()
    for group, options in groups.items():
        assert {group, *options} <= {word.strip("[]") for word in words}
    assert "[rmsprop]" in words


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_every_setting_that_belongs_to_no_part(command: str):
    page = help_page(command).splitlines()
    config = OmegaConf.to_container(compose(command, complete=False))
    settings = [key for key, value in config.items() if key != "_target_" and not isinstance(value, dict)]
    assert settings
    for setting in settings:
        number = next(n for n, line in enumerate(page) if line.startswith(f"  {setting}="))
        assert page[number + 1].startswith("      "), setting


def test_settings_of_libraries_are_settings_with_a_description():
    settings = OmegaConf.to_container(compose("train"))
    assert {setting.name for setting in explain("", settings) if setting.meaning} >= OF_LIBRARIES.keys()


@pytest.mark.parametrize("command", ["__main__", "train", "demo"])
def test_the_version_is_printed(answer: Answer, command: str):
    done = answer(command, "--version")
    assert done.out == f"showattendtell {__version__}\nIMPORTED []\n"
    assert done.status == 0


def test_a_photograph_that_is_missing_is_reported_before_anything_heavy_is_imported(answer: Answer):
    done = answer("caption", "missing.jpg", "images/")
    assert done.err == "error: image missing.jpg does not exist\n  image images/ does not exist\n"
    assert (done.status, done.out) == (2, "IMPORTED []\n")
