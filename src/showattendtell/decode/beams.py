"""The open captions of a batch of images as tensors: how they begin, and how they grow by a word."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from showattendtell.decode.speaker import Thoughts
from showattendtell.text.vocabulary import START


class Beams(NamedTuple):
    """The open captions of the J images that are still searched.

    An image has G groups of C + 1 banks, for the captions that have said 0 to C of the required words, of K beams, best
    first: W beams in all. Where no caption is open, log p is -inf, and nothing is computed.

    images    (J,) which of the batch's images they are
    widths    (J,) how many of the K may be open
    scores    (J, G, C + 1, K) log p
    tokens    (J, W, t), `<start>` first
    parents   (J, W) which of the last step's captions each continues
    thoughts  of the last step's captions
    """

    images: Tensor
    widths: Tensor
    scores: Tensor
    tokens: Tensor
    parents: Tensor
    thoughts: Thoughts

    def places(self) -> Tensor:
        """Of the B open captions among all J * W, (B,)."""
        return self.scores.flatten().isfinite().nonzero().squeeze(1)

    def keep(self, chosen: Tensor) -> "Beams":
        """The beams of the images that are marked (J,)."""
        return self if chosen.all() else Beams._make([*(part[chosen] for part in self[:-1]), self.thoughts])


def first_beams(thoughts: Thoughts, shape: tuple[int, int, int]) -> Beams:
    """`<start>` in every beam; all but the first of each group are ruled out, since they would be copies of it."""
    images, num_beams = thoughts.images, math.prod(shape)
    scores = thoughts.states[0].hidden.new_full((len(images), *shape), -torch.inf)
    scores[:, :, 0, 0] = 0
    tokens = torch.full((len(images), num_beams, 1), START, device=images.device)
    parents = images.unsqueeze(1).expand(-1, num_beams)
    return Beams(images, torch.full_like(images, shape[-1]), scores, tokens, parents, thoughts)
