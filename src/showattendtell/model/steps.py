"""What attention and decoder hand to each other at every step."""

from typing import Any, NamedTuple

from torch import Tensor

from showattendtell.records import Sample


class State(NamedTuple):
    """The decoder's memory of the words so far, a row a caption: the LSTM's h and c, (B, n) each."""

    hidden: Tensor
    cell: Tensor

    def select(self, rows: Tensor) -> "State":
        return State(self.hidden.index_select(0, rows), self.cell.index_select(0, rows))


class Memory(NamedTuple):
    """What attention keeps of the images, a row an image.

    regions   (R, L, D)
    keys      (R, ...) the part of the score that depends on the image alone
    expected  (R,) true where hard attention looks at the expectation for the whole caption; None: nowhere
    """

    regions: Tensor
    keys: Any
    expected: Tensor | None = None

    def select(self, rows: Tensor) -> "Memory":
        expected = None if self.expected is None else self.expected[rows]
        return Memory(self.regions[rows], self.keys[rows], expected)


class Glimpse(NamedTuple):
    """One look of every caption at its image: the context z (B, D), alpha (B, L), beta (B,), and what was drawn.

    With several heads alpha is their mean, with a gate per channel beta is the channels' mean.
    """

    context: Tensor
    weights: Tensor
    gate: Tensor
    sample: Sample | None = None


class Course(NamedTuple):
    """All steps of captions, N words: h (N, n), z (N, D), alpha (N, L), beta (N,), and what was drawn."""

    hidden: Tensor
    context: Tensor
    weights: Tensor
    gates: Tensor
    sample: Sample | None = None


class Step(NamedTuple):
    """One step of B captions that are being written, which continue P stems.

    scores       (B, V) log p of the next word, up to a constant
    normalisers  (B,) that constant
    state        of the captions, behind their last words
    weights      (P, L) alpha
    gate         (P,) beta
    locations    (P, H) which regions hard attention drew; None where nothing is drawn
    """

    scores: Tensor
    normalisers: Tensor
    state: State
    weights: Tensor
    gate: Tensor
    locations: Tensor | None = None
