"""Types that are passed between the stages of the pipeline, and the symbols for sizes that every module uses.

    I  images of a batch      L  regions (annotation vectors) of an image    m  width of word embeddings
    B  captions of a batch    D  width of a region                           n  width of the LSTM's state
    T  steps, <eos> included  A  width of the attention                      V  size of the vocabulary

A *caption* is a list of words and *tokens* are their ids. *Regions* are the annotation vectors a_i, attention *weights*
the alpha_ti, *gates* the beta_t and *context* the vector z_t of Xu et al. (2015). Logarithms are natural.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from showattendtell.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor


class Box(NamedTuple):
    """A rectangle, with x to the right and y downwards, in pixels or in fractions of an image's width and height."""

    left: float
    top: float
    right: float
    bottom: float

    def scaled(self, x: float, y: float) -> Box:
        return Box(x * self.left, y * self.top, x * self.right, y * self.bottom)

    def clipped(self, frame: Box) -> Box:
        """Return the part within `frame`; its area is 0 if the boxes do not overlap."""
        left, right = (min(max(x, frame.left), frame.right) for x in (self.left, self.right))
        top, bottom = (min(max(y, frame.top), frame.bottom) for y in (self.top, self.bottom))
        return Box(left, top, right, bottom)

    @property
    def area(self) -> float:
        """Return width times height, 0 for an empty box."""
        return max(self.right - self.left, 0.0) * max(self.bottom - self.top, 0.0)


WHOLE = Box(0, 0, 1, 1)
"""The box of a whole image, in fractions."""


class Phrase(NamedTuple):
    """A noun phrase of a caption with its ground-truth boxes.

    noun   index of the noun in the caption's words
    boxes  in fractions of the image's width and height, so that they are valid for every resized copy
    kind   category of the named thing (people, clothing, ...), empty if the data set has none
    """

    noun: int
    boxes: tuple[Box, ...]
    kind: str = ""


class Caption(NamedTuple):
    """A reference caption.

    words    in the tokens of the model's tokenizer
    phrases  its noun phrases with ground-truth boxes
    written  the sentence before tokenization
    plain    its plain words, if the tokenizer is another one
    """

    words: tuple[str, ...]
    phrases: tuple[Phrase, ...] = ()
    written: str = ""
    plain: tuple[str, ...] = ()

    @property
    def plain_words(self) -> tuple[str, ...]:
        """Lower-case words without punctuation, whatever the tokenizer."""
        return self.plain or self.words

    @property
    def sentence(self) -> str:
        """The sentence before tokenization; the plain words of one that was not written down."""
        return self.written or " ".join(self.plain_words)


class Example(NamedTuple):
    """An image file with its reference captions.

    image    its name in the data set
    objects  the categories of its annotated objects, None if nobody annotated it
    """

    image: str
    path: str
    captions: tuple[Caption, ...]
    objects: tuple[str, ...] | None = None


class Dataset(NamedTuple):
    """Examples by split; `notes` has a sentence for everything that the reader skipped."""

    name: str
    splits: Mapping[str, tuple[Example, ...]]
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The name without the checksum that keeps data sets in folders of the same name apart."""
        return re.sub("-[0-9a-f]{6}$", "", self.name)

    def split(self, name: str) -> tuple[Example, ...]:
        """Return the examples of a split. Raise `UserError` if it is unknown or empty."""
        if name in ("val", "test") and name not in self.splits:
            folder = next((os.path.dirname(example.path) for example in self.examples()), self.name)
            raise UserError(
                f"{folder} has no split '{name}'; list images for it, or with dataset=custom set dataset.{name} above 0"
            )
        if name not in self.splits:
            raise UserError(f"dataset {self.name} has no split '{name}'{did_you_mean(name, self.splits)}")
        if not self.splits[name]:
            raise UserError(f"the split '{name}' of dataset {self.name} is empty; check its split list")
        return self.splits[name]

    def examples(self) -> list[Example]:
        return [example for split in self.splits.values() for example in split]

    def first(self, number: int) -> Dataset:
        """Return a data set of the first images of each split; itself if no split has more."""
        if all(len(split) <= number for split in self.splits.values()):
            return self
        splits = {name: split[:number] for name, split in self.splits.items()}
        return self._replace(name=f"{self.name}-first{number}", splits=splits)

    def map(self, change: Callable[[Example], Example]) -> Dataset:
        """Return the data set with every example replaced by `change(example)`."""
        return self._replace(splits={split: tuple(map(change, part)) for split, part in self.splits.items()})

    def without(self, images: Iterable[str]) -> Dataset:
        """Return the data set without the named images."""
        left_out = set(images)
        splits = {name: tuple(e for e in split if e.image not in left_out) for name, split in self.splits.items()}
        return self._replace(splits=splits)


def fingerprint(examples: Iterable[Example]) -> str:
    """Return the SHA-256 of image names and captions in order, whatever the tokenizer. Results with equal ones are
    comparable."""
    digest = hashlib.sha256()
    for example in examples:
        captions = "\t".join(" ".join(caption.plain_words) for caption in example.captions)
        digest.update(f"{example.image}\t{captions}\n".encode())
    return digest.hexdigest()


class AttentionTargets(NamedTuple):
    """Attention maps that the ground-truth boxes of N words of a batch ask for.

    indices  (N,) positions of the words among the B * T steps
    masses   (N, L) the area of the word's boxes in each region, divided by their whole area, so that the sum is 1
    """

    indices: Tensor
    masses: Tensor


class Batch(NamedTuple):
    """Captions with their images. Each image appears once per batch, however many of its captions do.

    images       (I, L, D) regions of a frozen encoder, or (I, 3, H, W) pixels
    image_index  (B,) the row of `images` that each caption describes
    tokens       (B, T) the target words, `<eos>` at the end, then `<pad>`
    positions    (I,) indices of the images in the split
    targets      attention maps of the words that have boxes, if the loss reads them
    """

    images: Tensor
    image_index: Tensor
    tokens: Tensor
    positions: Tensor
    targets: AttentionTargets | None = None


Content = TypeVar("Content")


class BatchShard(NamedTuple):
    """The size of one process's shard of a training batch.

    weight        factor on the mean over the shard's captions, such that the mean over processes is the mean over the
                  batch; 0 if the batch has fewer captions than there are processes and this shard repeats a caption
    num_captions  number of captions in the whole batch
    """

    weight: float
    num_captions: int


class ShardedBatch(NamedTuple, Generic[Content]):
    """A shard of a training batch: its captions, or a `Batch` of them with images."""

    content: Content
    shard: BatchShard


class SampledLocations(NamedTuple):
    """Locations sampled by hard attention, at one step or (with a dimension T after B) at all steps.

    locations  (B, H) index of the region for each head
    log_prob   (B,) log p(s), 0 where the expectation was used instead of a sample
    entropy    (B,) entropy of the distribution that they were sampled from
    """

    locations: Tensor
    log_prob: Tensor
    entropy: Tensor

    @classmethod
    def of(cls, log_weights: Tensor, locations: Tensor, use_expectation: Tensor | None) -> SampledLocations:
        """Return the locations (..., H) with log p and entropy under log alpha (..., H, L).

        Heads are independent: log p(s) = sum_h log alpha_h(s_h), and H[s] = -sum_h sum_i alpha_hi log alpha_hi. log p
        is 0 where `use_expectation` (...), so that these captions have no REINFORCE term.
        """
        log_prob = log_weights.gather(-1, locations.unsqueeze(-1)).sum(dim=(-2, -1))
        if use_expectation is not None:
            log_prob = log_prob.masked_fill(use_expectation, 0.0)
        entropy = -(log_weights.exp() * log_weights).sum(dim=(-2, -1))  # exp(log alpha) has a finite gradient
        return cls(locations, log_prob, entropy)


def scatter_words(values: Tensor, indices: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return the values (N, ...) of words at steps `indices` (N,) of B * T: (B, T, ...), 0 elsewhere."""
    padded = values.new_zeros(shape[0] * shape[1], *values.shape[1:])
    return padded.index_copy(0, indices, values).unflatten(0, shape)


