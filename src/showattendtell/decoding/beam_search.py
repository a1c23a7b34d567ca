"""Beam search with length penalty, diverse groups and required words, batched over images."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from showattendtell.data.vocabulary import EOS, START, Vocabulary
from showattendtell.decoding.decoding import Constraints, Decoding
from showattendtell.decoding.ensemble import Ensemble, EnsembleDecoder, EnsembleState
from showattendtell.models.kernels.cross_entropy import likeliest
from showattendtell.settings import NonNegativeFloat, PositiveFloat, PositiveInt
from showattendtell.types import CaptionOutput


class Beams(NamedTuple):
    """Open captions (beams) of the J images whose search is not finished.

    An image has G groups of C + 1 banks of K beams, best first: W = G (C + 1) K beams. Bank c holds captions with c of
    the C required words. A beam without an open caption has log p = -inf and costs no computation.

    images   (J,) indices of the images in the batch
    widths   (J,) the number of the K beams that may be open
    scores   (J, G, C + 1, K) log p
    tokens   (J, W, t), `<start>` first
    parents  (J, W) index of the last step's caption that each continues
    states   decoder states of the last step's captions
    """

    images: Tensor
    widths: Tensor
    scores: Tensor
    tokens: Tensor
    parents: Tensor
    states: EnsembleState

    def places(self) -> Tensor:
        """Return the indices (B,) of the open captions among all J * W beams."""
        return self.scores.flatten().isfinite().nonzero().squeeze(1)

    def keep(self, chosen: Tensor) -> "Beams":
        """Return the beams of the images whose mask (J,) is true."""
        return self if chosen.all() else Beams._make([*(part[chosen] for part in self[:-1]), self.states])


def first_beams(states: EnsembleState, shape: tuple[int, int, int]) -> Beams:
    """Start every beam with `<start>`. Only the first beam of each group is open; the others would be copies."""
    images, num_beams = states.images, math.prod(shape)
    scores = states.states[0].hidden.new_full((len(images), *shape), -torch.inf)
    scores[:, :, 0, 0] = 0
    tokens = torch.full((len(images), num_beams, 1), START, device=images.device)
    parents = images.unsqueeze(1).expand(-1, num_beams)
    return Beams(images, torch.full_like(images, shape[-1]), scores, tokens, parents, states)


class Candidates(NamedTuple):
    """Captions extended by one word, (J, C + 1, any number): log p, the merit by which they are ranked, the index of
    the open caption that each continues, its last word."""

    scores: Tensor
    merits: Tensor
    parents: Tensor
    words: Tensor

    @classmethod
    def of(cls, beams: Beams) -> "Candidates":
        """Return the open captions of `beams` as candidates, (J, G, C + 1, K)."""
        parents, words = (part.view_as(beams.scores) for part in (beams.parents, beams.tokens[:, :, -1]))
        return cls(beams.scores, beams.scores, parents, words)

    def best(self, number: int, among: Tensor | None = None) -> "Candidates":
        """Return the best `number` (of those true in `among`), best first; missing ones have log p = -inf."""
        merits = self.merits if among is None else self.merits.masked_fill(~among, -torch.inf)
        merits, order = merits.topk(number)
        scores = self.scores.gather(-1, order).masked_fill(merits.isneginf(), -torch.inf)
        return Candidates(scores, merits, self.parents.gather(-1, order), self.words.gather(-1, order))

    def next_bank(self) -> "Candidates":
        """Return the same captions, each moved to the next bank."""
        rolled = Candidates(*(part.roll(1, dims=1) for part in self))
        rolled.merits[:, 0] = -torch.inf
        return rolled


def side_by_side(groups: Sequence[Candidates]) -> Candidates:
    """Stack the groups' candidates (J, C + 1, K) to (J, G, C + 1, K)."""
    return Candidates(*(torch.stack(parts, dim=1) for parts in zip(*groups, strict=True)))


