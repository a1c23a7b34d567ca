"""Initialise training from a checkpoint: its weights, vocabulary and encoder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig
from torch import Tensor

from showattendtell.config.compose import MODEL, model_differences, plain_settings, trained_with
from showattendtell.config.signatures import SignatureError
from showattendtell.config.trust import check_targets
from showattendtell.config.validation import find_targets, sentence
from showattendtell.data.vocabulary import Vocabulary
from showattendtell.errors import UserError
from showattendtell.inference.checkpoints import read_checkpoint
from showattendtell.inference.pretrained import ENCODER, find_model
from showattendtell.models.captioner import Captioner
from showattendtell.models.encoder import Encoder

DRAWN = ("project", "released")
"""Values of `init_from` for which the initial weights are drawn at random."""


class InitialCheckpoint(NamedTuple):
    """A checkpoint: its file, its metadata, its weights, and the settings that it conflicts with.

    differences  `setting=VALUE` for each setting that shapes the model and differs
    """

    file: Path
    card: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    differences: list[str]

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.card["vocabulary"])

    def tune(self, encoder: Encoder) -> None:
        """Load the checkpoint's encoder weights. Raises `UserError` if network, grid or size differ."""
        ours, theirs = encoder.describe(), self.card["encoder"]
        if any(ours[part] != theirs[part] for part in ours.keys() - {"weights_sha256", "tuned"}):
            raise self._misfit()
        if own := self._of(ENCODER):
            encoder.adopt(own)
        elif ours["weights_sha256"] != theirs["weights_sha256"]:
            raise self._misfit()

    def teach(self, captioner: Captioner) -> None:
        """Load the checkpoint's captioner weights. Raises `UserError` if kind or size differ."""
        try:
            captioner.load_state_dict(self._of("captioner."))
        except RuntimeError:
            raise self._misfit() from None

    def _of(self, part: str) -> dict[str, Tensor]:
        return {name.removeprefix(part): own for name, own in self.weights.items() if name.startswith(part)}

    def _misfit(self) -> UserError:
        differing = trained_with(self.differences, self.card.get("choices", {}))
        return UserError(f"{self.file} does not fit this model; it was trained with {differing}: give the same")


def find_initial_checkpoint(config: DictConfig) -> InitialCheckpoint | None:
    """Return the checkpoint that `init_from` names in a training configuration; None without one.

    Raises `UserError` for a missing, damaged or foreign file, and for one that names targets outside this project.
    """
    if config.init_from in DRAWN:
        return None
    file = find_model(config.init_from)
    card, weights = read_checkpoint(file)
    try:
        parts = [card["config"][part] for part in MODEL]  # the source is compared for these parts only
        check_targets(parts, file, list(find_targets(plain_settings(config))))
        return InitialCheckpoint(file, card, weights, model_differences(config, card["config"]))
    except (AttributeError, KeyError, RecursionError, SignatureError, TypeError) as fault:
        raise UserError(f"{file} was altered since it was written ({sentence(fault)}); train again") from None
