"""Beam search with length penalty, diverse groups and required words, batched over images.

    I  images                                        K  beams of a bank
    G  groups of an image (diverse beam search)      W  beams of an image, G (C + 1) K
    C  required words; a group has C + 1 banks, and  B  open captions
       bank c has the captions with c of the words   P  prefixes, see `models.captioner`

All beams of all images are numbered together: beam k of bank c of group g of image i has the position
((i G + g) (C + 1) + c) K + k. The other sizes are those of `showattendtell.types`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from showattendtell.data.vocabulary import EOS, PAD, START, Vocabulary
from showattendtell.decoding.decoding import Captions, Constraints, Decoding, Ensemble
from showattendtell.settings import Count, NonNegativeFloat, PositiveFloat
from showattendtell.types import CaptionOutput

Step = tuple[Tensor, Tensor, Tensor]
"""One search step of B captions: log p of their words before the step (B,), alpha (B, L) and beta (B,)."""


class Candidates(NamedTuple):
    """Captions with a further word, (I, C + 1, any number).

    ranks    the score by which they are ranked: log p less the diversity penalty; -inf marks an empty entry
    indices  parent * V + word, with the row of the caption that each continues among the B captions of the step
    """

    ranks: Tensor
    indices: Tensor

    def best(self, k: int, mask: Tensor | None = None) -> "Candidates":
        """Return the best k, where the mask is true, best first; ties keep their order."""
        ranks = self.ranks if mask is None else self.ranks.masked_fill(~mask, -torch.inf)
        ranks, order = ranks.sort(dim=-1, descending=True, stable=True)
        return Candidates(ranks[..., :k], self.indices.gather(-1, order[..., :k]))


class Beams(NamedTuple):
    """Captions of the images, best first in each bank. A beam without a caption has log p = -inf, and an open one then
    costs no computation.

    scores  (I, G, C + 1, K) log p
    tokens  (I, G, C + 1, K, t), `<start>` first
    rows    (I, G, C + 1, K, t) the row that a caption's first words had in each step of the search, in the first one
            its image
    """

    scores: Tensor
    tokens: Tensor
    rows: Tensor


class Finished(NamedTuple):
    """The best finished captions of each group, N of each group, best first.

    ranks   (I, G, N) the score by which they are ranked; -inf without a caption
    scores  (I, G, N) log p
    tokens  (I, G, N, T), then `<pad>`
    rows    (I, G, N, T) see `Beams`
    """

    ranks: Tensor
    scores: Tensor
    tokens: Tensor
    rows: Tensor


class NextWords(NamedTuple):
    """Scores of the next word for the B open captions.

    positions  (B,) their positions among all I * W beams
    tokens     (B, t) and `rows` (B, t), see `Beams`
    offsets    (B,) log p of the captions, less the normalizers of the next word's scores
    scores     (B, V) unnormalized: log p of the extended captions = offsets + scores
    """

    positions: Tensor
    tokens: Tensor
    rows: Tensor
    offsets: Tensor
    scores: Tensor

    def extend(self, groups: Sequence[Candidates]) -> Beams:
        """Return beams of the captions that each group has chosen, (I, C + 1, K)."""
        ranks, indices = (torch.stack(part, dim=1) for part in zip(*groups, strict=True))
        parents, words = indices // self.scores.shape[1], indices % self.scores.shape[1]
        log_p = torch.where(ranks > -torch.inf, self.offsets[parents] + self.scores[parents, words], -torch.inf)
        extended = ((self.tokens, words), (self.rows, parents))
        return Beams(log_p, *(torch.cat([old[parents], new.unsqueeze(-1)], dim=-1) for old, new in extended))


def best_candidates(
    shape: torch.Size, group: int, words: NextWords, rows: Tensor, scores: Tensor, constraints: Constraints
) -> Candidates:
    """Return the best candidates of a group, best first.

    Return twice as many as there are beams: each beam has one candidate at most that ends, so that enough stay open.

    Args:
        shape: (I, G, C + 1, K).
        rows: (b,) the indices of the group's captions among the B open ones.
        scores: (b, V) of their next words, less the diversity penalty.
    """
    num_words = scores.shape[1]

    def place(values: Tensor, fill: float) -> Tensor:
        # (b, n) of the captions to their positions among all I * W beams, then those of the group
        placed = values.new_full((shape.numel(), values.shape[1]), fill).index_copy(0, words.positions[rows], values)
        return placed.view(*shape, -1)[:, group].flatten(2)

    def extend(last_words: Tensor, scores: Tensor) -> list[Tensor]:
        ranks, indices = words.offsets[rows].unsqueeze(1) + scores, num_words * rows.unsqueeze(1) + last_words
        return [place(ranks, -torch.inf), place(indices, 0)]

    moved = []
    if constraints.required:
        # A caption stays in its bank with any word but its missing required ones, which move it to the next bank.
        required = torch.tensor(constraints.required, device=scores.device)
        missing, required_scores = constraints.missing(words.tokens[rows]), scores[:, required]  # (b, C)
        moving = extend(required.expand_as(missing), required_scores.masked_fill(~missing, -torch.inf))
        moved.append([part.roll(1, dims=1) for part in moving])  # bank c - 1 to bank c
        moved[0][0][:, 0] = -torch.inf  # nothing moves to bank 0
        scores = scores.index_copy(1, required, required_scores.masked_fill(missing, -torch.inf))
    likeliest = scores.topk(min(2 * shape[-1], num_words))
    staying = extend(likeliest.indices, likeliest.values)
    return Candidates(*(torch.cat(parts, dim=2) for parts in zip(staying, *moved, strict=True))).best(2 * shape[-1])


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

    def rank_score(self, log_prob: Tensor, length: int) -> Tensor:
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
        states, steps = decoder.init_state(), list[Step]()
        shape = (self.num_beam_groups, len(constraints.required) + 1, self.beam_size // self.num_beam_groups)
        # only the first beam of each group is open; the others would be copies
        scores = states.states[0].hidden.new_full((len(states.images), *shape), -torch.inf)
        scores[:, :, 0, 0] = 0
        rows = states.images.view(-1, 1, 1, 1, 1).expand(*scores.shape, 1)
        beams, widths = Beams(scores, torch.full_like(rows, START), rows), torch.full_like(states.images, shape[2])
        kept = (*scores.shape[:2], -(-self.num_captions // self.num_beam_groups))  # (I, G, N)
        nothing, padding = scores.new_full(kept, -torch.inf), rows.new_full((*kept, self.max_length), PAD)
        finished = Finished(nothing, nothing, padding, padding)
        while len(steps) < self.max_length:
            positions = beams.scores.flatten().isfinite().nonzero().squeeze(1)  # (B,) of the open captions
            if not len(positions):
                break
            log_p, tokens, rows = (part.flatten(0, 3)[positions] for part in beams)
            # captions that continue the same one of the last step share its state: that is their prefix
            prefixes, prefix_index = rows[:, -1].unique(return_inverse=True)
            output, states = decoder.step(states.index_select(prefixes), prefix_index, tokens[:, -1])
            steps.append((log_p, output.weights.to(log_p), output.gate.to(log_p)))
            scores = constraints.apply(output.scores, tokens[:, 1:])
            words = NextWords(positions, tokens, rows, log_p - output.normalizers, scores)
            ended, beams = map(words.extend, self._choose(beams.scores.shape, words, widths, constraints))
            finished = self._add(finished, ended)
            if self.shrink_beam:
                widths = widths - ended.scores.isfinite().sum(dim=(1, 2, 3))
            beams = self._prune(beams, finished)
        return self._outputs(self._add(finished, beams, are_open=True), steps)

    def _choose(
        self, shape: torch.Size, words: NextWords, widths: Tensor, constraints: Constraints
    ) -> tuple[list[Candidates], list[Candidates]]:
        """Return of each group the captions that end and those that stay open, (I, C + 1, K) each.

        Diverse beam search: the groups choose one after the other. A word costs a group `diversity_penalty` for each
        caption of the earlier groups that chose it at this step. A group does not end a caption that an earlier one
        ends.

        Args:
            shape: (I, G, C + 1, K).
            widths: (I,) the number of the K beams that may be open.
        """
        ended: list[Candidates] = []
        still_open: list[Candidates] = []
        num_images, num_groups, num_banks, num_beams = shape
        scores, num_words = words.scores, words.scores.shape[1]
        rows = torch.arange(len(scores), device=scores.device)
        images, groups = words.positions // shape[1:].numel(), words.positions // (num_banks * num_beams) % num_groups
        if num_groups > 1:
            counts = scores.new_zeros(num_images, num_words)  # captions that chose a word
            captions = torch.cat([images.unsqueeze(1), words.tokens], dim=1)
            ended_captions = captions[:0]
        for group in range(num_groups):
            if num_groups > 1:
                rows = (groups == group).nonzero().squeeze(1)
                scores = words.scores[rows] - self.diversity_penalty * counts[images[rows]]
                repeated = (captions[rows].unsqueeze(1) == ended_captions).all(dim=2).any(dim=1)
                scores[repeated, EOS] = -torch.inf
            candidates = best_candidates(shape, group, words, rows, scores, constraints)
            ends = candidates.indices % num_words == EOS
            within = torch.arange(ends.shape[2], device=ends.device) < widths.view(-1, 1, 1)
            ended.append(candidates.best(num_beams, ends & within))
            still_open.append(candidates.best(num_beams, ~ends & within if self.shrink_beam else ~ends))
            if num_groups > 1:
                ranks, indices = (part.flatten(1) for part in still_open[-1])
                counts.scatter_add_(1, indices % num_words, ranks.isfinite().to(counts))
                parents = ended[-1].indices[ended[-1].ranks.isfinite()] // num_words
                ended_captions = torch.cat([ended_captions, captions[parents]])
        return ended, still_open

    def _add(self, finished: Finished, beams: Beams, are_open: bool = False) -> Finished:
        """Return the finished captions with those of the beams that are better than the worst of their group.

        Args:
            are_open: the captions follow all finished ones, except with `shrink_beam`.
        """
        scores, tokens, rows = (part.flatten(2, 3) for part in beams)
        num_kept, length = finished.ranks.shape[2], tokens.shape[3] - 1
        padding = (0, self.max_length - length)
        added = (self.rank_score(scores, length), scores, pad(tokens[..., 1:], padding), pad(rows[..., 1:], padding))
        joined = Finished(*(torch.cat(parts, dim=2) for parts in zip(finished, added, strict=True)))
        ranks, order = joined.ranks.sort(dim=2, descending=True, stable=True)
        if are_open and not self.shrink_beam:
            follows = (order >= num_kept) | ranks.isneginf()
            order = order.gather(2, follows.int().argsort(dim=2, stable=True))
        best = order[..., :num_kept]
        ranks, scores = (part.gather(2, best) for part in joined[:2])
        return Finished(ranks, scores, *(part.take_along_dim(best.unsqueeze(3), dim=2) for part in joined[2:]))

    def _prune(self, beams: Beams, finished: Finished) -> Beams:
        """Prune captions that cannot be returned.

        Pruning does not change the result: what a pruned caption would keep out of the beam cannot be returned either.
        With several groups or `shrink_beam` this does not hold, so all captions of an image are pruned, or none.
        """
        # log p <= 0 only falls with more words, so this is the best rank score that a caption can reach
        best_possible = self.rank_score(beams.scores, self.max_length)
        can_improve = best_possible > finished.ranks[:, :, -1, None, None]  # (I, G, C + 1, K)
        if self.num_beam_groups > 1 or self.shrink_beam:
            can_improve = can_improve.flatten(1).any(dim=1).view(-1, 1, 1, 1)
        return beams._replace(scores=beams.scores.masked_fill(~can_improve, -torch.inf))

    def _outputs(self, finished: Finished, steps: Sequence[Step]) -> Captions:
        """Return each image's best captions of all groups, with log p and attention of each word, from the rows that
        they had in the steps."""
        ranks, order = finished.ranks.flatten(1).sort(dim=1, descending=True, stable=True)
        images, places = (ranks[:, : self.num_captions] > -torch.inf).nonzero(as_tuple=True)  # (M,) of all captions
        scores, tokens, rows = (part.flatten(1, 2)[images, order[images, places]] for part in finished[1:])
        outputs: Captions = [[] for _ in ranks]
        if not steps:
            return outputs
        traces = (
            torch.stack([part[step_rows] for part, step_rows in zip(parts, rows.T, strict=False)], dim=1).cpu()
            for parts in zip(*steps, strict=True)
        )
        parts = (images.tolist(), scores.unsqueeze(1).cpu(), tokens.tolist(), *traces)
        for image, score, words, log_p, weights, gates in zip(*parts, strict=True):
            n = words.index(PAD) if PAD in words else len(words)
            # of a word: log p of the words up to it, less that of the words before it
            log_probs = torch.cat([log_p[:n], score]).diff()
            outputs[image].append(CaptionOutput(words[:n], log_probs, weights[:n].clone(), gates[:n].clone()))
        return outputs
