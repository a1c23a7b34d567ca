"""A transformer decoder, which attends to the regions in every layer (Vaswani et al. 2017), and its attention map.

Sizes are those of `showattendtell.types`, and n is the width of the layers. There are N layers of H heads of width
d = n / H. R is the number of images, or of captions whose keys and values were copied from their images; t is the
number of words that were read before.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from showattendtell.errors import UserError
from showattendtell.models.captioner import Captioner, IncrementalDecoder, StepOutput, transposed
from showattendtell.models.interfaces import (
    Attention,
    AttentionCache,
    CaptionGrid,
    Decoder,
    DecoderState,
    ExportedStep,
    GivenCaptions,
    Steps,
)
from showattendtell.models.kernels.products import Linear
from showattendtell.settings import Fraction, PositiveInt

Map = Literal["last"] | PositiveInt
DropoutPlace = Literal["regions", "words", "layers", "output"]


class CrossAttention(Attention):
    """The attention of the transformer decoder, which is part of its layers and has its weights there.

    Args:
        region_dim: D.
        hidden_dim: n.
        map: the attention map alpha: the mean over heads in the last layer (last) or in the layer of this number, from
            1. It can be changed after training.
    """

    def __init__(self, region_dim: PositiveInt, hidden_dim: PositiveInt, map: Map = "last"):
        super().__init__()
        self.map = map

    def attach(self, captioner: Captioner) -> None:
        decoder = captioner.decoder
        if not isinstance(decoder, TransformerDecoder):
            raise ValueError(
                f"{type(self).__name__} is part of the transformer decoder, and {type(decoder).__name__} is another "
                "one; use decoder=transformer"
            )
        if self.map != "last" and self.map > len(decoder.layers):
            raise ValueError(
                f"attention.map={self.map} is not a layer of the decoder, which has {len(decoder.layers)}; choose "
                "one of them, or last"
            )


def attend(queries: Tensor, keys: Tensor, values: Tensor, with_weights: bool) -> tuple[Tensor, Tensor | None]:
    """Return softmax(q k^T / sqrt(d)) v for queries (R, H, Q, d), keys and values (R, H, K, d), and its weights.

    Args:
        with_weights: also return the mean of the weights over heads, (R, Q, K); torch's fast attention has none.
    """
    if not with_weights:
        return F.scaled_dot_product_attention(queries, keys, values), None
    scores = queries @ keys.mT * queries.shape[-1] ** -0.5
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    return weights.to(values.dtype) @ values, weights.mean(dim=1)


class TransformerLayer(nn.Module):
    """x + self-attention, then x + cross-attention, then x + feed-forward network, each of the normalized x (pre-norm).

    Args:
        width: n.
    """

    def __init__(self, width: int, num_heads: int, feedforward_dim: int, dropout: float):
        super().__init__()
        self.num_heads = num_heads
        self.self_norm, self.cross_norm, self.feedforward_norm = (nn.LayerNorm(width) for _ in range(3))
        # Without biases: those of keys change no weight, and the normalized inputs have one that does the rest.
        self.self_inputs = Linear(width, 3 * width, bias=False)  # queries, keys and values
        self.self_output = Linear(width, width)
        self.cross_query = Linear(width, width, bias=False)
        self.cross_inputs = Linear(width, 2 * width, bias=False)  # keys and values
        self.cross_output = Linear(width, width)
        self.feedforward = nn.Sequential(
            Linear(width, feedforward_dim), nn.GELU(), nn.Dropout(dropout), Linear(feedforward_dim, width)
        )
        self.dropout = nn.Dropout(dropout)

    def split(self, vectors: Tensor) -> Tensor:
        """Return vectors (R, Q, c * n) by kind and head: (R, c, H, Q, d)."""
        width = self.self_output.in_features
        return vectors.unflatten(2, (-1, self.num_heads, width // self.num_heads)).movedim(1, 3)

    def precompute(self, regions: Tensor) -> Tensor:
        """Return the keys and values (R, 2, H, L, d) of the projected regions (R, L, n)."""
        return self.split(self.cross_inputs(regions))

    def forward(
        self,
        x: Tensor,
        extend: Callable[[Tensor], Tensor],
        mask: Tensor | None,
        regions: Tensor,
        grid: CaptionGrid | None,
        with_weights: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Compute the layer for T words of each caption.

        Args:
            x: (B, T, n).
            extend: from the words' keys and values (B, 2, H, T, d) to those of all words so far.
            mask: true for the words that a word may read; broadcast to (B, H, T, t + T).
            regions: from `precompute`, with a row per caption; with `grid`, per image.
            grid: the captions of each image; needs T = 1.

        Returns:
            x after the layer, the keys and values of all words so far (B, 2, H, t + T, d), and with `with_weights` the
            mean over heads of the weights of the regions (B, T, L).
        """
        queries, keys, values = self.split(self.self_inputs(self.self_norm(x))).unbind(dim=1)
        past = extend(torch.stack([keys, values], dim=1))
        attended = F.scaled_dot_product_attention(queries, past[:, 0], past[:, 1], attn_mask=mask)
        x = x + self.dropout(self.self_output(_merge(attended)))

        queries = self.cross_query(self.cross_norm(x))
        if grid is not None:  # (B, 1, n) to (R, K, n)
            queries = queries[grid.rows].view(len(regions), -1, queries.shape[2])
        attended, weights = attend(self.split(queries).squeeze(1), regions[:, 0], regions[:, 1], with_weights)
        attended = _merge(attended)
        if grid is not None:
            attended = attended.flatten(0, 1)[grid.positions].unsqueeze(1)
            weights = None if weights is None else weights.flatten(0, 1)[grid.positions].unsqueeze(1)
        x = x + self.dropout(self.cross_output(attended))
        x = x + self.dropout(self.feedforward(self.feedforward_norm(x)))
        return x, past, weights


