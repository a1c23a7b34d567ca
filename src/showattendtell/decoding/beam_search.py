"""Beam search with length penalty, diverse groups and required words, batched over images.

    I  images; J of them are still searched          K  beams of a bank
    G  groups of an image (diverse beam search)      W  beams of an image, G (C + 1) K
    C  required words; a group has C + 1 banks, and  B  open captions
       bank c has the captions with c of the words   P  prefixes, see `models.generation`

All beams of all images are numbered together: beam k of bank c of group g of image j has the position
((j G + g) (C + 1) + c) K + k. The other sizes are those of `showattendtell.types`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from showattendtell.data.vocabulary import EOS, START, Vocabulary
from showattendtell.decoding.decoding import Captions, Constraints, Decoding, Ensemble, EnsembleState
from showattendtell.models.kernels.cross_entropy import top_words
from showattendtell.settings import NonNegativeFloat, PositiveFloat, PositiveInt
from showattendtell.types import CaptionOutput


class Beams(NamedTuple):
    """Open captions (beams) of the J images whose search is not finished.

    A beam without an open caption has log p = -inf and costs no computation.

    images   (J,) indices of the images in the batch
    widths   (J,) the number of the K beams that may be open
    scores   (J, G, C + 1, K) log p, best first in each bank
    tokens   (J, W, t), `<start>` first
    parents  (J, W) back-pointers: the index, among the B captions of the last step, of the one that each continues
    states   decoder states of the captions of the last step
    """

    images: Tensor
    widths: Tensor
    scores: Tensor
    tokens: Tensor
    parents: Tensor
    states: EnsembleState

    @classmethod
    def first(cls, states: EnsembleState, shape: tuple[int, int, int]) -> "Beams":
        """Start every beam with `<start>`. Only the first beam of each group is open; the others would be copies."""
        images, num_beams = states.images, math.prod(shape)
        scores = states.states[0].hidden.new_full((len(images), *shape), -torch.inf)
        scores[:, :, 0, 0] = 0
        tokens = torch.full((len(images), num_beams, 1), START, device=images.device)
        parents = images.unsqueeze(1).expand(-1, num_beams)
        return cls(images, torch.full_like(images, shape[-1]), scores, tokens, parents, states)


class Candidates(NamedTuple):
    """Captions extended by one word, each field (J, C + 1, any number).

    scores   log p
    rank_scores  the score by which they are ranked: log p, less the diversity penalty
    parents  index of the open caption that each continues
    words    the last word
    """

    scores: Tensor
    rank_scores: Tensor
    parents: Tensor
    words: Tensor

    def best(self, k: int, mask: Tensor | None = None) -> "Candidates":
        """Return the best k, best first; those false in `mask`, and missing ones, have log p = -inf."""
        rank_scores = self.rank_scores if mask is None else self.rank_scores.masked_fill(~mask, -torch.inf)
        rank_scores, order = rank_scores.topk(k)
        scores = self.scores.gather(-1, order).masked_fill(rank_scores.isneginf(), -torch.inf)
        return Candidates(scores, rank_scores, self.parents.gather(-1, order), self.words.gather(-1, order))


class NextWords(NamedTuple):
    """Scores of the next word for b of the B open captions.

    rows         (b,) their indices among the B captions
    positions    (b,) their positions among all J * W beams
    tokens       (b, t) the captions, `<start>` first
    scores       (b, V) unnormalized log p of the words: log p = scores - normalizers
    normalizers  (b,) the constant of each caption
    """

    rows: Tensor
    positions: Tensor
    tokens: Tensor
    scores: Tensor
    normalizers: Tensor


def best_candidates(
    beams: Beams, group: int, next_words: NextWords, constraints: Constraints, penalty: Tensor | None
) -> Candidates:
    """Return the best candidates of a group, best first.

    Return twice as many as there are beams: each beam has one candidate at most that ends, so that enough stay open.

    Args:
        penalty: (J, V) the diversity penalty of each word, which is subtracted from log p when captions are ranked.
    """
    k, scores = 2 * beams.scores.shape[-1], next_words.scores
    rank_scores = scores if penalty is None else scores - penalty[next_words.positions // beams.tokens.shape[1]]
    if not constraints.required:
        words = top_words(rank_scores, min(k, scores.shape[1]))
        return _continue(beams, group, next_words, words, rank_scores).best(k)
    required = torch.tensor(constraints.required, device=scores.device)
    missing = constraints.missing(next_words.tokens)  # (b, C)
    # A caption stays in its bank with any word but its missing required ones, which move it to the next bank.
    staying, moving = rank_scores.clone(), torch.full_like(rank_scores, -torch.inf)
    staying[:, required] = rank_scores[:, required].masked_fill(missing, -torch.inf)
    moving[:, required] = rank_scores[:, required].masked_fill(~missing, -torch.inf)
    words = top_words(staying, min(k, scores.shape[1]))
    stay = _continue(beams, group, next_words, words, staying)
    move = _continue(beams, group, next_words, required.expand_as(missing), moving)
    move = Candidates(*(part.roll(1, dims=1) for part in move))  # bank c - 1 to bank c
    move.rank_scores[:, 0] = -torch.inf  # nothing moves to bank 0
    return Candidates(*(torch.cat(parts, dim=-1) for parts in zip(stay, move, strict=True))).best(k)


def _continue(beams: Beams, group: int, next_words: NextWords, words: Tensor, word_rank_scores: Tensor) -> Candidates:
    """Return a group's captions, each extended by n words (b, n), as (J, C + 1, K * n)."""
    previous_scores = (beams.scores.flatten()[next_words.positions] - next_words.normalizers).unsqueeze(1)
    scores, rank_scores = (previous_scores + part.gather(1, words) for part in (next_words.scores, word_rank_scores))
    rows = next_words.rows.unsqueeze(1).expand_as(words)

    def of_group(values: Tensor, fill: float) -> Tensor:
        # (b, n) of the open captions to their positions among all J * W beams, then those of the group
        if len(values) < beams.scores.numel():
            padded = values.new_full((beams.scores.numel(), words.shape[1]), fill)
            values = padded.index_copy(0, next_words.positions, values)
        return values.reshape(*beams.scores.shape, -1)[:, group].flatten(2)

    log_p = (of_group(part, -torch.inf) for part in (scores, rank_scores))
    return Candidates(*log_p, *(of_group(part, 0) for part in (rows, words)))


