"""Which groups there are, and which options each of them has."""

from pathlib import Path

import hydra
import pytest
from hydra.errors import HydraException

from showattendtell.config.compose import LAUNCHER, compose, config_folder, to_plain, without_hydra
from showattendtell.config.help import help_page
from showattendtell.errors import UserError, first_line

GROUPS = {
    "attention": ["hard", "none", "soft"],
    "attention/score": ["additive", "cosine"],
    "experiment": ["plain", "attentions/hard", "attentions/none"],
}


@pytest.mark.parametrize("choice", ["attention=soft", "attention=none", "experiment=attentions/none"])
def test_a_folder_is_a_group_where_a_defaults_list_chooses_from_it_and_else_only_sorts_options(
    small_conf: Path, choice: str
):
    _, groups = compose("train", [choice])
    assert groups.pop(LAUNCHER)
    assert groups == GROUPS


def test_options_of_nested_groups_and_of_folders_are_chosen_by_their_paths(small_conf: Path):
    config, _ = compose("train", ["experiment=attentions/hard", "attention/score=cosine"])
    assert config.attention._target_ == "parts.Hard"
    assert config.attention.score == {"_target_": "parts.Score", "_partial_": True, "width": 8}


def test_a_folder_that_an_option_builds_on_is_neither_a_group_nor_are_its_files_options(small_conf: Path):
    config, groups = compose("train", ["experiment=plain"])
    assert config.seed == 2
    assert "shared" not in str(groups)


def test_a_choice_that_does_not_compose_is_reported(small_conf: Path):
    with pytest.raises(UserError, match="attention/score"):
        compose("train", ["attention=none", "attention/score=cosine"])


def test_help_lists_nested_groups_where_the_present_choice_has_them(small_conf: Path):
    rows = [line.split() for line in help_page("train", *compose("train", [])).splitlines()]
    assert ["attention/score", "[additive]", "cosine"] in rows
    assert ["experiment", "plain", "attentions/hard", "attentions/none"] in rows
    assert "attention/score" not in help_page("train", *compose("train", ["attention=none"]))


@pytest.mark.parametrize(
    "lines",
    [
        ["seed=7"],
        ["++decoder.dropout=0.25", "data.batch_size=3", "decoder.hidden_dim=${data.batch_size}"],
        ["attention=hard", "seed=3", "decoder=nic", "++attention.num_samples=2"],
        ["callbacks.early_stopping.patience=2", "++encoder={_target_:my.Encoder,width:3}", "cache='a b=c'"],
        ["+hydra.job.env_set.HERE=1", "++loss.label_smoothing=0.1"],
        ["++trainer.devices=[0,1]", "seed=1", "seed=2"],
        ["~callbacks.early_stopping", "seed=2"],
        ["reward=cider", "++reward.num_samples=2"],
    ],
    ids=str,
)
def test_the_configuration_is_the_one_that_hydra_composes(lines: list[str]):
    with hydra.initialize_config_dir(config_folder()):
        whole = hydra.compose("train", lines)
    assert to_plain(without_hydra(compose("train", lines)[0]), resolve=False) == to_plain(whole, resolve=False)


@pytest.mark.parametrize(
    "line", ["sed=1", "decoder.dropot=1", "seed.a=1", "+seed=1", "optimizer/inner=adam", "seed=1,2", "seed=[", "base=x"]
)
def test_what_hydra_refuses_has_the_first_line_of_its_error(line: str):
    with hydra.initialize_config_dir(config_folder()), pytest.raises(HydraException) as whole:
        hydra.compose("train", [line])
    with pytest.raises(UserError) as alone:
        compose("train", [line])
    assert str(alone.value) == first_line(whole.value)


@pytest.mark.parametrize(("decoder", "dropout"), [("lstm", 0.3), ("nic", None), ("log_bilinear", None)])
def test_the_dropout_of_the_lstm_on_flickr8k_is_not_that_of_the_baselines(decoder: str, dropout: float | None):
    config, groups = compose("train", ["experiment=paper/flickr8k", f"decoder={decoder}"])
    assert config.decoder.get("dropout") == dropout
    assert "paper/dropout/flickr8k_lstm" not in groups["experiment"]
