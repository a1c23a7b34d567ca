"""A captioner without photographs: a language model."""

from typing import Any

import torch

from showattendtell.errors import UserError
from showattendtell.models.encoder import EncoderWithoutNetwork


class NoEncoder(EncoderWithoutNetwork):
    """No encoder: every image is one region of one zero, which makes the captioner a language model.

    `init_from` loads its weights into a captioner of any encoder, except those whose shape depends on the width of a
    region; most of them learn nothing here, because their inputs are 0.

    Args:
        ignored: settings of other encoders, which a recipe may set.
    """

    network_name = "none"

    def __init__(self, **ignored: Any):
        super().__init__(regions=1, dim=1)
        self.constant_regions = torch.zeros(1, 1)

    def check_reads_pixels(self) -> None:
        raise UserError(
            "this model is a language model, which reads no photographs; give it as init_from= of train, or as "
            "decoding.language_model= with a model that does"
        )
