"""The words of a batch's captions in the order in which they are computed, padding left out."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from showattendtell.records import at_places
from showattendtell.text.vocabulary import PAD


class Packing(NamedTuple):
    """All first words, then all second words and so on, of the longest caption first: N words in all.

    order   (B,) the captions, longest first
    sizes   how many captions have a word at each step
    places  (N,) of the words in tokens (B, T), flat
    shape   B and T
    """

    order: Tensor
    sizes: tuple[int, ...]
    places: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, tokens: Tensor) -> "Packing":
        """Of captions (B, T) with `<pad>` behind them. Only on the processor is their padding left out: a shape that
        depends on data would make a GPU wait."""
        captions, steps = shape = (len(tokens), tokens.shape[1])
        number = torch.arange(captions, device=tokens.device)
        if tokens.device.type != "cpu":
            places = torch.arange(steps, device=tokens.device).unsqueeze(1) + steps * number
            return cls(number, (captions,) * steps, places.flatten(), shape)
        lengths, order = (tokens != PAD).sum(dim=1).sort(descending=True, stable=True)
        spoken = lengths > torch.arange(int(lengths.max())).unsqueeze(1)  # (T, B)
        places = torch.arange(len(spoken)).unsqueeze(1) + steps * order
        return cls(order, tuple(spoken.sum(dim=1).tolist()), places[spoken], shape)

    def pack(self, padded: Tensor) -> Tensor:
        """(B, T, ...) to (N, ...)."""
        return padded.flatten(0, 1)[self.places]

    def pad(self, packed: Tensor) -> Tensor:
        """(N, ...) to (B, T, ...), zero where there is no word."""
        return at_places(packed, self.places, self.shape)

    def steps(self) -> Iterator[slice]:
        """The rows of each step among the N."""
        first = 0
        for size in self.sizes:
            yield slice(first, first + size)
            first += size
