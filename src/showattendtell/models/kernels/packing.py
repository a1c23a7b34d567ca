"""Captions packed without padding: the layout of all values that have one row per word."""

import os
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from showattendtell.data.vocabulary import PAD
from showattendtell.types import scatter_words


class Packing(NamedTuple):
    """Packing of N words: all first words, then all second words, and so on, longest caption first.

    The captions with a word at step t are the first `sizes[t]` of `order`, and so the first rows of the state: the
    active batch shrinks from step to step by slicing. Three captions that end with a full stop:

        a: 4 .      order   b c a
        b: 5 8 .    packed  5 7 4 | 8 6 . | . .
        c: 7 6 .    sizes   3, 3, 2

    order   (B,) indices of the captions, longest first
    sizes   the number of captions with a word at each step
    indices (N,) flat indices b * T + t of the words in tokens (B, T)
    shape   (B, T)
    """

    order: Tensor
    sizes: tuple[int, ...]
    indices: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, tokens: Tensor) -> "Packing":
        """Pack captions (B, T) that end with `<pad>`. Padding is left out only on the CPU: a shape that depends on data
        would synchronize a GPU."""
        leaves_out = tokens.device.type == "cpu" and not os.environ.get("TRITON_INTERPRET")
        return cls.without_padding(tokens) if leaves_out else cls.with_padding(tokens)

    @classmethod
    def with_padding(cls, tokens: Tensor) -> "Packing":
        """Pack captions (B, T) as if each had T words."""
        captions, steps = tokens.shape
        order = torch.arange(captions, device=tokens.device)
        indices = torch.arange(steps, device=tokens.device).unsqueeze(1) + steps * order  # (T, B)
        return cls(order, (captions,) * steps, indices.flatten(), (captions, steps))

    @classmethod
    def without_padding(cls, tokens: Tensor) -> "Packing":
        """Pack captions (B, T), each up to its first `<pad>`."""
        lengths, order = (tokens != PAD).sum(dim=1).sort(descending=True, stable=True)
        is_word = lengths > torch.arange(int(lengths.max())).unsqueeze(1)  # (T, B), captions in packed order
        indices = torch.arange(len(is_word)).unsqueeze(1) + tokens.shape[1] * order
        return cls(order, tuple(is_word.sum(dim=1).tolist()), indices[is_word], (len(tokens), tokens.shape[1]))

    def pack(self, padded: Tensor) -> Tensor:
        """Pack (B, T, ...) to (N, ...)."""
        return padded.flatten(0, 1)[self.indices]

    def pad(self, packed: Tensor) -> Tensor:
        """Unpack (N, ...) to (B, T, ...); entries without a word are zero."""
        return scatter_words(packed, self.indices, self.shape)

    def steps(self) -> Iterator[slice]:
        """Yield the rows of each step among the N words."""
        first = 0
        for size in self.sizes:
            yield slice(first, first + size)
            first += size
