"""Beam search with length penalty, diverse groups and required words, batched over images.

    I  images; J of them are still searched          K  beams of a bank
    G  groups of an image (diverse beam search)      W  beams of an image, G (C + 1) K
    C  required words; a group has C + 1 banks, and  B  open captions
       bank c has the captions with c of the words   P  prefixes, see `models.captioner`

All beams of all images are numbered together: beam k of bank c of group g of image j has the position
((j G + g) (C + 1) + c) K + k. The other sizes are those of `showattendtell.types`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from showattendtell.data.vocabulary import EOS, START, Vocabulary
from showattendtell.decoding.decoding import Captions, Constraints, Decoding, Ensemble, EnsembleState
from showattendtell.models.kernels.cross_entropy import top_words
from showattendtell.settings import Count, NonNegativeFloat, PositiveFloat
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
    """Captions with a new last word, each field (J, C + 1, any number) or another shape.

    scores       log p; -inf marks an empty entry
    rank_scores  the score by which they are ranked: log p less the diversity penalty, or `BeamSearch.rank_score`
    parents      index of the open caption that each continues
    words        the last word
    lengths      in words, `<eos>` included
    """

    scores: Tensor
    rank_scores: Tensor
    parents: Tensor
    words: Tensor
    lengths: Tensor

    def map(self, function: Callable[[Tensor], Tensor]) -> "Candidates":
        return Candidates(*map(function, self))

    def best(self, k: int) -> "Candidates":
        """Return the best k, best first; ties keep their order."""
        order = self.rank_scores.sort(dim=-1, descending=True, stable=True).indices[..., :k]
        chosen = self.map(lambda part: part.gather(-1, order))
        return chosen._replace(scores=chosen.scores.masked_fill(chosen.rank_scores.isneginf(), -torch.inf))

    def where(self, mask: Tensor) -> "Candidates":
        """Return the candidates with empty entries where the mask is false."""
        return self._replace(rank_scores=self.rank_scores.masked_fill(~mask, -torch.inf))


def join(function: Callable[..., Tensor], candidates: Sequence[Candidates], dim: int) -> Candidates:
    """Join the fields of several candidates by `torch.cat` or `torch.stack`."""
    return Candidates(*(function(parts, dim=dim) for parts in zip(*candidates, strict=True)))


class NextWords(NamedTuple):
    """Scores of the next word for b of the B open captions.

    rows       (b,) their indices among the B captions
    positions  (b,) their positions among all J * W beams
    tokens     (b, t) the captions, `<start>` first
    offsets    (b,) log p of the captions, less the normalizers of the next word's scores
    scores     (b, V) unnormalized: log p of the extended captions = offsets + scores
    """

    rows: Tensor
    positions: Tensor
    tokens: Tensor
    offsets: Tensor
    scores: Tensor


def best_candidates(
    beams: Beams, group: int, next_words: NextWords, rank_scores: Tensor, constraints: Constraints
) -> Candidates:
    """Return the best candidates of a group, best first.

    Return twice as many as there are beams: each beam has one candidate at most that ends, so that enough stay open.

    Args:
        rank_scores: (b, V) the scores of the next words, less the diversity penalty.
    """
    k = 2 * beams.scores.shape[-1]
    num_words = min(k, rank_scores.shape[1])
    if not constraints.required:
        return _continue(beams, group, next_words, top_words(rank_scores, num_words), rank_scores).best(k)
    required = torch.tensor(constraints.required, device=rank_scores.device)
    missing = constraints.missing(next_words.tokens)  # (b, C)
    # A caption stays in its bank with any word but its missing required ones, which move it to the next bank.
    staying, moving = rank_scores.clone(), torch.full_like(rank_scores, -torch.inf)
    staying[:, required] = rank_scores[:, required].masked_fill(missing, -torch.inf)
    moving[:, required] = rank_scores[:, required].masked_fill(~missing, -torch.inf)
    stay = _continue(beams, group, next_words, top_words(staying, num_words), staying)
    move = _continue(beams, group, next_words, required.expand_as(missing), moving)
    move = move.map(lambda part: part.roll(1, dims=1))  # bank c - 1 to bank c
    move.rank_scores[:, 0] = -torch.inf  # nothing moves to bank 0
    return join(torch.cat, [stay, move], dim=-1).best(k)


def _continue(beams: Beams, group: int, next_words: NextWords, words: Tensor, rank_scores: Tensor) -> Candidates:
    """Return a group's captions, each extended by n words (b, n), as (J, C + 1, K * n)."""
    offsets = next_words.offsets.unsqueeze(1)

    def of_group(values: Tensor, fill: float) -> Tensor:
        # (b, n) of the open captions to their positions among all J * W beams, then those of the group
        if len(values) < beams.scores.numel():
            padded = values.new_full((beams.scores.numel(), words.shape[1]), fill)
            values = padded.index_copy(0, next_words.positions, values)
        return values.reshape(*beams.scores.shape, -1)[:, group].flatten(2)

    return Candidates(
        of_group(offsets + next_words.scores.gather(1, words), -torch.inf),
        of_group(offsets + rank_scores.gather(1, words), -torch.inf),
        of_group(next_words.rows.unsqueeze(1).expand_as(words), 0),
        of_group(words, 0),
        of_group(torch.full_like(words, next_words.tokens.shape[1]), 0),
    )


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


