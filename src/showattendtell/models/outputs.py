"""Data structures that attention and decoder exchange at every step."""

from typing import Any, NamedTuple

from torch import Tensor

from showattendtell.types import SampledLocations


class DecoderState(NamedTuple):
    """The decoder's state after the words so far, one row per caption: the LSTM's h and c, (B, n) each."""

    hidden: Tensor
    cell: Tensor

    def select(self, rows: Tensor) -> "DecoderState":
        return DecoderState(self.hidden.index_select(0, rows), self.cell.index_select(0, rows))


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
        use_expectation = None if self.use_expectation is None else self.use_expectation[rows]
        return AttentionCache(self.regions[rows], self.keys[rows], use_expectation)


class AttentionOutput(NamedTuple):
    """One attention step of B captions: context z (B, D), alpha (B, L), beta (B,), and the sampled locations.

    With several heads, alpha is the mean over heads; with a gate per channel, beta is the mean over channels.
    """

    context: Tensor
    weights: Tensor
    gate: Tensor
    sample: SampledLocations | None = None


class DecoderOutput(NamedTuple):
    """All steps of captions, N words: h (N, n), z (N, D), alpha (N, L), beta (N,), and the sampled locations."""

    hidden: Tensor
    context: Tensor
    weights: Tensor
    gates: Tensor
    sample: SampledLocations | None = None


class StepOutput(NamedTuple):
    """One step of incremental decoding: B captions that continue P stems.

    scores       (B, V) unnormalised log p of the next word: log p = scores - normalisers
    normalisers  (B,) the log-sum-exp of the scores
    state        of the captions, after their last words
    weights      (P, L) alpha
    gate         (P,) beta
    locations    (P, H) the regions that hard attention sampled; None without sampling
    """

    scores: Tensor
    normalisers: Tensor
    state: DecoderState
    weights: Tensor
    gate: Tensor
    locations: Tensor | None = None
