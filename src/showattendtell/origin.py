"""The checkpoint with whose weights, words and encoder a training begins."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig
from torch import Tensor

from showattendtell.checkpoint import read_checkpoint
from showattendtell.config.differences import model_differences, trained_with
from showattendtell.encoder import Encoder
from showattendtell.errors import UserError
from showattendtell.model.captioner import Captioner
from showattendtell.portable import ENCODER, find_model
from showattendtell.text.vocabulary import Vocabulary

DRAWN = ("project", "released")
"""What `initial_weights` says where they are drawn."""


class Origin(NamedTuple):
    """A checkpoint: its file, what it says of itself, its weights, and with which settings it does not go together.

    differences  `setting=VALUE` for each that shapes the model and was otherwise
    """

    file: Path
    card: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    differences: list[str]

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.card["vocabulary"])

    def tune(self, encoder: Encoder) -> None:
        """Give the encoder the checkpoint's weights. Raises `UserError` for another network, grid or size."""
        ours, theirs = encoder.describe(), self.card["encoder"]
        if any(ours[part] != theirs[part] for part in ours.keys() - {"weights_sha256", "tuned"}):
            raise self._misfit()
        if own := self._of(ENCODER):
            encoder.adopt(own)
        elif ours["weights_sha256"] != theirs["weights_sha256"]:
            raise self._misfit()

    def teach(self, captioner: Captioner) -> None:
        """Give the captioner the checkpoint's weights. Raises `UserError` for one of another kind or size."""
        try:
            captioner.load_state_dict(self._of("captioner."))
        except RuntimeError:
            raise self._misfit() from None

    def _of(self, part: str) -> dict[str, Tensor]:
        return {name.removeprefix(part): own for name, own in self.weights.items() if name.startswith(part)}

    def _misfit(self) -> UserError:
        told = trained_with(self.differences, self.card.get("choices", {}))
        return UserError(f"{self.file} does not fit this model; it was trained with {told}: give the same")


def find_origin(config: DictConfig) -> Origin | None:
    """The checkpoint that a training configuration's `initial_weights` names, if it names one.

    Raises `UserError` for a file that is missing, damaged or none of ours.
    """
    if config.initial_weights in DRAWN:
        return None
    file = find_model(config.initial_weights)
    card, weights = read_checkpoint(file)
    return Origin(file, card, weights, model_differences(config, card["config"]))
