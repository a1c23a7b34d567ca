"""What an extension adds to a training: the points of this module, and callbacks."""

from typing import Any, Protocol

from omegaconf import DictConfig

from showattendtell.data.tokenizers import Tokenizer
from showattendtell.losses.caption import LossOutput
from showattendtell.types import Batch, Dataset


class LossTerm(Protocol):
    """Changes the loss on the captions of each batch; see `CaptioningModule.terms`."""

    def check(self, module: Any) -> None:
        """Raise `UserError` if a `CaptioningModule` cannot be trained with this term."""

    def __call__(self, output: LossOutput, batch: Batch) -> LossOutput:
        """Return the loss of a batch with this term, from its loss without it."""
        ...


class TrainingExtra:
    """Base class of the targets of nodes in the training configuration that the core does not know."""

    def change_data(self, dataset: Dataset, tokenizer: Tokenizer) -> Dataset:
        """Return the data set that is trained on."""
        return dataset

    def change_module(self, module: Any, config: DictConfig) -> dict[str, Any]:
        """Change a `CaptioningModule` before training. Return what a resumed run must have in common, as plain data for
        the checkpoint's metadata."""
        return {}