class NextWords(NamedTuple):
    """Scores of the next word for b of the B open captions.

    rows         (b,) their indices among the B captions
    places       (b,) their indices among all J * W beams
    tokens       (b, t) the captions, `<start>` first
    scores       (b, V) unnormalised log p of the words: log p = scores - normalisers
    normalisers  (b,) the constant of each caption
    """

    rows: Tensor
    places: Tensor
    tokens: Tensor
    scores: Tensor
    normalisers: Tensor

    def of_group(self, beams: Beams, group: int) -> "NextWords":
        _, groups, banks, width = beams.scores.shape
        if groups == 1:
            return self
        # place = ((j * G + group) * (C + 1) + bank) * K + beam
        own = self.places // (banks * width) % groups == group
        return NextWords(*(part[own] for part in self))


def spoken(groups: Sequence[Candidates], vocabulary_size: int) -> Tensor:
    """Count how often earlier groups choose each word at this step, (J, V)."""
    words = torch.cat([group.words.flatten(1) for group in groups], dim=1)
    counted = torch.cat([group.scores.flatten(1) for group in groups], dim=1).isfinite()
    counts = groups[0].scores.new_zeros(len(words), vocabulary_size)
    return counts.scatter_add_(1, words, counted.to(counts))


def best_candidates(
    beams: Beams, group: int, next_words: NextWords, constraints: Constraints, penalty: Tensor | None
) -> Candidates:
    """Return the best candidates of a group, best first: twice the number of beams, since half of them may end.

    Args:
        penalty: (J, V) diversity penalty, subtracted from the scores when captions are ranked.
    """
    number, scores = 2 * beams.scores.shape[-1], next_words.scores
    chosen_by = scores if penalty is None else scores - penalty[next_words.places // beams.tokens.shape[1]]
    if not constraints.required:
        words = likeliest(chosen_by, min(number, scores.shape[1]))
        return _continue(beams, group, next_words, words, chosen_by).best(number)
    required = torch.tensor(constraints.required, device=scores.device)
    unsaid = constraints.unsaid(next_words.tokens)
    # A caption stays in its bank with any word but its missing required ones, which move it to the next bank.
    staying, moving = chosen_by.clone(), torch.full_like(chosen_by, -torch.inf)
    staying[:, required] = chosen_by[:, required].masked_fill(unsaid, -torch.inf)
    moving[:, required] = chosen_by[:, required].masked_fill(~unsaid, -torch.inf)
    words = likeliest(staying, min(number, scores.shape[1]))
    stay = _continue(beams, group, next_words, words, staying)
    move = _continue(beams, group, next_words, required.expand_as(unsaid), moving).next_bank()
    together = Candidates(*(torch.cat(parts, dim=-1) for parts in zip(stay, move, strict=True)))
    return together.best(number)


def _continue(beams: Beams, group: int, next_words: NextWords, words: Tensor, chosen_by: Tensor) -> Candidates:
    """Return a group's captions, each extended by its words (b, n), as (J, C + 1, K * n)."""
    so_far = (beams.scores.flatten()[next_words.places] - next_words.normalisers).unsqueeze(1)
    scores, merits = (so_far + part.gather(1, words) for part in (next_words.scores, chosen_by))
    rows = next_words.rows.unsqueeze(1).expand_as(words)

    def of_all_beams(values: Tensor, nothing: float) -> Tensor:
        whole = values
        if len(values) < beams.scores.numel():
            whole = values.new_full((beams.scores.numel(), words.shape[1]), nothing)
            whole[next_words.places] = values
        return whole.reshape(*beams.scores.shape, -1)[:, group].flatten(2)

    log_p = (of_all_beams(part, -torch.inf) for part in (scores, merits))
    return Candidates(*log_p, *(of_all_beams(part, 0) for part in (rows, words)))


class EndedCaptions(NamedTuple):
    """Finished captions, (I, G, N) or another shape, best first; log p = -inf marks an empty entry.

    merits   the score by which they are ranked (`BeamSearch.merit`)
    scores   log p
    lengths  in words, `<eos>` included
    parents  index of the last step's caption that each continues
    words    the last word
    """

    merits: Tensor
    scores: Tensor
    lengths: Tensor
    parents: Tensor
    words: Tensor

    @classmethod
    def none(cls, like: Tensor, *shape: int) -> "EndedCaptions":
        """Return empty entries with the dtype and device of `like`."""
        scores = like.new_full(shape, -torch.inf)
        numbers = torch.zeros(shape, dtype=torch.long, device=like.device)
        return cls(scores, scores, numbers, numbers, numbers)

    def each(self, change: Callable[[Tensor], Tensor]) -> "EndedCaptions":
        return EndedCaptions(*map(change, self))

    def cat(self, other: "EndedCaptions") -> "EndedCaptions":
        return EndedCaptions(*(torch.cat(parts, dim=-1) for parts in zip(self, other, strict=True)))

    def best(self, number: int) -> "EndedCaptions":
        """Return the best `number`; ties keep their order."""
        order = self.merits.sort(dim=-1, descending=True, stable=True).indices[..., :number]
        return self.each(lambda part: part.gather(-1, order))

    def first(self, number: int) -> "EndedCaptions":
        """Return the first `number` entries that are not empty."""
        order = self.scores.isneginf().byte().sort(dim=-1, stable=True).indices[..., :number]
        return self.each(lambda part: part.gather(-1, order))


class SearchStep(NamedTuple):
    """One search step of B captions, which continue P stems.

    parents  (B,) index of the previous step's caption that each continues
    words    (B,) the last word before the step
    scores   (B,) log p of all words before the step
    stems    (B,) index of the stem of each caption
    weights  (P, L) alpha
    gates    (P,) beta
    """

    parents: Tensor
    words: Tensor
    scores: Tensor
    stems: Tensor
    weights: Tensor
    gates: Tensor


def backtrack(ends: EndedCaptions, steps: Sequence[SearchStep]) -> list[CaptionOutput[Tensor]]:
    """Reconstruct the captions with these ends (C,), from the last word back to the first."""
    shape = (len(ends.words), len(steps))
    tokens, gates, scores = ends.words.new_zeros(shape), ends.scores.new_zeros(shape), ends.scores.new_zeros(shape)
    weights = ends.scores.new_zeros(*shape, steps[0].weights.shape[1])
    parents, words, reached = ends.parents.clone(), ends.words.clone(), ends.scores.clone()
    # The log p of a token is the difference of log p of the words up to it and before it.
    for number, step in reversed(list(enumerate(steps))):
        begun = ends.lengths > number
        previous = parents[begun]
        stems = step.stems[previous]
        tokens[begun, number] = words[begun]
        weights[begun, number] = step.weights[stems].to(weights)
        gates[begun, number] = step.gates[stems].to(gates)
        before = step.scores[previous].to(scores)
        scores[begun, number], reached[begun] = reached[begun] - before, before
        parents[begun], words[begun] = step.parents[previous], step.words[previous]
    parts = (part.cpu() for part in (tokens, scores, weights, gates))
    rows = zip(ends.lengths.tolist(), *parts, strict=True)
    return [CaptionOutput(t[:n].tolist(), s[:n].clone(), w[:n].clone(), g[:n].clone()) for n, t, s, w, g in rows]


Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True, kw_only=True)
class BeamSearch(Decoding):
    """Beam search; beam_size=1 is greedy decoding.

    Length penalty: finished captions are ranked by log p(y) / length_penalty(y), with n words in y, <eos> included, and
    length_penalty = 1 (normalisation=none), n^length_power (length) or ((5 + n) / 6)^length_power (gnmt).
    Required words use grid beam search (Hokamp and Liu 2017), groups use diverse beam search (Vijayakumar et al. 2018).

    beam_size: the number of open captions per image, over all groups.
    normalisation: length penalty. none ranks captions by log p; length by log p / length^length_power; gnmt (Wu et al.
        2016) by log p / ((5 + length) / 6)^length_power. The length counts <eos>.
    length_power: the exponent of the length penalty; larger values favour longer captions.
    groups: the number of groups into which the beam is divided; at each step they choose words one after the other.
    diversity: subtracted from a word's log p for each caption of earlier groups that chose the word at the same step.
    shrink_beam: a finished caption reduces the beam size by one; captions still open at max_length compete with it.
    """

    beam_size: PositiveInt = 1
    normalisation: Literal["none", "length", "gnmt"] = "none"
    length_power: PositiveFloat = 1.0
    groups: PositiveInt = 1
    diversity: NonNegativeFloat = 0.5
    shrink_beam: bool = False

    def __post_init__(self) -> None:
        if self.beam_size % self.groups:
            raise ValueError(f"beam_size={self.beam_size} cannot be divided into groups={self.groups} of one size")
        if self.num_captions > self.beam_size:
            raise ValueError(f"num_captions={self.num_captions} needs a beam as large; got beam_size={self.beam_size}")
        if self.shrink_beam and (self.groups > 1 or self.required):
            raise ValueError("shrink_beam=true is for one beam; leave it out with groups or required words")

    def merit(self, log_prob: Number, length: int) -> Number:
        """Return the score by which an image's captions are ranked: log p / length penalty."""
        if self.normalisation == "none":
            return log_prob
        base = length if self.normalisation == "length" else (5 + length) / 6
        return log_prob / base**self.length_power

    @torch.no_grad()
    def generate(
        self, ensemble: Ensemble, regions: Sequence[Tensor], vocabulary: Vocabulary
    ) -> list[list[CaptionOutput[Tensor]]]:
        """Return the best captions found for each image, by `merit`.

        An open caption is hopeless if it cannot beat the worst of its image's best finished captions even if it reaches
        `max_length` without losing log p. The search of an image ends when all its captions are hopeless. Captions
        still open then are returned if too few are finished, or with `shrink_beam` if they are better.
        """
        constraints = self.in_tokens(vocabulary)
        shape = (self.groups, len(constraints.required) + 1, self.beam_size // self.groups)
        decoder = ensemble.start(regions)
        steps: list[SearchStep] = []
        beams = first_beams(decoder.init_state(), shape)
        found = FinishedCaptions(self, beams.scores)
        for _ in range(self.max_length):
            beams = extend(decoder, beams, self, constraints, found, steps)
            beams = found.without_hopeless(beams)
            if not len(beams.images):
                break
        return found.best(beams, steps)


class FinishedCaptions:
    """The best finished captions of each image and group so far.

    Args:
        like: log p of captions, one row for each of the I images.
    """

    def __init__(self, search: BeamSearch, like: Tensor):
        self._search = search
        wanted = -(-search.num_captions // search.groups)  # per group, rounded up
        self._ends = EndedCaptions.none(like, len(like), search.groups, wanted)

    def add(self, images: Tensor, captions: Candidates, length: int) -> None:
        """Add those of the images' captions (J, G, ...) that are better than the ones stored for their group."""
        if not captions.scores.isfinite().any():
            return
        scores, parents, words = (part.flatten(2) for part in (captions.scores, captions.parents, captions.words))
        ends = EndedCaptions(self._search.merit(scores, length), scores, torch.full_like(words, length), parents, words)
        held = self._ends.each(lambda part: part[images]).cat(ends).best(self._ends.words.shape[2])
        self._ends = EndedCaptions(
            *(whole.index_copy(0, images, part) for whole, part in zip(self._ends, held, strict=True))
        )

    def without_hopeless(self, beams: Beams) -> Beams:
        """Prune hopeless captions and images that have only hopeless captions.

        Pruning does not change the result: all that a hopeless caption keeps out of the beam is hopeless too. With
        several groups or `shrink_beam` this does not hold, so only whole images are dropped.
        """
        # log p <= 0 only falls with more words, so this is the best merit that a caption can reach
        reachable = self._search.merit(beams.scores, self._search.max_length)
        hopeful = reachable > self._ends.merits[beams.images, :, -1, None, None]  # (J, G, C + 1, K)
        if self._search.groups == 1 and not self._search.shrink_beam:
            beams = beams._replace(scores=beams.scores.masked_fill(~hopeful, -torch.inf))
        return beams.keep(hopeful.flatten(1).any(dim=1))

    def best(self, still_open: Beams, steps: Sequence[SearchStep]) -> list[list[CaptionOutput[Tensor]]]:
        """Return each image's best captions; open ones if too few are finished, or with `shrink_beam` if better."""
        rest, wanted = FinishedCaptions(self._search, self._ends.scores), self._ends.words.shape[2]
        rest.add(still_open.images, Candidates.of(still_open), length=still_open.tokens.shape[2] - 1)
        together = self._ends.cat(rest._ends)
        chosen = together.best(wanted) if self._search.shrink_beam else together.first(wanted)
        of_images = chosen.each(lambda part: part.flatten(1)).best(self._search.num_captions)
        there = of_images.scores.isfinite()
        captions = iter(backtrack(of_images.each(lambda part: part[there]), steps))
        return [[next(captions) for _ in range(number)] for number in there.sum(dim=1).tolist()]


def extend(
    decoder: EnsembleDecoder,
    beams: Beams,
    search: BeamSearch,
    constraints: Constraints,
    found: FinishedCaptions,
    steps: list[SearchStep],
) -> Beams:
    """Extend the beams by one word. Captions that end within the beam go to `found`; the best others stay open."""
    places = beams.places()
    parents, stems = beams.parents.flatten()[places].unique(return_inverse=True)
    tokens = beams.tokens.flatten(0, 1)[places]
    output, states = decoder.step(beams.states.index_select(parents), stems, tokens[:, -1])
    before = beams.scores.flatten()[places]
    steps.append(SearchStep(parents[stems], tokens[:, -1], before, stems, output.weights, output.gate))
    rows, scores = torch.arange(len(places), device=places.device), constraints.apply(output.scores, tokens[:, 1:])
    ended, still_open = choose(beams, NextWords(rows, places, tokens, scores, output.normalisers), search, constraints)
    found.add(beams.images, ended, length=tokens.shape[1])
    if search.shrink_beam:
        beams = beams._replace(widths=beams.widths - ended.scores.isfinite().sum(dim=(1, 2, 3)))
    tokens = torch.cat([tokens[still_open.parents.flatten(1)], still_open.words.flatten(1).unsqueeze(2)], dim=2)
    return Beams(beams.images, beams.widths, still_open.scores, tokens, still_open.parents.flatten(1), states)


def choose(
    beams: Beams, next_words: NextWords, search: BeamSearch, constraints: Constraints
) -> tuple[Candidates, Candidates]:
    """Return the captions that end and those that stay open, (J, G, C + 1, K) each."""
    ended: list[Candidates] = []
    still_open: list[Candidates] = []
    num_beams = beams.scores.shape[3]
    for group in range(search.groups):
        penalty = search.diversity * spoken(still_open, next_words.scores.shape[1]) if still_open else None
        candidates = best_candidates(beams, group, next_words.of_group(beams, group), constraints, penalty)
        ends = candidates.words == EOS
        within = torch.arange(ends.shape[2], device=ends.device) < beams.widths.view(-1, 1, 1)
        ended.append(candidates.best(num_beams, among=ends & within))
        followed = within if search.shrink_beam else True
        still_open.append(candidates.best(num_beams, among=~ends & followed))
    return side_by_side(ended), side_by_side(still_open)
