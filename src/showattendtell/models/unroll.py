"""Teacher forcing: packed captions, and the plain loop of attention and decoder over all their steps.

`kernels.recurrence.unroll_fused` computes the same as `unroll`, faster, for soft and hard attention with the LSTM.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from showattendtell.data.vocabulary import PAD
from showattendtell.models.attention import Attention, AttentionCache
from showattendtell.models.decoder import Decoder, DecoderState
from showattendtell.types import SampledLocations, at_places


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


class DecoderOutput(NamedTuple):
    """All steps of captions, N words: h (N, n), z (N, D), alpha (N, L), beta (N,), and the sampled locations."""

    hidden: Tensor
    context: Tensor
    weights: Tensor
    gates: Tensor
    sample: SampledLocations | None = None


def unroll(
    attention: Attention,
    decoder: Decoder,
    packing: Packing,
    memory: AttentionCache,
    state: DecoderState,
    word_gates: Tensor,
    image_index: Tensor,
    locations: Tensor | None,
) -> DecoderOutput:
    """Unroll any attention with any decoder, step by step.

    Args:
        memory: one row per image; `state` too, before the first words.
        word_gates: (N, ...), from `Decoder.embed_words`.
        image_index: (B,) the image of each caption.
        locations: (B, T, H) region indices for hard attention; negative entries are sampled.
    """
    memory, state = memory.select(image_index), state.select(image_index)
    hidden, glimpses = [], []
    for step, gates in enumerate(packing.pad(word_gates).unbind(dim=1)):
        given = {} if locations is None else {"locations": locations[:, step]}
        glimpse = attention(memory, state, **given)
        state = decoder.step(gates, glimpse.context, state)
        hidden.append(state.hidden)
        glimpses.append(glimpse)
    contexts, weights, betas, samples = zip(*glimpses, strict=True)

    def of_words(steps: tuple[Tensor, ...]) -> Tensor:
        return packing.pack(torch.stack(steps, dim=1))

    drawn = None if samples[0] is None else SampledLocations(*map(of_words, zip(*samples, strict=True)))
    return DecoderOutput(of_words(tuple(hidden)), of_words(contexts), of_words(weights), of_words(betas), drawn)
