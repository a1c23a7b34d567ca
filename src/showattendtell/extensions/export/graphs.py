"""The graphs of an exported captioner, in plain torch.

Inputs and outputs are contiguous tensors: compiled code reads memory in the order of the example that it was compiled
for, and ignores strides.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch._higher_order_ops import while_loop

from showattendtell.data.vocabulary import EOS, PAD, SPECIAL, START, UNK
from showattendtell.decoding.image_captioner import Calibration, ImageCaptioner
from showattendtell.errors import UserError
from showattendtell.models.captioner import Captioner
from showattendtell.models.encoder import Encoder
from showattendtell.models.interfaces import AttentionCache, DecoderState, ExportedStep
from showattendtell.models.kernels.attention import AdditiveKeys

Pixels = Literal["uint8", "float32"]

SUPPRESSED_TOKENS = (PAD, START, UNK)
"""Tokens that no caption contains."""


class EncodeGraph(nn.Module):
    """Encode pixels (I, 3, S, S), uint8 or float32 between 0 and 1, to regions (I, L, D), with positions if the encoder
    adds them."""

    def __init__(self, encoder: Encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, pixels: Tensor) -> Tensor:
        regions = self.encoder(self.encoder.preprocessing.normalize(pixels))
        return self.encoder.prepare_regions(regions).contiguous()


class InitGraph(nn.Module):
    """Initial state: from regions (I, L, D) to attention keys (I, ...), h_0 and c_0 (I, n).

    The last dimension of the keys continues with the attention's `region_scores`, if it has any. A decoder may keep
    other tensors in place of h and c, with room for `max_length` words.
    """

    def __init__(self, captioner: Captioner, max_length: int):
        super().__init__()
        self.captioner, self.max_length = captioner, max_length

    def forward(self, regions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cache, state = self.captioner.init_state(regions)
        state = self.captioner.decoder.export_state(state, self.max_length)
        keys = cache.keys.values if isinstance(cache.keys, AdditiveKeys) else cache.keys
        region_scores = self.captioner.attention.region_scores(self.captioner.decoder, regions)
        if region_scores is not None:
            keys = torch.cat([keys, region_scores], dim=2)
        return keys.contiguous(), state.hidden, state.cell


class StepGraph(nn.Module):
    """One decoding step.

    Args:
        example: an attention cache of the captioner; gives the type of the keys and whether the expectation is used.
    """

    def __init__(self, captioner: Captioner, example: AttentionCache):
        super().__init__()
        self.captioner = captioner
        self._additive, self._expected = isinstance(example.keys, AdditiveKeys), example.use_expectation is not None
        region_scores = captioner.attention.region_scores(captioner.decoder, example.regions)
        self._has_region_scores = region_scores is not None

    def forward(
        self, regions: Tensor, keys: Tensor, image_index: Tensor, hidden: Tensor, cell: Tensor, words: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the fields of `ExportedStep` as a tuple.

        Args:
            regions, keys: of the images (I, ...).
            image_index: (B,) the image of each caption.
            hidden, cell, words: of the captions, (B, n) and their last words (B,).
        """
        return tuple(self.compute(regions[image_index], keys[image_index], DecoderState(hidden, cell), words))

    def compute(self, regions: Tensor, keys: Tensor, state: DecoderState, words: Tensor) -> ExportedStep:
        """Same as `forward`, with the regions and keys of each caption."""
        attention, decoder = self.captioner.attention, self.captioner.decoder
        region_scores = None
        if self._has_region_scores:
            keys, region_scores = keys.tensor_split([keys.shape[2] - decoder.word_scores.out_features], dim=2)
        expected = torch.ones_like(words, dtype=torch.bool) if self._expected else None
        cache = AttentionCache(regions, AdditiveKeys(keys) if self._additive else keys, expected)
        return decoder.export_step(attention, cache, state, words, region_scores)


class GreedyState(NamedTuple):
    """State of greedy search over a batch of captions, at most T steps.

    Attributes:
        number, words: number of steps done, and the last words (B,).
        tokens, log_prob: (B, T), padded with `<pad>`; log p (B,).
        attention, gates: (B, T, L) and (B, T).
        hidden, cell: (B, n).
    """

    number: Tensor
    words: Tensor
    tokens: Tensor
    log_prob: Tensor
    attention: Tensor
    gates: Tensor
    hidden: Tensor
    cell: Tensor


