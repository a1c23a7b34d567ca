"""Settings of `calibrate`."""

from dataclasses import dataclass

from showattendtell.config.schemas import EvaluationDataSettings
from showattendtell.settings import Text


@dataclass(frozen=True, kw_only=True)
class CalibrateSettings:
    """Settings of `calibrate`.

    Attributes:
        checkpoint: a best.ckpt or last.ckpt of training, a folder written by save_pretrained, a bundled model, or one
            on the hub, as owner/name.
        output: the calibrated checkpoint, a new file or, for a folder, folder; by default the checkpoint is changed.
        cache: the folder of the feature cache; by default that of training.
        device: cpu, cuda, cuda:1, ..., or auto for the GPU if there is one.
    """

    checkpoint: Text
    output: Text | None
    cache: Text | None
    device: Text
    dataset: EvaluationDataSettings
