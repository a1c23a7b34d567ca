"""What the stages hand to each other, and the letters for sizes that every module uses.

    I  images of a batch      L  regions (annotation vectors) of an image      m  embedding width
    B  captions of a batch    D  width of a region                             n  LSTM width
    T  steps, <eos> included  A  width of the attention                        V  vocabulary

A *caption* is words, *tokens* are their ids, *regions* are annotation vectors, *weights* are the alphas.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from showattendtell.errors import UserError, did_you_mean

if TYPE_CHECKING:  # torch takes seconds to import, and scoring captions needs none of it
    from torch import Tensor


class Box(NamedTuple):
    """A rectangle, x to the right and y downwards: in pixels, or in fractions of an image's width and height."""

    left: float
    top: float
    right: float
    bottom: float

    def scaled(self, x: float, y: float) -> Box:
        return Box(x * self.left, y * self.top, x * self.right, y * self.bottom)

    def clipped(self, frame: Box) -> Box:
        """What of it lies within `frame`; of no area where nothing does."""
        return Box(
            min(max(self.left, frame.left), frame.right),
            min(max(self.top, frame.top), frame.bottom),
            min(max(self.right, frame.left), frame.right),
            min(max(self.bottom, frame.top), frame.bottom),
        )

    @property
    def area(self) -> float:
        """0 where an edge lies beyond its opposite."""
        return max(self.right - self.left, 0.0) * max(self.bottom - self.top, 0.0)


WHOLE = Box(0, 0, 1, 1)
"""All of an image, in fractions."""


class Phrase(NamedTuple):
    """A noun phrase of a caption: the index of its noun among the caption's words, and where it is seen.

    The boxes are in fractions of the image's width and height, and so hold for every resized copy of it. `kind` is the
    sort of thing that is named (people, clothing, ...), where the data set tells it.
    """

    noun: int
    boxes: tuple[Box, ...]
    kind: str = ""


class Caption(NamedTuple):
    """What someone says of an image, in words; `written` is the sentence before it was split."""

    words: tuple[str, ...]
    phrases: tuple[Phrase, ...] = ()
    written: str = ""


class Example(NamedTuple):
    """An image file and what people say of it; `image` is its name within the data set."""

    image: str
    path: str
    captions: tuple[Caption, ...]


class Dataset(NamedTuple):
    """Examples by split. Reports of what a reader passed over stand in `notes`, a sentence each."""

    name: str
    splits: Mapping[str, tuple[Example, ...]]
    notes: tuple[str, ...] = ()

    def split(self, name: str) -> tuple[Example, ...]:
        """The examples of one split; a `UserError` if it is unknown or empty."""
        if name not in self.splits:
            raise UserError(f"dataset {self.name} has no split '{name}'{did_you_mean(name, self.splits)}")
        if not self.splits[name]:
            raise UserError(f"the split '{name}' of dataset {self.name} is empty; check its split list")
        return self.splits[name]

    def examples(self) -> list[Example]:
        return [example for split in self.splits.values() for example in split]

    def without(self, images: Iterable[str]) -> Dataset:
        """The same data set, the named images left out."""
        left_out = set(images)
        kept = {name: tuple(e for e in split if e.image not in left_out) for name, split in self.splits.items()}
        return self._replace(splits=kept)


def fingerprint(examples: Iterable[Example]) -> str:
    """SHA-256 over image names and captions in order: two results are comparable if it is equal."""
    digest = hashlib.sha256()
    for example in examples:
        captions = "\t".join(" ".join(caption.words) for caption in example.captions)
        digest.update(f"{example.image}\t{captions}\n".encode())
    return digest.hexdigest()


class Batch(NamedTuple):
    """Captions with their images; an image stands once, however many of its captions are in the batch.

    images     (I, L, D) regions of a frozen encoder, or (I, 3, H, W) pixels
    owners     (B,) the row of `images` that each caption describes
    tokens     (B, T) the words to be generated, `<eos>` at the end, `<pad>` behind it
    positions  (I,) which of the split's images they are
    """

    images: Tensor
    owners: Tensor
    tokens: Tensor
    positions: Tensor


Content = TypeVar("Content")


class Share(NamedTuple):
    """How much of a training batch one of several processes has; one process alone has all of it.

    weight  what the mean over its captions counts in the mean over processes, so that this is the mean over the batch:
            0 where the batch has fewer captions than there are processes, and another's stands in
    whole   captions of the batch
    """

    weight: float
    whole: int


class Part(NamedTuple, Generic[Content]):
    """A process's share of a training batch, and what is in it: captions, or those with their images."""

    content: Content
    share: Share


class Sample(NamedTuple):
    """Locations that hard attention drew, of one step or (with T behind B) of all.

    Where the expectation stood in for the draws, log p(s) is 0.

    locations        (B, H) which regions, one for each head
    log_probability  (B,) log p(s)
    entropy          (B,) of the distribution that they were drawn from
    """

    locations: Tensor
    log_probability: Tensor
    entropy: Tensor


def at_places(values: Tensor, places: Tensor, shape: tuple[int, int]) -> Tensor:
    """Values of words (N, ...) at their places (N,) among B x T steps, (B, T, ...); 0 elsewhere."""
    padded = values.new_zeros(shape[0] * shape[1], *values.shape[1:])
    return padded.index_copy(0, places, values).unflatten(0, shape)


class Answers(NamedTuple):
    """What N words are told by: their scores are W x + b, from x (N, w), W (V, w) and b (V,)."""

    values: Tensor
    matrix: Tensor
    bias: Tensor


class Trace(NamedTuple):
    """What the captioner said at every step of given captions, and where it looked.

    answers  of the captions' N words
    places   (N,) which of the B * T steps they are; the others are padding, where all that follows is 0
    weights  (B, T, L) alpha, each step sums to 1
    gates    (B, T) beta, between 0 and 1
    sample   what hard attention drew
    """

    answers: Answers
    places: Tensor
    weights: Tensor
    gates: Tensor
    sample: Sample | None = None

    @property
    def logits(self) -> Tensor:
        """Scores of the words (N, V), computed anew."""
        return self.answers.values @ self.answers.matrix.T + self.answers.bias

    def at_steps(self, values: Tensor) -> Tensor:
        """What belongs to the words (N, ...) at their steps (B, T, ...), 0 elsewhere."""
        return at_places(values, self.places, (self.gates.shape[0], self.gates.shape[1]))


class Generated(NamedTuple):
    """A caption that the model wrote: its T words, `<eos>` included where it ended by itself.

    log_probabilities  (T,) log p of each word given those before it
    weights            (T, L) alpha
    gates              (T,) beta
    """

    tokens: list[int]
    log_probabilities: Tensor
    weights: Tensor
    gates: Tensor

    @property
    def log_probability(self) -> float:
        """Of the whole caption."""
        return float(self.log_probabilities.sum())
