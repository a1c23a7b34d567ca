"""A training that begins with a checkpoint: what it takes over, and what it refuses."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_training import small_config, small_run

from showattendtell.config.instantiate import build_captioner
from showattendtell.decoding.confidence import Confidence
from showattendtell.errors import UserError
from showattendtell.features.extract import Extraction, feature_path
from showattendtell.loading.checkpoints import CONFIDENCE
from showattendtell.loading.models import InitialCheckpoint, find_initial_checkpoint
from showattendtell.models.encoder import Encoder
from showattendtell.runtime.files import BEST
from showattendtell.text.vocabulary import UNK, Vocabulary
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


def test_captioner_and_words_are_those_of_the_checkpoint(checkpoint: Path):
    origin, config = origin_of(checkpoint), small_config("decoder.dropout=0.1")
    size = len(torch.load(checkpoint)["state_dict"]["captioner.decoder.embedding.weight"])
    captioner = build_captioner(config.attention, config.decoder, 3, size)
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
    config = small_config()
    before, after = (build_captioner(config.attention, config.decoder, 3, number) for number in (size, size + 3))
    origin.load_captioner(before, vocabulary_of(origin))
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
    ("name", "change"),
    [
        ("captioner.decoder.word_scores.bias", lambda state, name: state.pop(name)),
        (EMBEDDINGS, lambda state, name: state.update({name: torch.zeros(3, 16)})),
    ],
    ids=["missing", "short"],
)
def test_word_weights_that_do_not_fit_are_reported(checkpoint: Path, name: str, change: Callable[..., object]):
    content = torch.load(checkpoint, weights_only=True)
    change(content["state_dict"], name)
    torch.save(content, checkpoint.with_name("altered.ckpt"))
    origin = origin_of(checkpoint.with_name("altered.ckpt"))
    vocabulary, config = vocabulary_of(origin).extended(["giraffe"]), small_config()
    captioner = build_captioner(config.attention, config.decoder, 3, len(vocabulary))
    with pytest.raises(UserError, match=r"altered\.ckpt"):
        origin.load_captioner(captioner, vocabulary)


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


def test_the_confidence_is_kept_unless_the_encoder_is_trained():
    encoder = network()
    confidence = Confidence(torch.ones(3), torch.zeros(4), torch.eye(4)[:, :2], torch.tensor(0.5))
    origin = InitialCheckpoint(Path("a.ckpt"), {}, {}, [], confidence)
    assert origin.confidence_entry(encoder)[CONFIDENCE]["threshold"] == 0.5
    encoder.trainable = True
    assert origin.confidence_entry(encoder) == {}