def backtrack(ends: Candidates, steps: Sequence[SearchStep]) -> list[CaptionOutput[Tensor]]:
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

    Args:
        beam_size: the number of open captions per image, over all groups.
        length_normalization: length penalty. none ranks captions by log p; length by log p / length^length_penalty;
            gnmt (Wu et al. 2016) by log p / ((5 + length) / 6)^length_penalty. The length counts <eos>.
        length_penalty: the exponent of the length penalty; larger values favor longer captions.
        num_beam_groups: the number of groups into which the beam is divided; at each step they choose words one after
            the other. A group ends no caption that an earlier one has ended.
        diversity_penalty: subtracted from a word's log p for each caption of earlier groups that chose the word at the
            same step.
        shrink_beam: a finished caption reduces the beam size by one; captions still open at max_length compete with it.
    """

    beam_size: Count = 1
    length_normalization: Literal["none", "length", "gnmt"] = "none"
    length_penalty: PositiveFloat = 1.0
    num_beam_groups: Count = 1
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
            next_words = NextWords(rows, positions, tokens, previous_scores - output.normalizers, scores)
            ended, still_open = choose(beams, next_words, self, constraints)
            finished.add(beams.images, ended, length=tokens.shape[1])
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
        self._num_kept = -(-search.num_captions // search.num_beam_groups)  # per group, rounded up
        scores = like.new_full((len(like), search.num_beam_groups, self._num_kept), -torch.inf)
        zeros = torch.zeros_like(scores, dtype=torch.long)
        self._ends = Candidates(scores, scores.clone(), zeros, zeros.clone(), zeros.clone())

    def add(self, images: Tensor, captions: Candidates, length: int) -> None:
        """Add those of the images' captions (J, G, ...) that are better than the ones stored for their group."""
        if not captions.scores.isfinite().any():
            return
        ranked = captions._replace(rank_scores=self._search.rank_score(captions.scores, length))
        stored = self._ends.map(lambda part: part[images])
        best = join(torch.cat, [stored, ranked.map(lambda part: part.flatten(2))], dim=-1).best(self._num_kept)
        for part, updated in zip(self._ends, best, strict=True):
            part[images] = updated

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
        length, scores = still_open.tokens.shape[2] - 1, still_open.scores
        parents, words = still_open.parents.view_as(scores), still_open.tokens[:, :, -1].view_as(scores)
        open_captions = BeamHypotheses(self._search, self._ends.scores)
        candidates = Candidates(scores, scores, parents, words, torch.full_like(words, length))
        open_captions.add(still_open.images, candidates, length)
        chosen = join(torch.cat, [self._ends, open_captions._ends], dim=-1)
        if self._search.shrink_beam:
            chosen = chosen.best(self._num_kept)
        else:  # the first ones that are not empty
            order = chosen.scores.isneginf().byte().sort(dim=-1, stable=True).indices[..., : self._num_kept]
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
    caption of the earlier groups that chose it at this step. A group does not end a caption that an earlier one ends.
    """
    ended: list[Candidates] = []
    still_open: list[Candidates] = []
    _, num_groups, num_banks, num_beams = beams.scores.shape
    group_words, rank_scores = next_words, next_words.scores
    if num_groups > 1:
        counts = beams.scores.new_zeros(len(beams.images), rank_scores.shape[1])  # (J, V) captions that chose a word
        images = next_words.positions // beams.tokens.shape[1]
        captions = torch.cat([images.unsqueeze(1), next_words.tokens], dim=1)
        ended_captions = captions[:0]
    for group in range(num_groups):
        if num_groups > 1:
            in_group = next_words.positions // (num_banks * num_beams) % num_groups == group
            group_words = NextWords(*(part[in_group] for part in next_words))
            penalty = search.diversity_penalty * counts
            rank_scores = group_words.scores - penalty[images[in_group]]
            repeated = (captions[in_group].unsqueeze(1) == ended_captions).all(dim=2).any(dim=1)
            rank_scores[repeated, EOS] = -torch.inf
        candidates = best_candidates(beams, group, group_words, rank_scores, constraints)
        ends = candidates.words == EOS
        within = torch.arange(ends.shape[2], device=ends.device) < beams.widths.view(-1, 1, 1)
        ended.append(candidates.where(ends & within).best(num_beams))
        stays = ~ends & within if search.shrink_beam else ~ends
        still_open.append(candidates.where(stays).best(num_beams))
        if num_groups > 1:
            chosen = still_open[-1].map(lambda part: part.flatten(1))
            counts.scatter_add_(1, chosen.words, chosen.scores.isfinite().to(counts))
            ended_captions = torch.cat([ended_captions, captions[ended[-1].parents[ended[-1].scores.isfinite()]]])
    return join(torch.stack, ended, dim=1), join(torch.stack, still_open, dim=1)
