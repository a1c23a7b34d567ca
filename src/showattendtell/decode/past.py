"""How captions came about, step by step, so that those that are wanted can be told in the end."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from showattendtell.decode.speaker import Utterance
from showattendtell.records import Generated


class Ends(NamedTuple):
    """Captions by their ends, (I, G, N) or as many in another shape, best first; where log p is -inf there is none.

    merits   what they are compared by
    scores   log p
    lengths  in words
    parents  which caption of the last step each continues
    words    the last word
    """

    merits: Tensor
    scores: Tensor
    lengths: Tensor
    parents: Tensor
    words: Tensor

    @classmethod
    def none(cls, like: Tensor, *shape: int) -> "Ends":
        """With log p as `like`."""
        scores = like.new_full(shape, -torch.inf)
        numbers = torch.zeros(shape, dtype=torch.long, device=like.device)
        return cls(scores, scores, numbers, numbers, numbers)

    def each(self, change: Callable[[Tensor], Tensor]) -> "Ends":
        return Ends(*map(change, self))

    def beside(self, other: "Ends") -> "Ends":
        return Ends(*(torch.cat(parts, dim=-1) for parts in zip(self, other, strict=True)))

    def best(self, number: int) -> "Ends":
        """The best; of equals those that stand first."""
        order = self.merits.sort(dim=-1, descending=True, stable=True).indices[..., :number]
        return self.each(lambda part: part.gather(-1, order))

    def first(self, number: int) -> "Ends":
        """Those that stand first of all that there are."""
        order = self.scores.isneginf().byte().sort(dim=-1, stable=True).indices[..., :number]
        return self.each(lambda part: part.gather(-1, order))


class Step(NamedTuple):
    """What was said of B captions, which continue P stems.

    parents  (B,) which of the step before each continues
    words    (B,) the last word before the step
    scores   (B,) log p of all words before the step
    stems    (B,)
    weights  (P, L) alpha
    gates    (P,) beta
    """

    parents: Tensor
    words: Tensor
    scores: Tensor
    stems: Tensor
    weights: Tensor
    gates: Tensor


class Past:
    """All steps of a search."""

    def __init__(self) -> None:
        self._steps: list[Step] = []

    def add(self, parents: Tensor, words: Tensor, scores: Tensor, stems: Tensor, said: Utterance) -> None:
        self._steps.append(Step(parents, words, scores, stems, said.weights, said.gate))

    def tell(self, ends: Ends) -> list[Generated]:
        """The captions with these ends (C,), from the last word back to the first."""
        shape = (len(ends.words), len(self._steps))
        tokens, gates, scores = ends.words.new_zeros(shape), ends.scores.new_zeros(shape), ends.scores.new_zeros(shape)
        weights = ends.scores.new_zeros(*shape, self._steps[0].weights.shape[1])
        parents, words, reached = ends.parents.clone(), ends.words.clone(), ends.scores.clone()
        for number, step in reversed(list(enumerate(self._steps))):
            begun = ends.lengths > number
            said = parents[begun]
            stems = step.stems[said]
            tokens[begun, number] = words[begun]
            weights[begun, number] = step.weights[stems].to(weights)
            gates[begun, number] = step.gates[stems].to(gates)
            before = step.scores[said].to(scores)
            scores[begun, number], reached[begun] = reached[begun] - before, before
            parents[begun], words[begun] = step.parents[said], step.words[said]
        parts = (part.cpu() for part in (tokens, scores, weights, gates))
        rows = zip(ends.lengths.tolist(), *parts, strict=True)
        return [Generated(t[:n].tolist(), s[:n].clone(), w[:n].clone(), g[:n].clone()) for n, t, s, w, g in rows]
