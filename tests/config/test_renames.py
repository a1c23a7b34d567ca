import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from showattendtell.config.compose import compose
from showattendtell.config.renames import (
    CALLBACKS,
    CLASSES,
    MODULES,
    PACKAGE,
    SETTINGS,
    STATES,
    rename_argument,
    rename_settings,
    rename_states,
)
from showattendtell.config.signatures import read_signature
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.inference.checkpoints import CONFIG, METADATA_KEY, read_checkpoint, upgrade_checkpoint
from showattendtell.inference.loading import BUNDLED, bundled_models, load_model


def of_format_2(config: Any, path: str = "") -> Any:
    """The configuration as format 2 has it."""
    if isinstance(config, list):
        return [of_format_2(value, path) for value in config]
    if not isinstance(config, dict):
        return config
    settings = {new: old.rpartition(".")[2] for old, new in SETTINGS.items()}
    return {
        settings.get(f"{path}{name}", name): old_target(value)
        if name == "_target_"
        else of_format_2(value, f"{path}{name}.")
        for name, value in config.items()
    }


def old_target(target: str) -> str:
    name = {new: old for old, new in CLASSES.items()}.get(target.removeprefix(PACKAGE), target.removeprefix(PACKAGE))
    for old, new in MODULES.items():
        if name.startswith(f"{new}."):
            return f"{PACKAGE}{old}{name.removeprefix(new)}"
    return PACKAGE + name if target.startswith(PACKAGE) else target


@pytest.fixture
def old_model(tmp_path: Path) -> Path:
    """The bundled model as format 2 has it."""
    folder = shutil.copytree(bundled_models()[BUNDLED], tmp_path / "model")
    card = json.loads((folder / CONFIG).read_text())
    choices = {"mean_of" if name == "average_of" else name: option for name, option in card["choices"].items()}
    card |= {"format": 2, "config": of_format_2(card["config"]), "choices": choices}
    card["config"]["early_stopping"] = card["config"]["callbacks"].pop("early_stopping")
    (folder / CONFIG).write_text(json.dumps(card))
    return folder


def test_a_model_of_format_2_is_read_with_the_new_names(old_model: Path):
    text = (old_model / CONFIG).read_text()
    assert all(name in text for name in ("showattendtell.batches.CaptionData", '"selection"', '"initial_weights"'))
    card, _ = read_checkpoint(old_model)
    new, _ = read_checkpoint(bundled_models()[BUNDLED])
    assert (card["format"], card["config"], card["choices"]) == (3, new["config"], new["choices"])
    assert card["choices"]["average_of"] == "2"


def test_a_model_of_format_2_has_the_same_weights(old_model: Path):
    old, new = (load_model(str(path), "cpu", BeamSearch()) for path in (old_model, bundled_models()[BUNDLED]))
    assert old.config == new.config
    for (name, weight), (other, expected) in zip(
        old.module.state_dict().items(), new.module.state_dict().items(), strict=True
    ):
        assert name == other
        torch.testing.assert_close(weight, expected, rtol=0, atol=0)


def test_the_state_of_a_run_of_format_2_has_the_new_names():
    old = {"CaptionData": {"epoch": 1}, "callbacks": {"Dashboards": {"id": "a"}, "EpochTimes": {}}, "state_dict": {}}
    card = {"format": 2, "config": {"selection": "cider"}, "arguments": ["selection=cider", "++data.resident=true"]}
    new = upgrade_checkpoint({**old, METADATA_KEY: card})
    assert new == {
        "CaptionDataModule": {"epoch": 1},
        "callbacks": {"DashboardCallback": {"id": "a"}, "EpochTimes": {}},
        "state_dict": {},
        METADATA_KEY: {
            "format": 3,
            "config": {"monitor": "cider"},
            "arguments": ["monitor=cider", "++data.cache_on_device=true"],
        },
    }
    assert rename_states(old).keys() & STATES.keys() == set()
    assert rename_states(old)["callbacks"].keys() & CALLBACKS.keys() == set()


def test_a_class_that_moved_later_is_renamed_in_checkpoints_of_format_3():
    checkpoint = {METADATA_KEY: {"format": 3, "config": {"loss": {"_target_": f"{PACKAGE}losses.caption.HardLoss"}}}}
    loss = upgrade_checkpoint(checkpoint)[METADATA_KEY]["config"]["loss"]
    assert loss == {"_target_": f"{PACKAGE}losses.reinforce.HardLoss"}


@pytest.mark.parametrize("number", [1, 4, None, "3"])
def test_a_checkpoint_of_another_format_stays_as_it_is(number: Any):
    checkpoint = {METADATA_KEY: {"format": number, "config": {"selection": 1}}}
    assert upgrade_checkpoint(checkpoint) == checkpoint


@pytest.mark.parametrize("target", CLASSES.values())
def test_every_new_class_is_there(target: str):
    assert read_signature(PACKAGE + target)


@pytest.mark.parametrize(("old", "new"), SETTINGS.items())
def test_a_setting_in_a_stored_argument_gets_its_new_name(old: str, new: str):
    assert rename_argument(f"+{old}=a=b") == f"+{new}=a=b"


@pytest.mark.parametrize(("decoder", "dropout"), [("lstm", 0.3), ("nic", None), ("log_bilinear", None)])
def test_the_dropout_of_the_lstm_on_flickr8k_is_not_that_of_the_baselines(decoder: str, dropout: float | None):
    config, groups = compose("train", ["experiment=paper/flickr8k", f"decoder={decoder}"])
    assert config.decoder.get("dropout") == dropout
    assert "paper/dropout/flickr8k_lstm" not in groups["experiment"]


def test_a_node_that_was_moved_is_found_in_its_new_place():
    assert rename_argument("++early_stopping.patience=3") == "++callbacks.early_stopping.patience=3"
    assert rename_settings({"early_stopping": {"patience": 3}}) == {"callbacks": {"early_stopping": {"patience": 3}}}


def test_names_are_renamed_in_their_own_node_only():
    config = {"test": 1, "data": {"test": 2, "resident": True}, "attention": {"test": "argmax"}}
    assert rename_settings(config) == {
        "test": 1,
        "data": {"test": 2, "cache_on_device": True},
        "attention": {"inference_mode": "argmax"},
    }
