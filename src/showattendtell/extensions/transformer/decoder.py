"""A transformer decoder, which attends to the regions in every layer (Vaswani et al. 2017), and its attention map.

Sizes are those of `showattendtell.types`, and n is the width of the layers. There are N layers of H heads of width
d = n / H. R is the number of images, or of captions whose keys and values were copied from their images; t is the
number of words that were read before.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from showattendtell.errors import UserError
from showattendtell.extensions.transformer.layers import TransformerLayer
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

Map = Literal["last", "rollout"] | PositiveInt
DropoutPlace = Literal["regions", "words", "layers", "output"]


class CrossAttention(Attention):
    """The attention of the transformer decoder, which is part of its layers and has its weights there.

    Args:
        region_dim: D.
        hidden_dim: n.
        map: the attention map alpha: the mean over heads in the last layer (last) or in the layer of this number, from
            1; rollout follows the words through all layers (Abnar and Zuidema 2020). It can be changed after training.
    """

    selective = True

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
        if not isinstance(self.map, str) and self.map > len(decoder.layers):
            raise ValueError(
                f"attention.map={self.map} is not a layer of the decoder, which has {len(decoder.layers)}; choose "
                "one of them, last or rollout"
            )

    def check_export(self) -> None:
        if self.map == "rollout":
            raise UserError(
                "attention.map=rollout needs the maps of all words before, which a graph does not keep; set "
                "attention.map=last or the number of a layer"
            )


class TransformerOutput(NamedTuple):
    """Output for T words of each caption: the vectors (B, T, n), alpha (B, T, L), and the state after these words."""

    hidden: Tensor
    weights: Tensor
    state: DecoderState


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
        positions: of the words: learned vectors, or rotary (Su et al. 2021), which have no largest length.
        max_length: the largest number of words, `<eos>` included, of learned positions.
        tie_embeddings: share the weights of L_o and E, which suits small data sets.

    Raises:
        ValueError: n is not a multiple of the heads, or for rotary positions of twice the heads.
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
        positions: Literal["learned", "rotary"] = "learned",
        max_length: PositiveInt = 128,
        tie_embeddings: bool = False,
    ):
        super().__init__(vocabulary_size, embedding_dim, hidden_dim)
        step = num_heads if positions == "learned" else 2 * num_heads
        if hidden_dim % step:
            raise ValueError(
                f"decoder.hidden_dim={hidden_dim} cannot be divided into decoder.num_heads={num_heads} with "
                f"{positions} positions; choose a multiple of {step}"
            )
        self.num_heads, self.max_length = num_heads, max_length
        self.region_dropout, self.word_dropout, layer_dropout, self.output_dropout = (
            nn.Dropout(dropout * (place in dropout_places)) for place in ("regions", "words", "layers", "output")
        )
        self.read_regions = nn.Sequential(Linear(region_dim, hidden_dim), nn.LayerNorm(hidden_dim))
        same = embedding_dim == hidden_dim
        self.read_word = nn.Identity() if same else Linear(embedding_dim, hidden_dim)
        self.positions = nn.Embedding(max_length, hidden_dim) if positions == "learned" else None
        self.layers = nn.ModuleList(
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
        """Return the state before the first word: keys and values (I, N, 2, H, 0, d) and the rollout maps
        (I, N - 1, 0, L) of no words."""
        images, num_regions = regions.shape[:2]
        layers, head_dim = len(self.layers), self.hidden_dim // self.num_heads
        return DecoderState(
            regions.new_empty(images, layers, 2, self.num_heads, 0, head_dim),
            regions.new_empty(images, layers - 1, 0, num_regions),
        )

    def precompute(self, regions: Tensor) -> AttentionCache:
        """Return the attention cache of the images, with the layers' keys and values (I, N, 2, H, L, d)."""
        projected = self.read_regions(regions)
        return AttentionCache(regions, torch.stack([layer.precompute(projected) for layer in self._layers()], dim=1))

    def unroll(self, attention: CrossAttention, captions: GivenCaptions) -> Steps:
        image_index, packing, present = captions.image_index, captions.packing, captions.cache.present
        present = None if present is None else present[image_index]
        state, regions = captions.state.select(image_index), captions.cache.keys[image_index]
        output = self(captions.inputs, regions, state, attention.map, present=present)
        hidden, weights = packing.pack(output.hidden), packing.pack(output.weights)
        return Steps(hidden, weights, weights.new_ones(len(weights)))

    @torch.no_grad()
    def incremental(self, captioner: Captioner) -> Callable[[Tensor], IncrementalDecoder]:
        return partial(TransformerIncrementalDecoder, captioner, transposed(self.word_scores.weight))

    def forward(
        self,
        tokens: Tensor,
        regions: Tensor,
        state: DecoderState,
        map: Map,
        grid: CaptionGrid | None = None,
        present: Tensor | None = None,
    ) -> TransformerOutput:
        """Read T more words of each caption.

        Args:
            tokens: (B, T).
            regions: `keys` of the attention cache, with a row per caption; with `grid`, per image.
            state: after the t words before.
            map: see `CrossAttention`.
            grid: the captions of each image; needs T = 1.
            present: false for padding among the regions, (R, L) with the rows of `regions`; None without.
        """
        num_past, num_words = state.hidden.shape[-2], tokens.shape[1]
        positions = torch.arange(num_past, num_past + num_words, device=tokens.device)
        self._check_length(num_past + num_words)
        mask = None
        if num_words > 1:  # word i reads the words up to itself
            mask = torch.arange(num_past + num_words, device=tokens.device) <= positions.unsqueeze(1)

        def extend(number: int, new: Tensor) -> Tensor:
            return torch.cat([state.hidden[:, number], new], dim=-2)

        return self._run(tokens, positions.unsqueeze(0), mask, extend, regions, state.cell, map, grid, present)

    def export_step(
        self,
        attention: CrossAttention,
        cache: AttentionCache,
        state: DecoderState,
        words: Tensor,
        region_scores: Tensor | None,
    ) -> ExportedStep:
        length = state.cell  # of the words before, (B,)
        offsets = torch.arange(state.hidden.shape[-2], device=words.device) - length.unsqueeze(1)  # (B, T)
        is_current, mask = (offsets == 0)[:, None, None, :, None], (offsets <= 0)[:, None, None, :]

        def extend(layer: int, new: Tensor) -> Tensor:
            return torch.where(is_current, new, state.hidden[:, layer])

        no_rollout = state.hidden.new_empty(len(words), 0, 0, 0)
        positions = length.unsqueeze(1)
        output = self._run(words.unsqueeze(1), positions, mask, extend, cache.keys, no_rollout, attention.map, None)
        weights = output.weights.squeeze(1)
        log_probs = self.score_words(None, output.hidden.squeeze(1), None).log_softmax(dim=1)
        return ExportedStep(log_probs, weights, weights.new_ones(len(weights)), output.state.hidden, length + 1)

    def export_state(self, state: DecoderState, max_length: int) -> DecoderState:
        """Return the state before the first word for `export_step`: keys and values (I, N, 2, H, max_length, d), and
        the number of words so far (I,)."""
        self._check_length(max_length)
        hidden = state.hidden
        buffer = hidden.new_zeros(*hidden.shape[:4], max_length, hidden.shape[5])
        return DecoderState(buffer, torch.zeros(len(hidden), dtype=torch.long, device=hidden.device))

    def _check_length(self, num_words: int) -> None:
        if self.positions is not None and num_words > self.max_length:
            raise UserError(
                f"decoder.max_length={self.max_length} is too short for captions of {num_words} words; train with a "
                "larger one, or with decoder.positions=rotary"
            )

    def _layers(self) -> list[TransformerLayer]:
        return list(self.layers)  # type: ignore[arg-type]  # nn.ModuleList has no element type

    def _run(
        self,
        tokens: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        extend: Callable[[int, Tensor], Tensor],
        regions: Tensor,
        past_rollout: Tensor,
        map: Map,
        grid: CaptionGrid | None,
        present: Tensor | None = None,
    ) -> TransformerOutput:
        """Compute the layers for tokens (B, T) at `positions` (B or 1, T) of their captions.

        With rollout, R_l (t, L) is the share of each region in each word's vector after layer l, if a residual
        connection keeps half of a vector (Abnar and Zuidema 2020); a caption starts with R_0 = 0:

            R_l = ((R_{l-1} + A_self R_{l-1}) / 2 + A_cross) / 2     alpha = R_N / (1 - 2^-N)
        """
        x = self.embed(tokens)
        angles = None
        if self.positions is None:
            half = self.hidden_dim // self.num_heads // 2
            frequencies = 10000 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
            angles = (positions.unsqueeze(-1) * frequencies).unsqueeze(1)  # (B or 1, 1, T, d / 2)
        else:
            x = x + self.positions(positions)
        x = self.word_dropout(x)
        is_rollout, map_layer = map == "rollout", len(self.layers) if isinstance(map, str) else map
        pasts: list[Tensor] = []
        rollout: list[Tensor] = []
        alpha = x.new_empty(0)
        for i, layer in enumerate(self._layers()):
            with_weights = (is_rollout and i > 0, is_rollout or i + 1 == map_layer)
            past_of_layer = partial(extend, i)
            x, past, self_weights, cross_weights = layer(
                x, past_of_layer, mask, angles, regions[:, i], grid, present, with_weights
            )
            pasts.append(past)
            if is_rollout:
                assert cross_weights is not None
                alpha = cross_weights / 2
                if self_weights is not None:
                    self_rollout = torch.cat([past_rollout[:, i - 1], rollout[-1]], dim=1)  # (B, t + T, L)
                    alpha = alpha + (rollout[-1] + self_weights @ self_rollout) / 4
                rollout.append(alpha)
            elif cross_weights is not None:
                alpha = cross_weights
        if is_rollout:
            alpha = alpha / (1 - 2 ** -len(self.layers))
            past_rollout = torch.cat([past_rollout, torch.stack(rollout, dim=1)[:, :-1]], dim=2)
        return TransformerOutput(self.norm(x), alpha, DecoderState(torch.stack(pasts, dim=1), past_rollout))

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
        images = images[prefix_index]
        grid = self.grid(images)
        inputs = (tokens.unsqueeze(1), self.cache.keys, state.select(prefix_index))
        hidden, weights, state = self.decoder(*inputs, self.attention.map, grid, self.cache.present)
        hidden, weights = hidden.squeeze(1), weights.squeeze(1)
        steps = Steps(hidden, weights, weights.new_ones(len(weights)))
        return StepOutput(*self.scorer(steps, images), state, weights, steps.gates)