class Hypotheses(NamedTuple):
    """Finished captions, (I, G, any number) or another shape; log p = -inf marks an empty entry.

    rank_scores  the score by which they are ranked (`BeamSearch.rank_score`)
    scores   log p
    lengths  in words, `<eos>` included
    parents  index, among the captions of the step that ended it, of the one that each continues
    words    the last word
    """

    rank_scores: Tensor
    scores: Tensor
    lengths: Tensor
    parents: Tensor
    words: Tensor

    def map(self, function: Callable[[Tensor], Tensor]) -> "Hypotheses":
        return Hypotheses(*map(function, self))

    def cat(self, other: "Hypotheses") -> "Hypotheses":
        return Hypotheses(*(torch.cat(parts, dim=-1) for parts in zip(self, other, strict=True)))

    def best(self, k: int) -> "Hypotheses":
        """Return the best k; ties keep their order."""
        order = self.rank_scores.sort(dim=-1, descending=True, stable=True).indices[..., :k]
        return self.map(lambda part: part.gather(-1, order))


class SearchStep(NamedTuple):
    """One search step of B captions; kept to reconstruct captions and their attention.

    parents  (B,) index of the previous step's caption that each continues
    words    (B,) the last word before the step
    scores   (B,) log p of all words before the step
    weights  (B, L) alpha
    gates    (B,) beta
    """

    parents: Tensor
    words: Tensor
    scores: Tensor
    weights: Tensor
    gates: Tensor