class CaptionerOutput(NamedTuple):
    """Output of the captioner for given captions (teacher forcing).

    output_features  inputs of the output layer for the N words, an `OutputFeatures`
    indices          (N,) positions of these words among the B * T steps; the others are padding: weights and gates 0
    weights          (B, T, L) alpha, which sums to 1 at every step
    gates            (B, T) beta, between 0 and 1
    sample           the locations sampled by hard attention
    """

    output_features: Any
    indices: Tensor
    weights: Tensor
    gates: Tensor
    sample: SampledLocations | None = None

    @property
    def logits(self) -> Tensor:
        """Logits of the words (N, V), computed at every access."""
        return self.output_features.logits()

    def at_steps(self, values: Tensor) -> Tensor:
        """Return values of the words (N, ...) at their steps (B, T, ...), 0 elsewhere."""
        return scatter_words(values, self.indices, (self.gates.shape[0], self.gates.shape[1]))


Array = TypeVar("Array")

NOT_SURE = " (not sure)"
"""The mark of doubt behind a caption."""


class CaptionOutput(NamedTuple, Generic[Array]):
    """A generated caption of T tokens, `<eos>` included if it was generated, and the attention at each of them.

    tokens     T ids
    log_probs  (T,) log p of each token given the tokens before it
    attention  (T, L) alpha, which sums to 1 at every step; (T, rows, columns) where the grid is known
    gates      (T,) beta
    words      the words without `<eos>`, if the tokens have been decoded: the text of each token without spaces
    confidence_log_probs  (T,) log p of each token as a Confidence rates it, if the model has one
    not_sure   whether the image is unlike those that the model was trained on, as its Confidence says
    parts      what each word adds to the caption, with the space before it; empty if words are joined by spaces
    """

    tokens: list[int]
    log_probs: Array
    attention: Array
    gates: Array
    words: tuple[str, ...] = ()
    confidence_log_probs: Array | None = None
    not_sure: bool = False
    parts: tuple[str, ...] = ()

    @property
    def caption(self) -> str:
        """The words as one string."""
        return "".join(self.parts) if self.parts else " ".join(self.words)

    @property
    def marked(self) -> str:
        """The caption, with the mark of doubt if the model is not sure of the image."""
        return self.caption + NOT_SURE * self.not_sure

    @property
    def log_prob(self) -> float:
        """log p of the whole caption."""
        return float(self.log_probs.sum())  # type: ignore[attr-defined]

    @property
    def is_calibrated(self) -> bool:
        """Whether the model has a `Confidence`."""
        return self.confidence_log_probs is not None

    @property
    def confidence(self) -> float:
        """Geometric mean of the tokens' probabilities, 0 to 1: exp(log p / T), as rated if the model has a
        `Confidence`."""
        return math.exp(float(self.best_log_probs.sum()) / max(len(self.tokens), 1))  # type: ignore[attr-defined]

    @property
    def best_log_probs(self) -> Array:
        """log p of each token (T,), as rated if the model has a `Confidence`."""
        return self.log_probs if self.confidence_log_probs is None else self.confidence_log_probs
