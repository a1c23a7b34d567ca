"""Models whose parts are named in Python: `CaptioningModule(attention="dot", hidden_dim=128)`.

A name is an option of the configuration: `conf/attention/dot.yaml` has the class and its settings.
"""

from collections.abc import Mapping
from functools import partial
from inspect import signature
from typing import Any

from showattendtell.config.command_line import parse
from showattendtell.config.compose import as_node, read_command
from showattendtell.config.instantiate import build
from showattendtell.config.validation import check_targets
from showattendtell.datamodules.datamodule import ReaderDataModule
from showattendtell.errors import UserError
from showattendtell.loading.checkpoints import METADATA_KEY, build_metadata, check_metadata, read_vocabulary
from showattendtell.losses.caption import SoftLoss
from showattendtell.models.captioner import Captioner
from showattendtell.models.encoder import Encoder
from showattendtell.models.interfaces import Attention, Decoder
from showattendtell.settings import describe_call
from showattendtell.text.vocabulary import Vocabulary
from showattendtell.training.optimizers import Cosine
from showattendtell.types import Dataset

DROPOUT = {"dropout": 0.3, "dropout_places": ["regions", "words", "mean", "start", "output"]}
"""Settings of the LSTM in `experiment=flickr8k`, of which the defaults in Python are."""


def loss_of_recipe(cls: type[SoftLoss]) -> SoftLoss:
    """Return a loss of this class with the settings of `experiment=flickr8k` that it has."""
    settings: dict[str, Any] = {"label_smoothing": 0.14}
    if cls is SoftLoss:
        settings["doubly_stochastic_weight"] = 0.1
    accepted = signature(cls).parameters
    return cls(**{name: value for name, value in settings.items() if name in accepted})


def cosine_of_recipe(step: int, total: int) -> float:
    """Return the factor of `experiment=flickr8k`; a training of few steps has a shorter warm-up."""
    return Cosine(min(300, total // 10))(step, total)


class Recipe:
    """Attention and decoder of a model, before the sizes of regions and vocabulary are known.

    Args:
        attention: the name of an option, a function of D and n such as an attention class, or an `Attention`; None for
            the attention of the decoder's option.
        decoder: the name of an option, a function of `vocabulary_size` and `region_dim`, or a `Decoder`.
        settings: of a decoder that is given by name.

    Raises:
        UserError: a name is not an option.
    """

    def __init__(self, attention: Any, decoder: Any, **settings: Any):
        given = {"attention": attention, "decoder": decoder}
        names = {group: option for group, option in given.items() if isinstance(option, str)}
        named = [f"{group}={option}" for group, option in names.items()]
        try:
            lines = parse("train", ["dataset=custom", *named]).overrides  # it changes no other group
            config, composed = read_command("train", lines)
        except UserError as error:  # also where a checkpoint has the name of a class
            own = " or ".join(f"{group}=My{group.title()}" for group in names)
            raise UserError(f"{error} (a class of your own is passed itself: {own})") from None
        self.decoder = {**composed["decoder"], **settings} if isinstance(decoder, str) else decoder
        is_named = attention is None or isinstance(attention, str)
        self.attention = composed["attention"] if is_named else attention
        self.names = {group: _name(option) for group, option in given.items()}
        if attention is None:
            self.names["attention"] = config.hydra.runtime.choices["attention"]

    def build(self, encoder: Encoder, vocabulary: Vocabulary) -> Captioner:
        """Return the captioner, with initial weights."""
        decoder, attention, region_dim = self.decoder, self.attention, encoder.region_dim
        if isinstance(decoder, Mapping):
            decoder = partial(build, as_node(decoder))
        if not isinstance(decoder, Decoder):
            decoder = decoder(vocabulary_size=len(vocabulary), region_dim=region_dim)
        if isinstance(attention, Mapping):
            attention = build(as_node(attention), region_dim=region_dim, hidden_dim=decoder.hidden_dim)
        if not isinstance(attention, Attention):
            attention = attention(region_dim, decoder.hidden_dim)
        return Captioner(attention, decoder)

    def metadata(self, encoder: Encoder, vocabulary: Vocabulary, data: Any) -> dict[str, Any]:
        """Return the entry of a checkpoint from which `showattendtell.load` restores the model.

        Args:
            data: the data module, if there is one.
        """
        reading = data.settings() if isinstance(data, ReaderDataModule) else {}
        dataset = getattr(data, "dataset", None) or Dataset("own data", {})
        record = {
            "dataset": None,
            **reading,
            "encoder": describe_call(partial(type(encoder), **encoder.settings())),
            "attention": _describe(self.attention),
            "decoder": _describe(self.decoder),
            "tokenizer": vocabulary.tokenizer.settings(),
        }
        return build_metadata(record, {**self.names, "dataset": dataset.name}, vocabulary, encoder, dataset)


def restore(
    checkpoint: Mapping[str, Any], encoder: Encoder | None, vocabulary: Vocabulary | None
) -> tuple[Encoder, Vocabulary]:
    """Return encoder and vocabulary: those given, or else those in the checkpoint of a named model. The encoder's
    weights are loaded later."""
    metadata, name = checkpoint[METADATA_KEY], "the checkpoint"
    check_metadata(metadata, name)
    config = metadata["config"]
    check_targets(config, name)
    if encoder is None:
        settings = dict(config["encoder"])
        if "weights" in settings:
            settings["weights"] = "random"
        encoder = build(as_node(settings))
    if vocabulary is None:
        vocabulary = read_vocabulary(metadata, build(as_node(config["tokenizer"])), name)
    return encoder, vocabulary


def _name(part: Any) -> str:
    """Return the name of an option, or of a class or an object's class."""
    if isinstance(part, str):
        return part
    cls = part if isinstance(part, type) else type(part)
    return f"{cls.__module__}.{cls.__qualname__}"


def _describe(part: Any) -> Any:
    return part if isinstance(part, Mapping) else describe_call(part)
