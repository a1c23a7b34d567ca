"""Beam search with length penalty, diverse groups and required words, batched over images.

    I  images                                        K  beams of a bank
    G  groups of an image (diverse beam search)      W  beams of an image, G (C + 1) K
    C  required words; a group has C + 1 banks, and  B  open captions
       bank c has the captions with c of the words   P  prefixes, see `models.captioner`

All beams of all images are numbered together: beam k of bank c of group g of image i has the position
((i G + g) (C + 1) + c) K + k. The other sizes are those of `showattendtell.types`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from showattendtell.data.vocabulary import EOS, START, Vocabulary
from showattendtell.decoding.decoding import Captions, Constraints, Decoding, Ensemble
from showattendtell.settings import Count, NonNegativeFloat, PositiveFloat
from showattendtell.types import CaptionOutput


class Candidates(NamedTuple):
    """Captions with a new last word, each field (I, C + 1, any number) or another shape.

    scores       log p; -inf marks an empty entry
    rank_scores  the score by which they are ranked: log p less the diversity penalty
    parents      the row, among the B captions of the step, of the one that each continues
    words        the last word
    """

    scores: Tensor
    rank_scores: Tensor
    parents: Tensor
    words: Tensor

    def best(self, k: int) -> "Candidates":
        """Return the best k, best first; ties keep their order."""
        order = self.rank_scores.sort(dim=-1, descending=True, stable=True).indices[..., :k]
        chosen = Candidates(*(part.gather(-1, order) for part in self))
        return chosen._replace(scores=chosen.scores.masked_fill(chosen.rank_scores.isneginf(), -torch.inf))

    def where(self, mask: Tensor) -> "Candidates":
        """Return the candidates with empty entries where the mask is false."""
        return self._replace(rank_scores=self.rank_scores.masked_fill(~mask, -torch.inf))


def join(function: Callable[..., Tensor], candidates: Sequence[Candidates], dim: int) -> Candidates:
    """Join the fields of several candidates by `torch.cat` or `torch.stack`."""
    return Candidates(*(function(parts, dim=dim) for parts in zip(*candidates, strict=True)))


class Beams(NamedTuple):
    """The open captions (beams) of the images. A beam without a caption has log p = -inf and costs no computation.

    scores  (I, G, C + 1, K) log p, best first in each bank
    tokens  (I, W, t), `<start>` first
    rows    (I, W, t) the row that a caption's first words had in each step of the search, in the first one its image
    """

    scores: Tensor
    tokens: Tensor
    rows: Tensor


class NextWords(NamedTuple):
    """Scores of the next word for b of the B open captions.

    rows       (b,) their indices among the B captions
    positions  (b,) their positions among all I * W beams
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
    like: Tensor, group: int, words: NextWords, rank_scores: Tensor, constraints: Constraints
) -> Candidates:
    """Return the best candidates of a group, best first.

    Return twice as many as there are beams: each beam has one candidate at most that ends, so that enough stay open.

    Args:
        like: scores of all beams, (I, G, C + 1, K).
        rank_scores: (b, V) the scores of the next words, less the diversity penalty.
    """
    k = 2 * like.shape[-1]

    def place(values: Tensor, fill: float = 0) -> Tensor:
        # (b, n) of the open captions to their positions among all I * W beams, then those of the group
        placed = values.new_full((like.numel(), values.shape[1]), fill).index_copy(0, words.positions, values)
        return placed.view(*like.shape, -1)[:, group].flatten(2)

    def extend(last_words: Tensor, ranks: Tensor) -> Candidates:
        offsets = words.offsets.unsqueeze(1)
        return Candidates(
            place(offsets + words.scores.gather(1, last_words), -torch.inf),
            place(offsets + ranks, -torch.inf),
            place(words.rows.unsqueeze(1).expand_as(last_words)),
            place(last_words),
        )

    moving = []
    if constraints.required:
        # A caption stays in its bank with any word but its missing required ones, which move it to the next bank.
        required = torch.tensor(constraints.required, device=rank_scores.device)
        missing, required_scores = constraints.missing(words.tokens), rank_scores[:, required]  # (b, C)
        moved = extend(required.expand_as(missing), required_scores.masked_fill(~missing, -torch.inf))
        moved = Candidates(*(part.roll(1, dims=1) for part in moved))  # bank c - 1 to bank c
        moved.rank_scores[:, 0] = -torch.inf  # nothing moves to bank 0
        moving.append(moved)
        rank_scores = rank_scores.index_copy(1, required, required_scores.masked_fill(missing, -torch.inf))
    ranks, likeliest = rank_scores.topk(min(k, rank_scores.shape[1]))
    return join(torch.cat, [extend(likeliest, ranks), *moving], dim=-1).best(k)


