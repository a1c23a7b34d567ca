"""What attention, decoder and captioner are to each other: their base classes, and the records that they exchange.

A new attention or decoder overrides methods of these classes; nothing else asks which class it is. `Captioner` calls
them in this order: `attach` once, `precompute` and `init_state` per image, `unroll` over the steps of given captions,
and `output_layer` for the loss. `Decoder.incremental` generates captions word by word.

Sizes are those of `showattendtell.types`; R is the number of rows of an `AttentionCache` (images), N a number of words.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from showattendtell.errors import UserError
from showattendtell.models.kernels import accelerator
from showattendtell.models.kernels.cross_entropy import OutputFeatures
from showattendtell.text.vocabulary import PAD
from showattendtell.types import SampledLocations, scatter_words

InferenceMode = Literal["sample", "argmax", "expectation"]


class AttentionCache(NamedTuple):
    """Precomputed attention inputs, one row per image.

    regions          (R, L, D)
    keys             (R, ...) the part of the score that depends on the image alone
    use_expectation  (R,) true if hard attention uses the expectation for the whole caption; None: for no image
    """

    regions: Tensor
    keys: Any
    use_expectation: Tensor | None = None

    def select(self, rows: Tensor) -> "AttentionCache":
        return AttentionCache._make(None if part is None else part[rows] for part in self)


class AttentionOutput(NamedTuple):
    """One attention step of B captions.

    context  z, (B, D), including the gate
    weights  alpha, (B, L), the mean over heads
    gate     beta, (B,), the mean over channels if it has one per channel
    sample   the locations that hard attention sampled
    """

    context: Tensor
    weights: Tensor
    gate: Tensor
    sample: SampledLocations | None = None


class DecoderState(NamedTuple):
    """The decoder's state after the words so far: the LSTM's h and c, (B, n) each.

    Other decoders keep other tensors in these fields, with a row per caption.
    """

    hidden: Tensor
    cell: Tensor

    def select(self, rows: Tensor) -> "DecoderState":
        return DecoderState(self.hidden.index_select(0, rows), self.cell.index_select(0, rows))


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
        leaves_out = tokens.device.type == "cpu" and accelerator(tokens) is None
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

    def steps(self) -> Iterator[tuple[slice, int]]:
        """Yield the rows of each step among the N words, and their number."""
        first = 0
        for size in self.sizes:
            yield slice(first, first + size), size
            first += size


class GivenCaptions(NamedTuple):
    """Captions whose words are given (teacher forcing).

    cache        one row per image
    state        before the first words, one row per image
    image_index  (B,) the image of each caption
    inputs       (B, T) the word before each target
    packing      of the targets' N words
    locations    (B, T, H) region indices for hard attention; negative entries are sampled
    """

    cache: AttentionCache
    state: DecoderState
    image_index: Tensor
    inputs: Tensor
    packing: Packing
    locations: Tensor | None = None


class Steps(NamedTuple):
    """One step of a decoder for each of N words. A decoder that has no such part leaves it None.

    hidden      h after the step, (N, n)
    weights     alpha, (N, L)
    gates       beta, (N,)
    context     z, (N, D)
    sample      the locations that hard attention sampled
    embedded    E y of the word before, (N, m)
    """

    hidden: Tensor
    weights: Tensor
    gates: Tensor
    context: Any = None
    sample: SampledLocations | None = None
    embedded: Any = None


class CaptionGrid(NamedTuple):
    """Captions that are decoded together, as a grid with a row per image: images have different numbers of them, so the
    last one of an image fills the rest of its row.

        images 0 0 0 2 of three images  ->  rows [[0 1 2], [2 2 2], [3 3 3]],  positions [0 1 2 6]

    rows       (R * K,) the caption at each position of the grid
    positions  (B,) the position of each caption in the flattened grid
    """

    rows: Tensor
    positions: Tensor


class ExportedStep(NamedTuple):
    """One step of an exported graph: log p of the next word (B, V), alpha (B, L), beta (B,), and the state after it."""

    log_probs: Tensor
    attention: Tensor
    gates: Tensor
    hidden: Tensor
    cell: Tensor


def is_fused(*parts: nn.Module) -> bool:
    """Return whether the fused recurrence computes the steps of these parts: `fused` is true, and declared by the class
    itself. A subclass may override any part of a step, so it does not inherit the declaration."""
    return all("fused" in vars(type(part)) and part.fused for part in parts)


class Attention(nn.Module):
    """Base class of attention."""

    selective = True
    """Whether the attention weights depend on the image and on the words so far."""

    loss = "showattendtell.losses.caption.SoftLoss"
    """Import path of the loss that trains it: the `kind` of all losses that can."""

    samples = False
    """Whether it can read sampled regions, so that `inference_mode` is a choice."""

    inference_mode: InferenceMode = "expectation"
    """Context outside training: a sampled region, the region with the largest weight, or the expectation over all."""

    def attach(self, captioner: Any) -> None:
        """Check that the captioner's decoder fits; called once, when the captioner is built.

        Raises:
            ValueError: the decoder does not fit.
        """

    def check_export(self) -> None:
        """Raise `UserError` if a graph cannot compute this attention."""
        if self.inference_mode == "sample":
            raise UserError(
                "this checkpoint samples where it attends, and a graph cannot sample; set "
                "attention.inference_mode=argmax (the likeliest region) or attention.inference_mode=expectation"
            )


class StepAttention(Attention, ABC):
    """Base class of the attention of recurrent decoders: `precompute` runs once per image, `forward` once per step.

    Each row of the cache serves K consecutive captions, such as the beams of one image.
    """

    @abstractmethod
    def precompute(self, regions: Tensor) -> AttentionCache:
        """Compute everything that depends only on the regions (R, L, D) of the images."""

    @abstractmethod
    def forward(self, cache: AttentionCache, state: DecoderState) -> AttentionOutput:
        """Compute one step of B captions from their decoder states (B, n)."""


class Decoder(nn.Module, ABC):
    """Base class of decoders: embeddings, the state before the first word, the steps, and the output layer.

    Args:
        vocabulary_size: V.
        embedding_dim: m.
        hidden_dim: n, the width of the layers, or of the state h that attention reads.
    """

    word_scores: nn.Linear

    def __init__(self, vocabulary_size: int, embedding_dim: int, hidden_dim: int):
        super().__init__()
        self.hidden_dim = hidden_dim
        self.embedding = nn.Embedding(vocabulary_size, embedding_dim)
        nn.init.normal_(self.embedding.weight, std=embedding_dim**-0.5)
        self.region_dropout = nn.Dropout(0.0)  # of the regions that attention and decoder read

    def attach(self, captioner: Any) -> None:
        """Check that the captioner's attention fits. Raise `ValueError` if it does not."""

    def reader(self, attention: Any) -> Any:
        """Return the module whose `precompute` makes the attention cache: the attention, or the decoder itself."""
        return attention

    @abstractmethod
    def init_state(self, regions: Tensor) -> DecoderState:
        """Return the state before the first word, with a row per image, from the regions (I, L, D)."""

    @abstractmethod
    def unroll(self, attention: Any, captions: GivenCaptions) -> Steps:
        """Compute all steps of given captions."""

    @abstractmethod
    def incremental(self, captioner: Any) -> Callable[[Tensor], Any]:
        """Return a function from regions (I, L, D) to an `IncrementalDecoder`. It has prepared the captioner's
        matrices, so it is valid until the weights change."""

    def export_state(self, state: DecoderState, max_length: int) -> DecoderState:
        """Return the state before the first word for `export_step`, in tensors whose sizes do not change."""
        return state

    @abstractmethod
    def export_step(self, attention: Any, cache: AttentionCache, state: DecoderState, words: Tensor) -> ExportedStep:
        """Decode one word in plain torch, for exported graphs.

        Args:
            cache: with a row per caption.
            words: (B,) the last word of each caption.
        """

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings E y (..., m) of tokens of any shape."""
        return self.embedding(tokens)

    @abstractmethod
    def output_features(self, embedded: Any, hidden: Tensor, context: Any) -> Tensor:
        """Return the input of `word_scores` for any number of steps, from E y (..., m), h (..., n) and z (..., D)."""

    def output_layer(self, steps: Steps) -> OutputFeatures:
        """Return the inputs of the output layer for the words of given captions."""
        values = self.output_features(steps.embedded, steps.hidden, steps.context)
        return OutputFeatures(values, self.word_scores.weight, self.word_scores.bias)

    def score_words(self, embedded: Any, hidden: Tensor, context: Any) -> Tensor:
        """Return the logits of the next word (..., V) from the arguments of `output_features`."""
        return self.word_scores(self.output_features(embedded, hidden, context))
