"""Packed sequences: the words of a batch's captions in the order of computation, without padding."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from showattendtell.data.vocabulary import PAD
from showattendtell.types import at_places


class Packing(NamedTuple):
    """Packing of N words: all first words, then all second words, and so on, longest caption first.

    order   (B,) indices of the captions, longest first
    sizes   the number of captions with a word at each step
    places  (N,) flat indices b * T + t of the words in tokens (B, T)
    shape   (B, T)
    """

    order: Tensor
    sizes: tuple[int, ...]
    places: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, tokens: Tensor) -> "Packing":
        """Pack captions (B, T) that end with `<pad>`. Padding is left out only on the CPU: a shape that depends on data
        would synchronise a GPU."""
        return cls.without_padding(tokens) if tokens.device.type == "cpu" else cls.with_padding(tokens)

    @classmethod
    def with_padding(cls, tokens: Tensor) -> "Packing":
        """Pack captions (B, T) as if each had T words."""
        captions, steps = shape = (len(tokens), tokens.shape[1])
        number = torch.arange(captions, device=tokens.device)
        places = torch.arange(steps, device=tokens.device).unsqueeze(1) + steps * number
        return cls(number, (captions,) * steps, places.flatten(), shape)

    @classmethod
    def without_padding(cls, tokens: Tensor) -> "Packing":
        """Pack captions (B, T), each up to its first `<pad>`."""
        lengths, order = (tokens != PAD).sum(dim=1).sort(descending=True, stable=True)
        spoken = lengths > torch.arange(int(lengths.max())).unsqueeze(1)  # (T, B)
        places = torch.arange(len(spoken)).unsqueeze(1) + tokens.shape[1] * order
        return cls(order, tuple(spoken.sum(dim=1).tolist()), places[spoken], (len(tokens), tokens.shape[1]))

    def pack(self, padded: Tensor) -> Tensor:
        """Pack (B, T, ...) to (N, ...)."""
        return padded.flatten(0, 1)[self.places]

    def pad(self, packed: Tensor) -> Tensor:
        """Unpack (N, ...) to (B, T, ...); entries without a word are zero."""
        return at_places(packed, self.places, self.shape)

    def steps(self) -> Iterator[slice]:
        """Yield the rows of each step among the N words."""
        first = 0
        for size in self.sizes:
            yield slice(first, first + size)
            first += size
