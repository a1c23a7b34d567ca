"""What open captions become with a word more."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from showattendtell.decode.beams import Beams
from showattendtell.decode.ranking import likeliest
from showattendtell.decode.rules import Rules
from showattendtell.decode.speaker import Thoughts


class Candidates(NamedTuple):
    """Captions one word longer, (J, C + 1, any number): log p, what they are chosen by, which of the open captions each
    continues, its last word."""

    scores: Tensor
    merits: Tensor
    parents: Tensor
    words: Tensor

    @classmethod
    def of(cls, beams: Beams) -> "Candidates":
        """Those that became the open captions, (J, G, C + 1, K)."""
        parents, words = (part.view_as(beams.scores) for part in (beams.parents, beams.tokens[:, :, -1]))
        return cls(beams.scores, beams.scores, parents, words)

    def best(self, number: int, among: Tensor | None = None) -> "Candidates":
        """The best `number` (of those marked in `among`), best first; where there are fewer, with log p = -inf."""
        merits = self.merits if among is None else self.merits.masked_fill(~among, -torch.inf)
        merits, order = merits.topk(number)
        scores = self.scores.gather(-1, order).masked_fill(merits.isneginf(), -torch.inf)
        return Candidates(scores, merits, self.parents.gather(-1, order), self.words.gather(-1, order))

    def next_bank(self) -> "Candidates":
        """The same captions, each in the bank behind its own."""
        rolled = Candidates(*(part.roll(1, dims=1) for part in self))
        rolled.merits[:, 0] = -torch.inf
        return rolled


def side_by_side(groups: Sequence[Candidates]) -> Candidates:
    """Candidates of the groups (J, C + 1, K) as (J, G, C + 1, K)."""
    return Candidates(*(torch.stack(parts, dim=1) for parts in zip(*groups, strict=True)))


def grow(beams: Beams, tokens: Tensor, thoughts: Thoughts, chosen: Candidates) -> Beams:
    """The beams of the candidates (J, G, C + 1, K), which continue captions (B, t) with these thoughts."""
    parents, words = chosen.parents.flatten(1), chosen.words.flatten(1)
    tokens = torch.cat([tokens[parents], words.unsqueeze(2)], dim=2)
    return Beams(beams.images, beams.widths, chosen.scores, tokens, parents, thoughts)


class Offer(NamedTuple):
    """What b of the B open captions may say next.

    rows         (b,) which of the B they are
    places       (b,) which of all J * W beams they are
    tokens       (b, t) the captions, `<start>` first
    scores       (b, V) log p of the words, up to a constant
    normalisers  (b,) that constant
    """

    rows: Tensor
    places: Tensor
    tokens: Tensor
    scores: Tensor
    normalisers: Tensor

    def of_group(self, beams: Beams, group: int) -> "Offer":
        _, groups, banks, width = beams.scores.shape
        if groups == 1:
            return self
        own = self.places // (banks * width) % groups == group
        return Offer(*(part[own] for part in self))


def spoken(groups: Sequence[Candidates], vocabulary_size: int) -> Tensor:
    """How often earlier groups say each word at this step, (J, V)."""
    words = torch.cat([group.words.flatten(1) for group in groups], dim=1)
    counted = torch.cat([group.scores.flatten(1) for group in groups], dim=1).isfinite()
    counts = groups[0].scores.new_zeros(len(words), vocabulary_size)
    return counts.scatter_add_(1, words, counted.to(counts))


def best_candidates(beams: Beams, group: int, offer: Offer, rules: Rules, penalty: Tensor | None) -> Candidates:
    """From what a group's captions may say; best first. Twice as many as beams, since half of them may end.

    Args:
        penalty: (J, V) what the words' scores are lowered by where captions are chosen.
    """
    number, scores = 2 * beams.scores.shape[-1], offer.scores
    chosen_by = scores if penalty is None else scores - penalty[offer.places // beams.tokens.shape[1]]
    if not rules.required:
        words = likeliest(chosen_by, min(number, scores.shape[1]))
        return _continue(beams, group, offer, words, chosen_by).best(number)
    required = torch.tensor(rules.required, device=scores.device)
    unsaid = rules.unsaid(offer.tokens)
    staying, moving = chosen_by.clone(), torch.full_like(chosen_by, -torch.inf)
    staying[:, required] = chosen_by[:, required].masked_fill(unsaid, -torch.inf)
    moving[:, required] = chosen_by[:, required].masked_fill(~unsaid, -torch.inf)
    words = likeliest(staying, min(number, scores.shape[1]))
    stay = _continue(beams, group, offer, words, staying)
    move = _continue(beams, group, offer, required.expand_as(unsaid), moving).next_bank()
    together = Candidates(*(torch.cat(parts, dim=-1) for parts in zip(stay, move, strict=True)))
    return together.best(number)


def _continue(beams: Beams, group: int, offer: Offer, words: Tensor, chosen_by: Tensor) -> Candidates:
    """A group's captions, each with each of its words (b, n), as (J, C + 1, K * n)."""
    so_far = (beams.scores.flatten()[offer.places] - offer.normalisers).unsqueeze(1)
    scores, merits = (so_far + part.gather(1, words) for part in (offer.scores, chosen_by))
    rows = offer.rows.unsqueeze(1).expand_as(words)

    def of_all_beams(values: Tensor, nothing: float) -> Tensor:
        whole = values
        if len(values) < beams.scores.numel():
            whole = values.new_full((beams.scores.numel(), words.shape[1]), nothing)
            whole[offer.places] = values
        return whole.reshape(*beams.scores.shape, -1)[:, group].flatten(2)

    log_p = (of_all_beams(part, -torch.inf) for part in (scores, merits))
    return Candidates(*log_p, *(of_all_beams(part, 0) for part in (rows, words)))