class GreedyGraph(nn.Module):
    """Greedy search from pixels (I, 3, S, S) to whole captions: tokens (I, T) with `<pad>` after
    `<eos>`, log p (I,), alpha (I, T, L), beta (I, T). The graph contains the loop, which ends with the longest caption.

    Args:
        max_length: T.
        num_languages: number of tokens of languages after the special ones, which are not generated.
    """

    never: Tensor

    def __init__(self, encode: EncodeGraph, begin: InitGraph, step: StepGraph, max_length: int, num_languages: int = 0):
        super().__init__()
        self.encode, self.begin, self.step, self.max_length = encode, begin, step, max_length
        never = torch.zeros(step.captioner.decoder.word_scores.out_features, dtype=torch.bool)
        languages = range(len(SPECIAL), len(SPECIAL) + num_languages)
        self.register_buffer("never", never.index_fill(0, torch.tensor([*SUPPRESSED_TOKENS, *languages]), True))

    def forward(self, pixels: Tensor, language: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the captions.

        Args:
            language: (I,) the token of each caption's language, for a model of several. It is read first, and is not
                among the tokens that are returned.
        """
        regions = self.encode(pixels)
        keys, hidden, cell = self.begin(regions)
        images, num_regions = regions.shape[:2]
        shape, words = (images, self.max_length), torch.full((images,), START)
        if language is not None:
            output = self.step.compute(regions, keys, DecoderState(hidden, cell), words)
            words, hidden, cell = language, output.hidden, output.cell
        first = GreedyState(
            torch.zeros((), dtype=torch.long),
            words,
            torch.full(shape, PAD),
            regions.new_zeros(images),
            regions.new_zeros(*shape, num_regions),
            regions.new_zeros(shape),
            hidden,
            cell,
        )

        def is_open(*values: Tensor) -> Tensor:
            state = GreedyState(*values)
            return (state.number < self.max_length) & (state.words != EOS).any()

        def step(*values: Tensor) -> tuple[Tensor, ...]:
            return tuple(self._append(GreedyState(*values), regions, keys))

        done = GreedyState(*while_loop(is_open, step, tuple(first)))
        return done.tokens, done.log_prob, done.attention, done.gates

    def _append(self, state: GreedyState, regions: Tensor, keys: Tensor) -> GreedyState:
        """Append the likeliest words; captions that have ended stay unchanged."""
        output = self.step.compute(regions, keys, DecoderState(state.hidden, state.cell), state.words)
        is_open = state.words != EOS
        best, words = output.log_probs.masked_fill(self.never, -torch.inf).max(dim=1)
        is_current = (torch.arange(self.max_length) == state.number) & is_open.unsqueeze(1)  # (B, T)
        return GreedyState(
            state.number + 1,
            torch.where(is_open, words, EOS),
            torch.where(is_current, words.unsqueeze(1), state.tokens),
            state.log_prob + best * is_open,
            torch.where(is_current.unsqueeze(2), output.attention.unsqueeze(1), state.attention),
            torch.where(is_current, output.gates.unsqueeze(1), state.gates),
            output.hidden,
            output.cell,
        )


class Graph(NamedTuple):
    """A module to be exported.

    Attributes:
        example: example inputs.
        inputs: names of the inputs, each with the name of its first dimension.
        outputs: names of the outputs.
        rows: name of the outputs' first dimension.
    """

    module: Any
    example: tuple[Tensor, ...]
    inputs: Mapping[str, str]
    outputs: tuple[str, ...]
    rows: str

    @classmethod
    def of_images(cls, module: nn.Module, inputs: Mapping[str, Tensor], *outputs: str) -> "Graph":
        """Return a graph whose inputs and outputs all have a row per image."""
        return cls(module, tuple(inputs.values()), dict.fromkeys(inputs, "images"), outputs, "images")


@torch.no_grad()
def graphs_of(
    model: ImageCaptioner, pixels: Pixels, max_length: int, calibration: Calibration | None = None
) -> dict[str, Graph]:
    """Return the graphs of a model in plain torch; call and export them within `plain_torch()`.

    A calibrated model has one more, `unlikeness`, from regions (I, L, D) to (I,).

    Raises:
        UserError: the attention samples, or its keys are not tensors.
    """
    attention = model.captioner.attention
    attention.check_export()
    side = model.encoder.preprocessing.crop
    pixels_example = torch.zeros(2, 3, side, side, dtype=getattr(torch, pixels))
    encode, begin = EncodeGraph(model.encoder), InitGraph(model.captioner, max_length)
    regions = encode(pixels_example)
    cache, _ = model.captioner.init_state(regions)
    if not isinstance(cache.keys, AdditiveKeys | Tensor):
        raise UserError(f"{type(attention).__name__} keeps keys that are not tensors; only tensors can be exported")
    keys, hidden, cell = begin(regions)
    image_index = torch.tensor([0, 0, 1])
    last = (image_index, hidden[image_index], cell[image_index], torch.full_like(image_index, START))
    axes = {"regions": "images", "keys": "images"}
    axes |= dict.fromkeys(("image_index", "hidden", "cell", "words"), "captions")
    outputs = ("log_probs", "attention", "gates", "next_hidden", "next_cell")
    step = Graph(StepGraph(model.captioner, cache), (regions, keys, *last), axes, outputs, "captions")
    greedy_inputs, num_languages = {"pixels": pixels_example}, len(model.vocabulary.languages)
    if num_languages:
        greedy_inputs["language"] = torch.full((2,), len(SPECIAL))
    greedy = GreedyGraph(encode, begin, step.module, max_length, num_languages)
    graphs = {
        "encode": Graph.of_images(encode, {"pixels": pixels_example}, "regions"),
        "begin": Graph.of_images(begin, {"regions": regions}, "keys", "hidden", "cell"),
        "step": step,
        "greedy": Graph.of_images(greedy, greedy_inputs, "tokens", "log_prob", "attention", "gates"),
    }
    if calibration is not None:
        graphs["unlikeness"] = Graph.of_images(calibration, {"regions": regions}, "unlikeness")
    return graphs
