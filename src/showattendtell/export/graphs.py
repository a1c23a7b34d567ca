"""What is exported of a captioner: its four graphs, in plain torch.

Between them there are tensors only, and contiguous ones: machine code reads the memory of what it is given in the order
of the example that it was compiled for, and looks at no stride.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch._higher_order_ops import while_loop

from showattendtell.captioning import ImageCaptioner
from showattendtell.encoder import Encoder
from showattendtell.errors import UserError
from showattendtell.model.additive import Keys
from showattendtell.model.captioner import Captioner
from showattendtell.model.hard import HardAttention
from showattendtell.model.steps import Memory, State
from showattendtell.text.vocabulary import EOS, PAD, START

Pixels = Literal["uint8", "float32"]

NEVER = (PAD, START)
"""Words that no caption says."""


class Encode(nn.Module):
    """Pixels (I, 3, S, S), uint8 or float32 between 0 and 1, to regions (I, L, D), with places where the encoder tells
    them."""

    def __init__(self, encoder: Encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, pixels: Tensor) -> Tensor:
        regions = self.encoder(self.encoder.preprocessing.normalise(pixels))
        return self.encoder.locate(regions).contiguous()


class Begin(nn.Module):
    """Regions (I, L, D) to attention's keys (I, ...), h_0 and c_0 (I, n)."""

    def __init__(self, captioner: Captioner):
        super().__init__()
        self.captioner = captioner

    def forward(self, regions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        memory, state = self.captioner.begin(regions)
        keys = memory.keys.values if isinstance(memory.keys, Keys) else memory.keys
        return keys.contiguous(), state.hidden, state.cell


class Said(NamedTuple):
    """What a step gives: log p of the next word (B, V), alpha (B, L), beta (B,), h and c (B, n)."""

    log_p: Tensor
    weights: Tensor
    gate: Tensor
    hidden: Tensor
    cell: Tensor


class Step(nn.Module):
    """One word further.

    Args:
        example: a memory of the captioner's, which tells what the keys are and whether the expectation is looked at.
    """

    def __init__(self, captioner: Captioner, example: Memory):
        super().__init__()
        self.captioner = captioner
        self._additive, self._expected = isinstance(example.keys, Keys), example.expected is not None

    def forward(
        self, regions: Tensor, keys: Tensor, owners: Tensor, hidden: Tensor, cell: Tensor, words: Tensor
    ) -> tuple[Tensor, ...]:
        """What `Said` names.

        Args:
            regions, keys: of the images (I, ...).
            owners: (B,) the image of each caption.
            hidden, cell, words: of the captions, (B, n) and their last words (B,).
        """
        return tuple(self.look(regions[owners], keys[owners], State(hidden, cell), words))

    def look(self, regions: Tensor, keys: Tensor, state: State, words: Tensor) -> Said:
        """As `forward`, with regions and keys of each caption."""
        decoder = self.captioner.decoder
        expected = torch.ones_like(words, dtype=torch.bool) if self._expected else None
        memory = Memory(regions, Keys(keys) if self._additive else keys, expected)
        glimpse = self.captioner.attention(memory, state)
        embedded = decoder.embed(words)
        hidden, cell = decoder.advance(decoder.word_gates(embedded), glimpse.context, state)
        log_p = decoder.score_words(embedded, hidden, glimpse.context).log_softmax(dim=1)
        return Said(log_p, glimpse.weights, glimpse.gate, hidden, cell)


class Course(NamedTuple):
    """Captions that are being written all at once, T steps at most.

    number, words      how many steps are done, and the last words (B,)
    tokens, total      (B, T), `<pad>` behind the ends; log p (B,)
    weights, gates     (B, T, L) and (B, T)
    hidden, cell       (B, n)
    """

    number: Tensor
    words: Tensor
    tokens: Tensor
    total: Tensor
    weights: Tensor
    gates: Tensor
    hidden: Tensor
    cell: Tensor


class Greedy(nn.Module):
    """Pixels (I, 3, S, S) to whole captions, of the likeliest word at every step: tokens (I, T) with `<pad>` behind
    `<eos>`, log p (I,), alpha (I, T, L), beta (I, T). The loop is in the graph, and ends with the longest caption.

    Args:
        max_length: T.
    """

    never: Tensor

    def __init__(self, encode: Encode, begin: Begin, step: Step, max_length: int):
        super().__init__()
        self.encode, self.begin, self.step, self.max_length = encode, begin, step, max_length
        never = torch.zeros(step.captioner.decoder.word_scores.out_features, dtype=torch.bool)
        self.register_buffer("never", never.index_fill(0, torch.tensor(NEVER), True))

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        regions = self.encode(pixels)
        keys, hidden, cell = self.begin(regions)

        def is_unfinished(*course: Tensor) -> Tensor:
            now = Course(*course)
            return (now.number < self.max_length) & (now.words != EOS).any()

        def go_on(*course: Tensor) -> tuple[Tensor, ...]:
            now = Course(*course)
            return tuple(self._append(now, self.step.look(regions, keys, State(now.hidden, now.cell), now.words)))

        done = Course(*while_loop(is_unfinished, go_on, tuple(self._first(regions, hidden, cell))))
        return done.tokens, done.total, done.weights, done.gates

    def _first(self, regions: Tensor, hidden: Tensor, cell: Tensor) -> Course:
        images, num_regions = regions.shape[:2]
        shape = (images, self.max_length)
        words = torch.full((images,), START)
        number, total = torch.zeros((), dtype=torch.long), regions.new_zeros(images)
        weights, gates = regions.new_zeros(*shape, num_regions), regions.new_zeros(shape)
        return Course(number, words, torch.full(shape, PAD), total, weights, gates, hidden, cell)

    def _append(self, course: Course, said: Said) -> Course:
        """What ended earlier stays as it is."""
        is_open = course.words != EOS
        best, words = said.log_p.masked_fill(self.never, -torch.inf).max(dim=1)
        here = (torch.arange(self.max_length) == course.number) & is_open.unsqueeze(1)  # (B, T)
        return Course(
            course.number + 1,
            torch.where(is_open, words, EOS),
            torch.where(here, words.unsqueeze(1), course.tokens),
            course.total + best * is_open,
            torch.where(here.unsqueeze(2), said.weights.unsqueeze(1), course.weights),
            torch.where(here, said.gate.unsqueeze(1), course.gates),
            said.hidden,
            said.cell,
        )


class Graph(NamedTuple):
    """A module to be exported.

    example   tensors as it takes them
    inputs    their names, and what the rows of each are
    outputs   the names of what it gives
    rows      what the rows of that are
    """

    module: nn.Module
    example: tuple[Tensor, ...]
    inputs: Mapping[str, str]
    outputs: tuple[str, ...]
    rows: str


@torch.no_grad()
def graphs_of(model: ImageCaptioner, pixels: Pixels, max_length: int) -> dict[str, Graph]:
    """The graphs of a model in plain torch; call and export them within `plain_torch()`.

    Raises `UserError` for attention that draws, and for keys that are no tensor.
    """
    attention = model.captioner.attention
    if isinstance(attention, HardAttention) and attention.test == "sample":
        raise UserError(
            "hard attention draws where this checkpoint looks, and a graph draws nothing; give attention.test=argmax "
            "(the likeliest region) or attention.test=expectation"
        )
    side = model.encoder.preprocessing.crop
    seen = torch.zeros(2, 3, side, side, dtype=getattr(torch, pixels))
    encode, begin = Encode(model.encoder), Begin(model.captioner)
    regions = encode(seen)
    memory, _ = model.captioner.begin(regions)
    if not isinstance(memory.keys, Keys | Tensor):
        raise UserError(f"{type(attention).__name__} keeps keys that are no tensor; only tensors can be exported")
    keys, hidden, cell = begin(regions)
    step, owners = Step(model.captioner, memory), torch.tensor([0, 0, 1])
    written = (regions, keys, owners, hidden[owners], cell[owners], torch.full_like(owners, START))
    images = dict.fromkeys(("regions", "keys"), "images")
    rows = images | dict.fromkeys(("owners", "hidden", "cell", "words"), "captions")
    captions = ("tokens", "log_probability", "weights", "gates")
    greedy = Greedy(encode, begin, step, max_length)
    return {
        "encode": Graph(encode, (seen,), {"pixels": "images"}, ("regions",), "images"),
        "begin": Graph(begin, (regions,), {"regions": "images"}, ("keys", "hidden", "cell"), "images"),
        "step": Graph(step, written, rows, ("log_p", "weights", "gate", "next_hidden", "next_cell"), "captions"),
        "greedy": Graph(greedy, (seen,), {"pixels": "images"}, captions, "images"),
    }
