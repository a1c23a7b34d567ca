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
        return cls.without_padding(tokens) if tokens.device.type == "cpu" else cls.with_padding(tokens)

    @classmethod
    def with_padding(cls, tokens: Tensor) -> "Packing":
        """Of captions (B, T) as if each had T words."""
        captions, steps = shape = (len(tokens), tokens.shape[1])
        number = torch.arange(captions, device=tokens.device)
        places = torch.arange(steps, device=tokens.device).unsqueeze(1) + steps * number
        return cls(number, (captions,) * steps, places.flatten(), shape)

    @classmethod
    def without_padding(cls, tokens: Tensor) -> "Packing":
        """Of captions (B, T), each up to its `<pad>`."""
        lengths, order = (tokens != PAD).sum(dim=1).sort(descending=True, stable=True)
        spoken = lengths > torch.arange(int(lengths.max())).unsqueeze(1)  # (T, B)
        places = torch.arange(len(spoken)).unsqueeze(1) + tokens.shape[1] * order
        return cls(order, tuple(spoken.sum(dim=1).tolist()), places[spoken], (len(tokens), tokens.shape[1]))

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
