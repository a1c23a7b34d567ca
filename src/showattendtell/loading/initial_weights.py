"""The initial weights and the vocabulary of a training that starts from a checkpoint."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from showattendtell.config.compose import MODEL, as_record, model_differences
from showattendtell.config.instantiate import build, build_vocabulary
from showattendtell.config.schemas import TrainSettings
from showattendtell.config.signatures import SignatureError
from showattendtell.config.validation import check_targets, find_targets, sentence
from showattendtell.decoding.confidence import Confidence
from showattendtell.errors import UserError, listed
from showattendtell.loading.checkpoints import CONFIDENCE, ENCODER, read_checkpoint, read_vocabulary
from showattendtell.loading.hub import find_model
from showattendtell.loading.models import take_confidence
from showattendtell.models.captioner import Captioner
from showattendtell.models.encoder import Encoder
from showattendtell.text.vocabulary import UNK, Vocabulary
from showattendtell.types import Dataset

WORD_BIAS = "decoder.word_scores.bias"
WORD_WEIGHTS = ("decoder.embedding.weight", "decoder.word_scores.weight", WORD_BIAS)
"""The weights of a captioner with a row for each word."""


class InitialCheckpoint(NamedTuple):
    """A checkpoint that initializes the weights.

    Attributes:
        file: the checkpoint.
        metadata: its metadata.
        weights: its weights by name.
        differences: `setting=VALUE` for each of its settings that shapes the model and differs from this run's.
        confidence: its `Confidence`, if it has one.
    """

    file: Path
    metadata: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    differences: list[str]
    confidence: Confidence | None = None

    def vocabulary(self, settings: TrainSettings, dataset: Dataset) -> Vocabulary:
        """Return the checkpoint's vocabulary, with the words of the training captions if `init_vocabulary` says so.

        Raises:
            UserError: the tokenizer differs.
        """
        stored = self.metadata["config"]["tokenizer"]
        if stored != as_record(settings.tokenizer):
            stored_arguments = ", ".join(f"tokenizer.{name}={value}" for name, value in stored.items())
            raise UserError(f"{self.file} was trained with another tokenizer; give the same: {stored_arguments}")
        vocabulary = read_vocabulary(self.metadata, build(settings.tokenizer), self.file)
        if settings.init_vocabulary != "extended":
            return vocabulary
        if vocabulary.tokenizer.tokens is not None:
            raise UserError("init_vocabulary=extended adds words, and this tokenizer has parts of words; leave it out")
        return vocabulary.extended(build_vocabulary(settings.tokenizer, settings.vocabulary, dataset).words)

    def load_encoder(self, encoder: Encoder) -> None:
        """Load the checkpoint's encoder weights.

        Raises:
            UserError: network, grid or size differ.
        """
        description, stored = encoder.describe(), self.metadata["encoder"]
        if any(description[part] != stored[part] for part in description.keys() - {"weights_sha256", "tuned"}):
            raise self._mismatch()
        if weights := self._weights_of(ENCODER):
            encoder.load_tuned(weights)
        elif description["weights_sha256"] != stored["weights_sha256"]:
            raise self._mismatch()

    def load_captioner(self, captioner: Captioner, vocabulary: Vocabulary) -> None:
        """Load the checkpoint's captioner weights.

        Args:
            vocabulary: that of the captioner, which begins with the checkpoint's words. New words get the weights of
                `<unk>`, which were learned from rare words, and equal shares of its probability.

        Raises:
            UserError: kind or size differ.
        """
        weights, num_known = self._weights_of("captioner."), len(self.metadata["vocabulary"])
        try:
            if num_new := len(vocabulary) - num_known:
                rows = torch.tensor([*range(num_known), *[UNK] * num_new])
                weights |= {name: weights[name][rows] for name in WORD_WEIGHTS if name in weights}
                # softmax: K logits that are less by log K than that of <unk> have its probability together
                weights[WORD_BIAS][num_known:] -= math.log(num_new)
            captioner.load_state_dict(weights)
        except (LookupError, RuntimeError):
            raise self._mismatch() from None

    def confidence_entry(self, encoder: Encoder) -> dict[str, Any]:
        """Return the entry of a checkpoint with the confidence, which knows images as a frozen encoder sees them."""
        return {CONFIDENCE: self.confidence.state_dict()} if self.confidence and not encoder.trainable else {}

    def _weights_of(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): weight for name, weight in self.weights.items() if name.startswith(prefix)}

    def _mismatch(self) -> UserError:
        differing = listed(self.differences, shown=6) or "another encoder"
        return UserError(f"{self.file} does not fit this model; it was trained with {differing}: give the same")


def find_initial_checkpoint(settings: TrainSettings) -> InitialCheckpoint | None:
    """Return the checkpoint that `init_from` names; None without one.

    Raises:
        UserError: the file is missing, damaged or foreign, or names targets outside this project.
    """
    if settings.init_from is None:
        return None
    file = find_model(settings.init_from)
    metadata, weights = read_checkpoint(file)
    confidence = take_confidence(weights, settings.init_from)
    try:
        parts = [metadata["config"][part] for part in MODEL]  # the source is compared for these parts only
        record = as_record(settings)
        check_targets(parts, file, find_targets(record))
        return InitialCheckpoint(file, metadata, weights, model_differences(record, metadata["config"]), confidence)
    except (AttributeError, KeyError, RecursionError, SignatureError, TypeError) as error:
        raise UserError(f"{file} was altered since it was written ({sentence(error)}); train again") from None


def training_vocabulary(settings: TrainSettings, origin: InitialCheckpoint | None, dataset: Dataset) -> Vocabulary:
    """Return the vocabulary of a training: that of the checkpoint it starts from, or one of the training captions."""
    if origin:
        return origin.vocabulary(settings, dataset)
    return build_vocabulary(settings.tokenizer, settings.vocabulary, dataset)