def _merge(heads: Tensor) -> Tensor:
    """Return heads (R, H, Q, d) side by side: (R, Q, n)."""
    return heads.transpose(1, 2).flatten(2)


class TransformerDecoder(Decoder):
    """Transformer decoder with pre-norm layers: self-attention on the words so far, attention on the regions, and a
    feed-forward network with GELU (Vaswani et al. 2017; Xiong et al. 2020).

        p(y_t) = softmax(L_o LayerNorm(x_t))     x = layers(E y + positions, regions)

    All words of given captions are computed at once. In decoding, the keys and values of the words so far are kept in
    the state (`DecoderState.hidden`), and those of the regions in the attention cache, once per image.

    Args:
        vocabulary_size: V.
        region_dim: D.
        embedding_dim: m, the width of the word embeddings; projected if it is not n.
        hidden_dim: n, the width of the layers.
        num_layers: the number of layers.
        num_heads: the number of heads of each attention; divides n.
        feedforward_dim: the width of the feed-forward networks; by default 4 n.
        dropout: the dropout probability at each place of `dropout_places`.
        dropout_places: regions: channels of the regions, the same channels in all regions of an image; words: word
            embeddings; layers: the output of each attention and the feed-forward networks; output: before L_o.
        max_length: the largest number of words, `<eos>` included; each position has a learned vector.
        tie_embeddings: share the weights of L_o and E, which suits small data sets.

    Raises:
        ValueError: n is not a multiple of the heads.
        UserError: a caption is longer than `max_length`.
    """

    def __init__(
        self,
        vocabulary_size: PositiveInt,
        region_dim: PositiveInt,
        embedding_dim: PositiveInt = 512,
        hidden_dim: PositiveInt = 512,
        num_layers: PositiveInt = 3,
        num_heads: PositiveInt = 8,
        feedforward_dim: PositiveInt | None = None,
        dropout: Fraction = 0.1,
        dropout_places: Sequence[DropoutPlace] = ("words", "layers"),
        max_length: PositiveInt = 128,
        tie_embeddings: bool = False,
    ):
        super().__init__(vocabulary_size, embedding_dim, hidden_dim)
        if hidden_dim % num_heads:
            raise ValueError(f"decoder.hidden_dim={hidden_dim} cannot be divided into decoder.num_heads={num_heads}")
        self.num_heads, self.max_length = num_heads, max_length
        self.region_dropout, self.word_dropout, layer_dropout, self.output_dropout = (
            nn.Dropout(dropout * (place in dropout_places)) for place in ("regions", "words", "layers", "output")
        )
        self.read_regions = nn.Sequential(Linear(region_dim, hidden_dim), nn.LayerNorm(hidden_dim))
        same = embedding_dim == hidden_dim
        self.read_word = nn.Identity() if same else Linear(embedding_dim, hidden_dim)
        self.positions = nn.Embedding(max_length, hidden_dim)
        self.layers: Any = nn.ModuleList(
            TransformerLayer(hidden_dim, num_heads, feedforward_dim or 4 * hidden_dim, layer_dropout.p)
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(hidden_dim)
        self.read_output = nn.Identity() if same else Linear(hidden_dim, embedding_dim)
        self.word_scores = Linear(embedding_dim, vocabulary_size)
        nn.init.zeros_(self.word_scores.bias)
        if tie_embeddings:
            self.word_scores.weight = self.embedding.weight

    def attach(self, captioner: Captioner) -> None:
        if not isinstance(captioner.attention, CrossAttention):
            raise ValueError(
                f"{type(self).__name__} attends to the image in its own layers and has no use for "
                f"{type(captioner.attention).__name__}; leave attention= out, or use attention=cross with it"
            )

    def reader(self, attention: CrossAttention) -> "TransformerDecoder":
        return self

    def init_state(self, regions: Tensor) -> DecoderState:
        """Return the state before the first word: the keys and values (I, N, 2, H, 0, d) of no words."""
        shape = (len(regions), len(self.layers), 2, self.num_heads, 0, self.hidden_dim // self.num_heads)
        return DecoderState(regions.new_empty(shape), regions.new_empty(len(regions), 0))

    def precompute(self, regions: Tensor) -> AttentionCache:
        """Return the attention cache of the images, with the layers' keys and values (I, N, 2, H, L, d)."""
        projected = self.read_regions(regions)
        return AttentionCache(regions, torch.stack([layer.precompute(projected) for layer in self.layers], dim=1))

    def unroll(self, attention: CrossAttention, captions: GivenCaptions) -> Steps:
        image_index, packing = captions.image_index, captions.packing
        num_words = captions.inputs.shape[1]
        self.check_length(num_words)
        positions = torch.arange(num_words, device=image_index.device)
        hidden, weights, _ = self(
            captions.inputs,
            positions.unsqueeze(0),
            captions.cache.keys[image_index],
            attention.map,
            extend=lambda _, new: new,
            mask=positions <= positions.unsqueeze(1),  # word i reads the words up to itself
        )
        hidden, weights = packing.pack(hidden), packing.pack(weights)
        return Steps(hidden, weights, weights.new_ones(len(weights)))

    @torch.no_grad()
    def incremental(self, captioner: Captioner) -> Callable[[Tensor], IncrementalDecoder]:
        return partial(TransformerIncrementalDecoder, captioner, transposed(self.word_scores.weight))

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        regions: Tensor,
        map: Map,
        extend: Callable[[int, Tensor], Tensor],
        mask: Tensor | None = None,
        grid: CaptionGrid | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Read T more words of each caption.

        Args:
            tokens: (B, T).
            positions: of the words in their captions, (B or 1, T).
            regions: `keys` of the attention cache, with a row per caption; with `grid`, per image.
            map: see `CrossAttention`.
            extend: from a layer's number and the keys and values of these words to those of all words so far.
            mask: true for the words that a word may read; broadcast to (B, H, T, t + T).
            grid: the captions of each image; needs T = 1.

        Returns:
            The vectors (B, T, n), alpha (B, T, L), and the keys and values of all words so far.
        """
        x = self.word_dropout(self.embed(tokens) + self.positions(positions))
        shown = len(self.layers) - 1 if map == "last" else map - 1
        pasts, maps = [], []
        for i, layer in enumerate(self.layers):
            x, past, weights = layer(x, partial(extend, i), mask, regions[:, i], grid, i == shown)
            pasts.append(past)
            maps.append(weights)
        return self.norm(x), maps[shown], torch.stack(pasts, dim=1)

    def export_step(
        self, attention: CrossAttention, cache: AttentionCache, state: DecoderState, words: Tensor
    ) -> ExportedStep:
        length = state.cell  # of the words before, (B,)
        offsets = torch.arange(state.hidden.shape[-2], device=words.device) - length.unsqueeze(1)  # (B, T)
        is_current, mask = (offsets == 0)[:, None, None, :, None], (offsets <= 0)[:, None, None, :]

        def extend(layer: int, new: Tensor) -> Tensor:
            return torch.where(is_current, new, state.hidden[:, layer])

        inputs = (words.unsqueeze(1), length.unsqueeze(1), cache.keys, attention.map)
        hidden, weights, past = self(*inputs, extend, mask)
        weights = weights.squeeze(1)
        log_probs = self.score_words(None, hidden.squeeze(1), None).log_softmax(dim=1)
        return ExportedStep(log_probs, weights, weights.new_ones(len(weights)), past, length + 1)

    def export_state(self, state: DecoderState, max_length: int) -> DecoderState:
        """Return the state before the first word for `export_step`: keys and values (I, N, 2, H, max_length, d), and
        the number of words so far (I,)."""
        self.check_length(max_length)
        hidden = state.hidden
        buffer = hidden.new_zeros(*hidden.shape[:4], max_length, hidden.shape[5])
        return DecoderState(buffer, torch.zeros(len(hidden), dtype=torch.long, device=hidden.device))

    def check_length(self, num_words: int) -> None:
        """Raise `UserError` if captions of so many words are longer than `max_length`."""
        if num_words > self.max_length:
            raise UserError(
                f"decoder.max_length={self.max_length} is too short for captions of {num_words} words; train with a "
                "larger one"
            )

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings of tokens (...) as vectors of the layers (..., n), without positions.

        E y is multiplied by sqrt(m), so that its elements have a variance of 1 at first, like learned positions.
        """
        return self.read_word(math.sqrt(self.embedding.embedding_dim) * super().embed(tokens))

    def output_features(self, embedded: None, hidden: Tensor, context: None) -> Tensor:
        """Return the input of `word_scores` (..., m) from the layers' output (..., n)."""
        return self.read_output(self.output_dropout(hidden))


class TransformerIncrementalDecoder(IncrementalDecoder):
    """The transformer, which keeps the keys and values of the words so far in the state."""

    def step(self, state: DecoderState, images: Tensor, prefix_index: Tensor, tokens: Tensor) -> StepOutput:
        # its attention reads the last word, so that captions of one prefix share nothing
        images, state = images[prefix_index], state.select(prefix_index)
        position, grid = state.hidden.shape[-2], self.grid(images)
        self.decoder.check_length(position + 1)
        hidden, weights, past = self.decoder(
            tokens.unsqueeze(1),
            torch.full((1, 1), position, device=tokens.device),
            self.cache.keys,
            self.attention.map,
            extend=lambda layer, new: torch.cat([state.hidden[:, layer], new], dim=-2),
            grid=grid,
        )
        hidden, weights = hidden.squeeze(1), weights.squeeze(1)
        scores = self.score_next(self.decoder.output_features(None, hidden, None))
        return StepOutput(*scores, state._replace(hidden=past), weights, weights.new_ones(len(weights)))