def backtrack(ends: Hypotheses, steps: Sequence[SearchStep]) -> list[CaptionOutput[Tensor]]:
    """Reconstruct the captions with these ends (M,), from the last word back to the first along the back-pointers."""
    shape = (len(ends.words), len(steps))
    tokens, gates, scores = ends.words.new_zeros(shape), ends.scores.new_zeros(shape), ends.scores.new_zeros(shape)
    weights = ends.scores.new_zeros(*shape, steps[0].weights.shape[1])
    parents, words, cumulative = ends.parents.clone(), ends.words.clone(), ends.scores.clone()
    # Step t of the search has read the words before word t, and `parents` points to its captions. Only captions of more
    # than t words have a word t. Its log p is that of the words up to it, less that of the words before it.
    for i, step in reversed(list(enumerate(steps))):
        active = ends.lengths > i
        previous = parents[active]
        tokens[active, i] = words[active]
        weights[active, i] = step.weights[previous].to(weights)
        gates[active, i] = step.gates[previous].to(gates)
        previous_scores = step.scores[previous].to(scores)
        scores[active, i], cumulative[active] = cumulative[active] - previous_scores, previous_scores
        parents[active], words[active] = step.parents[previous], step.words[previous]
    parts = (part.cpu() for part in (tokens, scores, weights, gates))
    rows = zip(ends.lengths.tolist(), *parts, strict=True)
    return [CaptionOutput(t[:n].tolist(), s[:n].clone(), w[:n].clone(), g[:n].clone()) for n, t, s, w, g in rows]


Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True, kw_only=True)
class BeamSearch(Decoding):
    """Beam search; beam_size=1 is greedy decoding.

    Finished captions are ranked by log p(y) / penalty(y), with n words in y, <eos> included, and the length penalty
    penalty = 1 (length_normalization=none), n^length_penalty (length) or ((5 + n) / 6)^length_penalty (gnmt).
    Required words use grid beam search (Hokamp and Liu 2017), groups use diverse beam search (Vijayakumar et al. 2018).

    beam_size: the number of open captions per image, over all groups.
    length_normalization: length penalty. none ranks captions by log p; length by log p / length^length_penalty; gnmt
        (Wu et al. 2016) by log p / ((5 + length) / 6)^length_penalty. The length counts <eos>.
    length_penalty: the exponent of the length penalty; larger values favor longer captions.
    num_beam_groups: the number of groups into which the beam is divided; at each step they choose words one after the
        other.
    diversity_penalty: subtracted from a word's log p for each caption of earlier groups that chose the word at the same
        step.
    shrink_beam: a finished caption reduces the beam size by one; captions still open at max_length compete with it.
    """

    beam_size: PositiveInt = 1
    length_normalization: Literal["none", "length", "gnmt"] = "none"
    length_penalty: PositiveFloat = 1.0
    num_beam_groups: PositiveInt = 1
    diversity_penalty: NonNegativeFloat = 0.5
    shrink_beam: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beam_size % self.num_beam_groups:
            raise ValueError(
                f"beam_size={self.beam_size} cannot be divided into num_beam_groups={self.num_beam_groups} of one size"
            )
        if self.num_captions > self.beam_size:
            raise ValueError(f"num_captions={self.num_captions} needs a beam as large; got beam_size={self.beam_size}")
        if self.shrink_beam and (self.num_beam_groups > 1 or self.required):
            raise ValueError("shrink_beam=true is for one beam; leave it out with num_beam_groups or required words")

    def rank_score(self, log_prob: Number, length: int) -> Number:
        """Return the score by which an image's captions are ranked: log p / length penalty."""
        if self.length_normalization == "none":
            return log_prob
        base = length if self.length_normalization == "length" else (5 + length) / 6
        return log_prob / base**self.length_penalty

    @torch.no_grad()
    def generate(self, ensemble: Ensemble, regions: Sequence[Tensor], vocabulary: Vocabulary) -> Captions:
        """Return the best captions found for each image, by `rank_score`.

        An open caption is pruned if it cannot beat the worst of its image's best finished captions even if it reaches
        `max_length` without losing log p. The search of an image ends when all its captions are pruned. Captions that
        are still open then are returned if too few are finished, or with `shrink_beam` if they are better.
        """
        constraints, decoder = self.in_tokens(vocabulary), ensemble.make_decoder(regions)
        shape = (self.num_beam_groups, len(constraints.required) + 1, self.beam_size // self.num_beam_groups)
        beams, steps = Beams.first(decoder.init_state(), shape), list[SearchStep]()
        finished = BeamHypotheses(self, beams.scores)
        while len(beams.images) and len(steps) < self.max_length:
            positions = beams.scores.flatten().isfinite().nonzero().squeeze(1)  # (B,) of the open captions
            # captions that continue the same one of the last step share its state: that is their prefix
            parents, prefix_index = beams.parents.flatten()[positions].unique(return_inverse=True)
            tokens, previous_scores = beams.tokens.flatten(0, 1)[positions], beams.scores.flatten()[positions]
            output, states = decoder.step(beams.states.index_select(parents), prefix_index, tokens[:, -1])
            steps.append(SearchStep(parents[prefix_index], tokens[:, -1], previous_scores, output.weights, output.gate))
            rows = torch.arange(len(positions), device=positions.device)
            scores = constraints.apply(output.scores, tokens[:, 1:])
            next_words = NextWords(rows, positions, tokens, scores, output.normalizers)
            ended, still_open = choose(beams, next_words, self, constraints)
            finished.add(beams.images, ended.scores, ended.parents, ended.words, length=tokens.shape[1])
            if self.shrink_beam:
                beams = beams._replace(widths=beams.widths - ended.scores.isfinite().sum(dim=(1, 2, 3)))
            open_parents = still_open.parents.flatten(1)
            tokens = torch.cat([tokens[open_parents], still_open.words.flatten(1).unsqueeze(2)], dim=2)
            beams = finished.prune(Beams(beams.images, beams.widths, still_open.scores, tokens, open_parents, states))
        return finished.best(beams, steps)


class BeamHypotheses:
    """The best finished captions of each image and group so far."""

    def __init__(self, search: BeamSearch, like: Tensor):
        """Create empty entries for the images (rows) of `like`, in its dtype and on its device."""
        self._search = search
        num_kept = -(-search.num_captions // search.num_beam_groups)  # per group, rounded up
        scores = like.new_full((len(like), search.num_beam_groups, num_kept), -torch.inf)
        zeros = torch.zeros_like(scores, dtype=torch.long)
        self._ends = Hypotheses(scores, scores, zeros, zeros, zeros)

    def add(self, images: Tensor, scores: Tensor, parents: Tensor, words: Tensor, length: int) -> None:
        """Add those of the images' captions (J, G, ...) that are better than the ones stored for their group."""
        if not scores.isfinite().any():
            return
        scores, parents, words = scores.flatten(2), parents.flatten(2), words.flatten(2)
        rank_scores = self._search.rank_score(scores, length)
        ends = Hypotheses(rank_scores, scores, torch.full_like(words, length), parents, words)
        best = self._ends.map(lambda part: part[images]).cat(ends).best(self._ends.words.shape[2])
        pairs = zip(self._ends, best, strict=True)
        self._ends = Hypotheses(*(stored.index_copy(0, images, part) for stored, part in pairs))

    def prune(self, beams: Beams) -> Beams:
        """Prune captions that cannot be returned, and images that have only such captions.

        Pruning does not change the result: what a pruned caption would keep out of the beam cannot be returned either.
        With several groups or `shrink_beam` this does not hold, so only whole images are dropped.
        """
        # log p <= 0 only falls with more words, so this is the best rank score that a caption can reach
        best_possible = self._search.rank_score(beams.scores, self._search.max_length)
        can_improve = best_possible > self._ends.rank_scores[beams.images, :, -1, None, None]  # (J, G, C + 1, K)
        if self._search.num_beam_groups == 1 and not self._search.shrink_beam:
            beams = beams._replace(scores=beams.scores.masked_fill(~can_improve, -torch.inf))
        is_open = can_improve.flatten(1).any(dim=1)
        return beams if is_open.all() else Beams._make([*(part[is_open] for part in beams[:-1]), beams.states])

    def best(self, still_open: Beams, steps: Sequence[SearchStep]) -> Captions:
        """Return each image's best captions; open ones if too few are finished, or with `shrink_beam` if better."""
        open_captions, num_kept = BeamHypotheses(self._search, self._ends.scores), self._ends.words.shape[2]
        parents, words = (part.view_as(still_open.scores) for part in (still_open.parents, still_open.tokens[:, :, -1]))
        open_captions.add(still_open.images, still_open.scores, parents, words, length=still_open.tokens.shape[2] - 1)
        chosen = self._ends.cat(open_captions._ends)
        if self._search.shrink_beam:
            chosen = chosen.best(num_kept)
        else:  # the first ones that are not empty
            order = chosen.scores.isneginf().byte().sort(dim=-1, stable=True).indices[..., :num_kept]
            chosen = chosen.map(lambda part: part.gather(-1, order))
        per_image = chosen.map(lambda part: part.flatten(1)).best(self._search.num_captions)
        exists = per_image.scores.isfinite()
        captions = iter(backtrack(per_image.map(lambda part: part[exists]), steps))
        return [[next(captions) for _ in range(number)] for number in exists.sum(dim=1).tolist()]


def choose(
    beams: Beams, next_words: NextWords, search: BeamSearch, constraints: Constraints
) -> tuple[Candidates, Candidates]:
    """Return the captions that end and those that stay open, (J, G, C + 1, K) each.

    Diverse beam search: the groups choose one after the other. A word costs a group `diversity_penalty` for each
    caption of the earlier groups that chose it at this step.
    """
    ended: list[Candidates] = []
    still_open: list[Candidates] = []
    _, _, num_banks, num_beams = beams.scores.shape
    penalty: Tensor | None = None
    group_words = next_words
    for group in range(search.num_beam_groups):
        if search.num_beam_groups > 1:
            in_group = next_words.positions // (num_banks * num_beams) % search.num_beam_groups == group
            group_words = NextWords(*(part[in_group] for part in next_words))
        if still_open:  # count how many captions of earlier groups chose each word, (J, V)
            words = torch.cat([earlier.words.flatten(1) for earlier in still_open], dim=1)
            counted = torch.cat([earlier.scores.flatten(1) for earlier in still_open], dim=1).isfinite()
            counts = still_open[0].scores.new_zeros(len(words), next_words.scores.shape[1])
            penalty = search.diversity_penalty * counts.scatter_add_(1, words, counted.to(counts))
        candidates = best_candidates(beams, group, group_words, constraints, penalty)
        ends = candidates.words == EOS
        within = torch.arange(ends.shape[2], device=ends.device) < beams.widths.view(-1, 1, 1)
        ended.append(candidates.best(num_beams, mask=ends & within))
        still_open.append(candidates.best(num_beams, mask=~ends & within if search.shrink_beam else ~ends))
    stack = partial(torch.stack, dim=1)  # (J, C + 1, K) of each group to (J, G, C + 1, K)
    return Candidates(*map(stack, zip(*ended, strict=True))), Candidates(*map(stack, zip(*still_open, strict=True)))
