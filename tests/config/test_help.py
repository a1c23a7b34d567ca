"""`--help` and typos are answered at once: from any folder, and without the libraries that take seconds to import."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from showattendtell.config.command_line import check_command
from showattendtell.config.compose import OF_SEARCHES, compose
from showattendtell.config.entry_point import help_page

ANSWER = """
heavy = {"torch", "pytorch_lightning", "timm", "matplotlib", "torchvision", "wandb"}
atexit.register(lambda: print("IMPORTED", sorted(heavy & sys.modules.keys())))
runpy.run_module(f"showattendtell.{sys.argv[0]}", run_name="__main__", alter_sys=True)
"""

Answer = Callable[..., Any]

COMMANDS = ["download", "prepare", "train", "evaluate", "score", "report", "caption", "reproduce"]


@pytest.fixture
def answer(run_light: Callable[..., Any], tmp_path: Path) -> Answer:
    """Runs a command in `tmp_path`. At the end of its output are the heavy libraries that it has imported."""
    return lambda *arguments: run_light(ANSWER, *arguments, folder=tmp_path)


@pytest.mark.parametrize(
    "command",
    [*COMMANDS, "demo", "features"],
)
def test_help_is_answered_anywhere_and_imports_nothing_heavy(answer: Answer, command: str, tmp_path: Path):
    done = answer(command, "--help")
    assert done.status == 0
    assert f"python -m showattendtell.{command}" in done.out
    assert "IMPORTED []" in done.out
    assert done.err == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line",
    [
        ["prepare", "sed=3"],
        ["train", "sed=3"],
        ["evaluate", "checkpoint=best.ckpt", "sed=3"],
        ["caption", "checkpoint=best.ckpt", "images=photo.jpg", "sed=3"],
        ["score", "hypotheses=written.json", "sed=3"],
        ["report", "runs", "sed=3"],
        ["reproduce", "table=shapes", "sed=3"],
        ["demo", "sed=3"],
    ],
    ids=lambda line: line[0],
)
def test_a_typo_is_answered_with_status_2_and_imports_nothing_heavy(answer: Answer, line: list[str], tmp_path: Path):
    done = answer(*line)
    assert done.status == 2
    assert done.err.startswith("error: there is no setting sed")
    assert len(done.err.splitlines()) == 1
    assert done.out == "IMPORTED []\n"
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_option_is_answered_with_status_2_and_imports_nothing_heavy(answer: Answer):
    done = answer("train", "decoder.dropot=0.3", "attention=hrad")
    assert done.status == 2
    assert done.out == "IMPORTED []\n"
    assert "Traceback" not in done.err


def test_help_of_training_names_every_group_with_its_options_and_marks_the_present_one():
    config, groups = compose("train", ["optimizer=rmsprop"])
    page = help_page(config, groups)
    listed: dict[str, list[str]] = {}
    for word in page[page.index("Choices") : page.index("Settings")].split("\n", 1)[1].split():
        if word in groups:
            options = listed.setdefault(word, [])
        else:
            options.append(word)
    assert {group: [option.strip("[]") for option in options] for group, options in listed.items()} == {
        group: options for group, options in groups.items() if group not in OF_SEARCHES
    }
    assert [option for option in listed["optimizer"] if option.startswith("[")] == ["[rmsprop]"]


def test_help_explains_the_settings_of_a_nested_part_that_the_yaml_leaves_to_the_code():
    config, groups = compose("train", ["attention=soft", "attention/score=additive"])
    assert "width" not in config.attention.score
    page = help_page(config, groups).splitlines()
    number = next(n for n, line in enumerate(page) if line.startswith("  attention.score.width="))
    assert page[number + 1].startswith("      ")
    assert "attention.score.region_dim" not in "".join(page)


def test_help_shows_the_values_of_the_options_that_stand_before_it():
    page = help_page(*compose("train", check_command("train", ["dataset=flickr8k", "decoder.dropout=0.123"])))
    assert "decoder.dropout=0.123" in page
    assert "dataset.captions_per_image=5" in page
    assert "dataset.train=" not in page


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_setting_of_the_yaml(command: str):
    config, groups = compose(command, [])
    page = help_page(config, groups)
    settings = OmegaConf.to_container(config)
    settings.pop("hydra")
    for name in leaves(settings):
        assert f"  {name}=" in page, name


def leaves(node: dict[str, Any], path: str = "") -> Iterator[str]:
    """Every setting in a configuration."""
    for key, value in node.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}.")
        elif not key.startswith("_"):
            yield f"{path}{key}"


@pytest.mark.parametrize("command", ["download", "prepare", "train", "evaluate", "score", "report", "caption"])
def test_help_explains_every_setting_that_belongs_to_no_part(command: str):
    config, groups = compose(command, [])
    page = help_page(config, groups).splitlines()
    settings = [
        key for key in config if key not in ("hydra", "_target_") and not isinstance(config._get_node(key), DictConfig)
    ]
    assert settings
    for setting in settings:
        number = next(n for n, line in enumerate(page) if line.startswith(f"  {setting}="))
        assert page[number + 1].startswith("      "), setting


def test_help_takes_a_setting_that_only_the_signature_has_and_keeps_its_brackets(answer: Answer):
    done = answer("train", "--help", "decoder.output=[word,hidden]")
    assert done.status == 0
    assert "decoder.output=[word,hidden]" in done.out