class SearchStep(NamedTuple):
    """One search step of B captions: log p of their words before the step (B,), alpha (B, L) and beta (B,)."""

    scores: Tensor
    weights: Tensor
    gates: Tensor


class Hypothesis(NamedTuple):
    """A caption that may be returned: whether it precedes open ones, the score that ranks it, log p, its n tokens, and
    its row in each of n steps."""

    precedes: bool
    rank: float
    score: float
    tokens: list[int]
    rows: list[int]


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
        states, steps = decoder.init_state(), list[SearchStep]()
        shape = (self.num_beam_groups, len(constraints.required) + 1, self.beam_size // self.num_beam_groups)
        # only the first beam of each group is open; the others would be copies
        scores = states.states[0].hidden.new_full((len(states.images), *shape), -torch.inf)
        scores[:, :, 0, 0] = 0
        rows = states.images.view(-1, 1, 1).expand(-1, scores[0].numel(), 1)
        beams, widths = Beams(scores, torch.full_like(rows, START), rows), torch.full_like(states.images, shape[2])
        finished = BeamHypotheses(self, scores)
        while len(steps) < self.max_length:
            log_p, tokens, rows = beams.scores.flatten(), beams.tokens.flatten(0, 1), beams.rows.flatten(0, 1)
            positions = log_p.isfinite().nonzero().squeeze(1)  # (B,) of the open captions
            if not len(positions):
                break
            log_p, tokens, rows = log_p[positions], tokens[positions], rows[positions]
            # captions that continue the same one of the last step share its state: that is their prefix
            prefixes, prefix_index = rows[:, -1].unique(return_inverse=True)
            output, states = decoder.step(states.index_select(prefixes), prefix_index, tokens[:, -1])
            steps.append(SearchStep(log_p, output.weights.to(log_p), output.gate.to(log_p)))
            scores = constraints.apply(output.scores, tokens[:, 1:])
            indices = torch.arange(len(positions), device=positions.device)
            words = NextWords(indices, positions, tokens, log_p - output.normalizers, scores)
            chosen = self._choose(beams, words, widths, constraints)
            ended, still_open = (_extend(candidates, tokens, rows) for candidates in chosen)
            finished.add(ended)
            if self.shrink_beam:
                widths = widths - ended.scores.isfinite().sum(dim=(1, 2, 3))
            beams = finished.prune(still_open)
        return finished.best(beams, steps)

    def _choose(
        self, beams: Beams, words: NextWords, widths: Tensor, constraints: Constraints
    ) -> tuple[Candidates, Candidates]:
        """Return the captions that end and those that stay open, (I, G, C + 1, K) each.

        Diverse beam search: the groups choose one after the other. A word costs a group `diversity_penalty` for each
        caption of the earlier groups that chose it at this step. A group does not end a caption that an earlier one
        ends.

        Args:
            widths: (I,) the number of the K beams that may be open.
        """
        ended: list[Candidates] = []
        still_open: list[Candidates] = []
        num_images, num_groups, num_banks, num_beams = beams.scores.shape
        group_words, rank_scores = words, words.scores
        if num_groups > 1:
            counts = beams.scores.new_zeros(num_images, rank_scores.shape[1])  # (I, V) captions that chose a word
            images = words.positions // beams.tokens.shape[1]
            captions = torch.cat([images.unsqueeze(1), words.tokens], dim=1)
            ended_captions = captions[:0]
        for group in range(num_groups):
            if num_groups > 1:
                in_group = words.positions // (num_banks * num_beams) % num_groups == group
                group_words = NextWords(*(part[in_group] for part in words))
                rank_scores = group_words.scores - self.diversity_penalty * counts[images[in_group]]
                repeated = (captions[in_group].unsqueeze(1) == ended_captions).all(dim=2).any(dim=1)
                rank_scores[repeated, EOS] = -torch.inf
            candidates = best_candidates(beams.scores, group, group_words, rank_scores, constraints)
            ends = candidates.words == EOS
            within = torch.arange(ends.shape[2], device=ends.device) < widths.view(-1, 1, 1)
            ended.append(candidates.where(ends & within).best(num_beams))
            still_open.append(candidates.where(~ends & within if self.shrink_beam else ~ends).best(num_beams))
            if num_groups > 1:
                chosen = still_open[-1]
                counts.scatter_add_(1, chosen.words.flatten(1), chosen.scores.isfinite().flatten(1).to(counts))
                ended_captions = torch.cat([ended_captions, captions[ended[-1].parents[ended[-1].scores.isfinite()]]])
        return join(torch.stack, ended, dim=1), join(torch.stack, still_open, dim=1)


def _extend(chosen: Candidates, tokens: Tensor, rows: Tensor) -> Beams:
    """Return beams of the chosen captions (I, G, C + 1, K), which extend those with these tokens and rows (B, t)."""
    words, parents = chosen.words.flatten(1), chosen.parents.flatten(1)
    extended = ((tokens, words), (rows, parents))
    return Beams(chosen.scores, *(torch.cat([old[parents], new.unsqueeze(2)], dim=2) for old, new in extended))


class BeamHypotheses:
    """The best finished captions of each image and group so far, best first.

    Args:
        like: scores (I, G, ...), of which the new ones have the dtype and the device.
    """

    def __init__(self, search: BeamSearch, like: Tensor):
        self._search = search
        self._num_kept = -(-search.num_captions // search.num_beam_groups)  # per group, rounded up
        images, groups = like.shape[:2]
        self._captions: list[list[list[Hypothesis]]] = [[[] for _ in range(groups)] for _ in range(images)]
        self._worst = like.new_full((images, groups), -torch.inf)  # the rank score that a caption has to beat

    def add(self, beams: Beams, finished: bool = True) -> None:
        """Add the captions that are better than the ones stored for their group.

        Args:
            finished: false for open captions, which follow all finished ones, except with `shrink_beam`.
        """
        is_caption = beams.scores.isfinite()
        places, scores = is_caption.nonzero().tolist(), beams.scores[is_caption]
        tokens, rows = (part[is_caption.flatten(1)][:, 1:] for part in (beams.tokens, beams.rows))
        parts = (self._search.rank_score(scores, tokens.shape[1]), scores, tokens, rows)
        for (image, group, *_), *caption in zip(places, *(part.tolist() for part in parts), strict=True):
            captions = self._captions[image][group]
            captions.append(Hypothesis(finished or self._search.shrink_beam, *caption))
            captions.sort(key=attrgetter("precedes", "rank"), reverse=True)
            del captions[self._num_kept :]
            if len(captions) == self._num_kept:
                self._worst[image, group] = captions[-1].rank

    def prune(self, beams: Beams) -> Beams:
        """Prune captions that cannot be returned.

        Pruning does not change the result: what a pruned caption would keep out of the beam cannot be returned either.
        With several groups or `shrink_beam` this does not hold, so all captions of an image are pruned, or none.
        """
        # log p <= 0 only falls with more words, so this is the best rank score that a caption can reach
        best_possible = self._search.rank_score(beams.scores, self._search.max_length)
        can_improve = best_possible > self._worst[..., None, None]  # (I, G, C + 1, K)
        if self._search.num_beam_groups > 1 or self._search.shrink_beam:
            can_improve = can_improve.flatten(1).any(dim=1).view(-1, 1, 1, 1)
        return beams._replace(scores=beams.scores.masked_fill(~can_improve, -torch.inf))

    def best(self, still_open: Beams, steps: Sequence[SearchStep]) -> Captions:
        """Return each image's best captions; open ones if too few are finished, or with `shrink_beam` if better."""
        self.add(still_open, finished=False)
        chosen = []
        for groups in self._captions:
            of_image = sorted(chain.from_iterable(groups), key=attrgetter("rank"), reverse=True)
            chosen.append(of_image[: self._search.num_captions])
        outputs = iter(_outputs(list(chain.from_iterable(chosen)), steps))
        return [[next(outputs) for _ in of_image] for of_image in chosen]


def _outputs(captions: Sequence[Hypothesis], steps: Sequence[SearchStep]) -> list[CaptionOutput[Tensor]]:
    """Return the captions with log p and attention of each word, from the rows that they had in the steps."""
    if not captions:
        return []
    rows = pad_sequence([torch.tensor(caption.rows) for caption in captions]).to(steps[0].scores.device)  # (T, M)
    scores, weights, gates = (
        torch.stack([part[step_rows] for part, step_rows in zip(parts, rows, strict=False)], dim=1).cpu()
        for parts in zip(*steps, strict=True)
    )
    outputs = []
    for row, (_, _, score, tokens, _) in enumerate(captions):
        n = len(tokens)
        # of a word: log p of the words up to it, less that of the words before it
        log_probs = torch.cat([scores[row, :n], scores.new_tensor([score])]).diff()
        outputs.append(CaptionOutput(tokens, log_probs, weights[row, :n].clone(), gates[row, :n].clone()))
    return outputs
