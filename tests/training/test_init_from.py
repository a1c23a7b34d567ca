"""A training that begins with a checkpoint: what it takes over, and what it refuses."""

from pathlib import Path

import pytest
import torch
from slow_cases import slow_after
from small_training import small_config, small_run

from showattendtell.config.instantiate import build_captioner
from showattendtell.data.vocabulary import UNK, Vocabulary
from showattendtell.errors import UserError
from showattendtell.features.extract import Extraction, feature_path
from showattendtell.inference.initial import InitialCheckpoint, find_initial_checkpoint
from showattendtell.models.captioner import Captioner
from showattendtell.models.encoder import Encoder
from showattendtell.runtime.files import BEST
from showattendtell.types import Dataset, Example

pytestmark = pytest.mark.filterwarnings("ignore")

EMBEDDINGS = "captioner.decoder.embedding.weight"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    small_run(small_config("trainer.max_epochs=1", "trainer.limit_train_batches=1"), folder)
    content = torch.load(folder / BEST, weights_only=True)
    content["showattendtell"] |= {"version": "0", "vocabulary": ["<pad>", "<start>", "<eos>", "<unk>", "dog"]}
    torch.save(content, folder / BEST)
    return folder / BEST


def origin_of(checkpoint: Path, *settings: str) -> InitialCheckpoint:
    origin = find_initial_checkpoint(small_config(f"init_from={checkpoint}", *settings))
    assert origin
    return origin


def vocabulary_of(origin: InitialCheckpoint) -> Vocabulary:
    return origin.vocabulary(small_config(), Dataset("made up", {"train": (Example("a.jpg", "a.jpg", ()),)}))


def load(origin: InitialCheckpoint, captioner: Captioner) -> None:
    origin.load_captioner(captioner, vocabulary_of(origin))


def test_weights_that_are_drawn_have_no_origin():
    assert find_initial_checkpoint(small_config()) is None
    assert find_initial_checkpoint(small_config("init_from=released")) is None


def test_captioner_and_words_are_those_of_the_checkpoint(checkpoint: Path):
    origin, config = origin_of(checkpoint), small_config("decoder.dropout=0.1")
    captioner = build_captioner(
        config, 3, len(torch.load(checkpoint)["state_dict"]["captioner.decoder.embedding.weight"])
    )
    origin.load_captioner(captioner, vocabulary_of(origin))
    saved = torch.load(checkpoint, weights_only=True)["state_dict"]
    for name, value in captioner.state_dict().items():
        assert torch.equal(value, saved[f"captioner.{name}"])
    assert vocabulary_of(origin).words[-1] == "dog"


def test_new_words_begin_as_unknown_ones_and_share_their_probability(checkpoint: Path):
    content = torch.load(checkpoint, weights_only=True)
    size = len(content["state_dict"][EMBEDDINGS])
    content["showattendtell"]["vocabulary"] += [f"word{number}" for number in range(size - 5)]
    torch.save(content, checkpoint.with_name("whole.ckpt"))
    origin = origin_of(checkpoint.with_name("whole.ckpt"))
    vocabulary = vocabulary_of(origin).extended(["cat", "dog", "mouse", "horse"])
    assert vocabulary.words[size:] == ("cat", "mouse", "horse")
    before, after = (build_captioner(small_config(), 3, number) for number in (size, size + 3))
    load(origin, before)
    origin.load_captioner(after, vocabulary)
    for name, value in after.state_dict().items():
        own = before.state_dict()[name]
        assert torch.equal(value[: len(own)], own)
        if name == "decoder.embedding.weight":
            assert torch.equal(value[size:], own[[UNK]].expand(3, -1))
    hidden = torch.randn(4, after.decoder.word_scores.in_features)
    ours, theirs = (one.decoder.word_scores(hidden).exp() for one in (after, before))
    torch.testing.assert_close(ours[:, size:].sum(dim=1), theirs[:, UNK])


@pytest.mark.parametrize(
    "setting", slow_after(1, ["decoder.hidden_dim=6", "attention.score.width=5", "attention.gate=channel"])
)
def test_another_captioner_is_reported_with_the_setting_that_it_had(checkpoint: Path, setting: str):
    config = small_config(setting)
    size = len(torch.load(checkpoint, weights_only=True)["state_dict"][EMBEDDINGS])
    name = setting.partition("=")[0]
    with pytest.raises(UserError, match=rf"does not fit this model; it was trained with {name}="):
        load(origin_of(checkpoint, setting), build_captioner(config, 3, size))


def test_a_setting_that_the_other_attention_has_of_its_own_accord_is_reported(checkpoint: Path):
    """Soft attention's gate, which its YAML does not name and that of hard attention does not have."""
    settings = ["attention=hard", "attention.inference_mode=expectation"]
    size = len(torch.load(checkpoint, weights_only=True)["state_dict"][EMBEDDINGS])
    with pytest.raises(UserError, match=r"trained with attention\.gate=scalar: give the same$"):
        load(origin_of(checkpoint, *settings), build_captioner(small_config(*settings), 3, size))
    settings.append("attention.gate=scalar")
    load(origin_of(checkpoint, *settings), build_captioner(small_config(*settings), 3, size))


def test_another_kind_of_model_is_reported_by_its_choices(checkpoint: Path):
    origin = origin_of(checkpoint)
    choices = {"dataset": "shapes", "attention": "soft", "attention/score": "additive", "decoder": "lstm"}
    origin = origin._replace(card={**origin.card, "choices": choices})
    with pytest.raises(UserError, match=r"trained with attention=soft, attention/score=additive.*lstm: give the same$"):
        load(origin, build_captioner(small_config("attention=adaptive"), 3, 5))


@pytest.mark.parametrize("settings", [["encoder.trainable=true", "encoder.frozen_stride=8"], ["decoder.dropout=0.1"]])
def test_what_does_not_shape_the_model_is_no_difference(checkpoint: Path, settings: list[str]):
    assert origin_of(checkpoint, *settings).differences == origin_of(checkpoint).differences == []


def test_a_file_that_is_not_there_is_reported():
    with pytest.raises(UserError, match="the checkpoint relased does not exist"):
        find_initial_checkpoint(small_config("init_from=relased"))


def network(stride: int = 16, size: int = 64) -> Encoder:
    torch.manual_seed(0)
    return Encoder("tf_efficientnet_lite0", stride, "random", size=size)


def from_encoder(encoder: Encoder, differences: list[str]) -> InitialCheckpoint:
    weights = {f"encoder.{name}": value for name, value in encoder.state_dict().items()}
    return InitialCheckpoint(Path("a.ckpt"), {"encoder": encoder.describe()}, weights, differences)


def test_an_encoder_is_tuned_where_the_checkpoint_has_other_weights():
    same, other = network(), network()
    from_encoder(network(), []).load_encoder(same)
    assert "tuned" not in same.describe()
    tuned = network()
    with torch.no_grad():
        next(tuned.parameters()).add_(1)
    from_encoder(tuned, []).load_encoder(other)
    assert other.describe()["weights_sha256"] == tuned.describe()["weights_sha256"]
    assert other.describe()["tuned"] is True
    folders = [feature_path(Path(), Dataset("d", {}), encoder, Extraction()).name for encoder in (same, other)]
    assert folders == [
        name := "tf_efficientnet_lite0-16-64-resize73",
        f"{name}-{tuned.describe()['weights_sha256'][:12]}",
    ]


def test_another_grid_is_reported():
    with pytest.raises(UserError, match=r"it was trained with encoder\.stride=16: give the same"):
        from_encoder(network(), ["encoder.stride=16"]).load_encoder(network(stride=8))
