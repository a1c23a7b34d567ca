"""One model of several: what it has of each, and which cannot be averaged."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from slow_cases import slow_after
from small_checkpoints import save
from small_training import WORDS

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.errors import UserError
from showattendtell.loading.checkpoints import METADATA_KEY
from showattendtell.loading.models import average, load_model, save_model_folder

QUERY = "captioner.attention.score.query.weight"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tmp_path_factory.mktemp("first") / "a.ckpt", 1)


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tmp_path_factory.mktemp("second") / "b.ckpt", 2, "optimizer.lr=0.5")


def weights(path: str) -> dict[str, Any]:
    return torch.load(path, weights_only=True)["state_dict"]


def test_each_weight_is_the_mean_and_all_else_is_the_first_ones(first: str, second: str):
    made = average([first, first, second])
    ours, theirs = weights(first), weights(second)
    assert made["state_dict"].keys() == ours.keys()
    for name, weight in made["state_dict"].items():
        if name.startswith("captioner."):
            torch.testing.assert_close(weight, (2 * ours[name] + theirs[name]) / 3)
        else:
            assert torch.equal(weight, ours[name])
    assert not torch.equal(ours[QUERY], theirs[QUERY])
    card = made[METADATA_KEY]
    assert card["choices"] == {"average_of": "3"}
    assert card["config"]["optimizer"]["lr"] == 0.01
    hashes = [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in (first, first, second)]
    assert card["averaged"] == hashes


def test_a_trained_encoder_is_averaged_and_has_the_hash_of_its_own_weights(first: str, tmp_path: Path):
    altered = torch.load(save(tmp_path / "b.ckpt", 1, tune=0.5), weights_only=True)
    altered[METADATA_KEY]["encoder"].pop("tuned", None)  # as after training with encoder.trainable=true
    torch.save(altered, tmp_path / "b.ckpt")
    made = average([first, str(tmp_path / "b.ckpt")])
    name = next(name for name in made["state_dict"] if name.startswith("encoder.network"))
    torch.testing.assert_close(made["state_dict"][name], weights(first)[name] + 0.25)
    torch.save(made, tmp_path / "mean.ckpt")
    encoder = load_model(str(tmp_path / "mean.ckpt"), "cpu", BeamSearch()).module.encoder
    assert encoder.describe() == made[METADATA_KEY]["encoder"]
    assert encoder.tuned


@pytest.mark.parametrize(
    "setting",
    slow_after(2, ["decoder.hidden_dim=6", "attention.gate=channel", "encoder.size=160", "decoder.output_tanh=true"]),
)
def test_models_of_other_parts_or_regions_are_reported_with_what_they_were_trained_with(
    first: str, tmp_path: Path, setting: str
):
    second = save(tmp_path / "b.ckpt", 1, setting, *(["encoder.resize=160"] if "size" in setting else []))
    with pytest.raises(UserError, match=rf"b.ckpt cannot be averaged with .*a.ckpt: it was trained with .*{setting}"):
        average([first, second])


def test_models_with_equal_settings_and_other_weights_are_reported(first: str, tmp_path: Path):
    """Adaptive attention has a sentinel besides what soft attention has."""
    with pytest.raises(UserError, match="b.ckpt cannot be averaged with .*a.ckpt"):
        average([first, save(tmp_path / "b.ckpt", 1, "attention=adaptive")])


def test_models_of_other_words_are_reported(first: str, tmp_path: Path):
    second = save(tmp_path / "b.ckpt", 1, words=(*WORDS, "cat"))
    with pytest.raises(UserError, match="b.ckpt and .*a.ckpt have different vocabularies"):
        average([first, second])


def test_soft_and_hard_attention_of_the_same_sizes_have_a_mean(first: str, tmp_path: Path):
    second = save(tmp_path / "b.ckpt", 1, "attention=hard", "attention.gate=scalar")
    made = average([first, second])
    assert made[METADATA_KEY]["config"]["attention"]["_target_"].endswith("SoftAttention")


def test_a_model_in_a_folder_and_a_mean_have_a_mean(first: str, tmp_path: Path):
    save_model_folder(load_model(first, "cpu", BeamSearch()), tmp_path / "folder")
    torch.save(average([first, first]), tmp_path / "mean.ckpt")
    made = average([str(tmp_path / "mean.ckpt"), str(tmp_path / "folder")])["state_dict"]
    halved = weights(first)[QUERY].half().float()
    torch.testing.assert_close(made[QUERY], (weights(first)[QUERY] + halved) / 2)
