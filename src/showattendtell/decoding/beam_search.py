"""Beam search with length penalty, batched over images.

    I  images      K  beams of an image      N  captions that are kept of an image
    B  open captions of all images           P  prefixes, see `models.captioner`

Beam k of image i has the position i K + k among all beams. The other sizes are those of `showattendtell.types`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from showattendtell.data.vocabulary import EOS, PAD, START, Vocabulary
from showattendtell.decoding.decoding import Captions, Decoding, Ensemble
from showattendtell.settings import Count, PositiveFloat
from showattendtell.types import CaptionOutput

Step = tuple[Tensor, Tensor, Tensor]
"""One search step of B captions: log p of their words before the step (B,), alpha (B, L) and beta (B,)."""


class Beams(NamedTuple):
    """Captions of the images. A beam without a caption has log p = -inf, and an open one then costs no computation.

    scores  (I, K) log p
    tokens  (I, K, t), `<start>` first
    rows    (I, K, t) the row that a caption's first words had in each step of the search, in the first one its image
    """

    scores: Tensor
    tokens: Tensor
    rows: Tensor

    def best(self, k: int, mask: Tensor) -> "Beams":
        """Return the best k of each image, where the mask (I, K) is true, best first; ties keep their order."""
        scores = self.scores.masked_fill(~mask, -torch.inf)
        scores, order = (part[:, :k] for part in scores.sort(dim=1, descending=True, stable=True))
        return Beams(scores, *(part.take_along_dim(order.unsqueeze(2), dim=1) for part in self[1:]))


class Finished(NamedTuple):
    """The best finished captions of each image, best first.

    ranks   (I, N) the score by which they are ranked; -inf without a caption
    scores  (I, N) log p
    tokens  (I, N, T), then `<pad>`
    rows    (I, N, T) see `Beams`
    """

    ranks: Tensor
    scores: Tensor
    tokens: Tensor
    rows: Tensor


@dataclass(frozen=True, kw_only=True)
class BeamSearch(Decoding):
    """Beam search; beam_size=1 is greedy decoding.

    Finished captions are ranked by log p(y) / penalty(y), with n words in y, <eos> included, and the length penalty
    penalty = 1 (length_normalization=none), n^length_penalty (length) or ((5 + n) / 6)^length_penalty (gnmt).

    Args:
        beam_size: the number of open captions per image.
        length_normalization: length penalty. none ranks captions by log p; length by log p / length^length_penalty;
            gnmt (Wu et al. 2016) by log p / ((5 + length) / 6)^length_penalty. The length counts <eos>.
        length_penalty: the exponent of the length penalty; larger values favor longer captions.
        shrink_beam: a finished caption reduces the beam size by one; captions still open at max_length compete with it.
    """

    beam_size: Count = 1
    length_normalization: Literal["none", "length", "gnmt"] = "none"
    length_penalty: PositiveFloat = 1.0
    shrink_beam: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_captions > self.beam_size:
            raise ValueError(f"num_captions={self.num_captions} needs a beam as large; got beam_size={self.beam_size}")

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
        beams, finished = self._start(states.images, states.states[0].hidden.dtype)
        widths = torch.full_like(states.images, self.beam_size)  # (I,) how many captions may be open
        while len(steps) < self.max_length:
            positions = beams.scores.flatten().isfinite().nonzero().squeeze(1)  # (B,) of the open captions
            if not len(positions):
                break
            log_p, tokens, rows = (part.flatten(0, 1)[positions] for part in beams)
            # captions that continue the same one of the last step share its state: that is their prefix
            prefixes, prefix_index = rows[:, -1].unique(return_inverse=True)
            output, states = decoder.step(states.index_select(prefixes), prefix_index, tokens[:, -1])
            steps.append((log_p, output.weights.to(log_p), output.gate.to(log_p)))
            scores = constraints.apply(output.scores, tokens[:, 1:])
            candidates = self._extend(beams, positions, log_p - output.normalizers, scores)
            ends = candidates.tokens[:, :, -1] == EOS
            within = torch.arange(ends.shape[1], device=ends.device) < widths.unsqueeze(1)
            ended = candidates.best(self.beam_size, ends & within)
            beams = candidates.best(self.beam_size, ~ends & within if self.shrink_beam else ~ends)
            finished = self._add(finished, ended)
            if self.shrink_beam:
                widths = widths - ended.scores.isfinite().sum(dim=1)
            beams = self._prune(beams, finished)
        return self._outputs(self._add(finished, beams, are_open=True), steps)

    def _start(self, images: Tensor, dtype: torch.dtype) -> tuple[Beams, Finished]:
        """Return one empty caption for each of the images (I,), and no finished ones."""
        rows = images.view(-1, 1, 1)
        beams = Beams(rows.new_zeros(len(images), 1, dtype=dtype), torch.full_like(rows, START), rows)
        nothing = beams.scores.new_full((len(images), self.num_captions), -torch.inf)
        padding = rows.new_full((*nothing.shape, self.max_length), PAD)
        return beams, Finished(nothing, nothing, padding, padding)

    def _extend(self, beams: Beams, positions: Tensor, offsets: Tensor, scores: Tensor) -> Beams:
        """Return each image's best captions with one word more, best first.

        They are twice as many as the beams: each beam has one candidate at most that ends, so that enough stay open.

        Args:
            positions: (B,) of the open captions among all beams.
            offsets: (B,) log p of the open captions, less the normalizers of the next word's scores.
            scores: (B, V) of the next word: log p of the extended captions = offsets + scores.
        """
        likeliest = scores.topk(min(2 * self.beam_size, scores.shape[1]))
        parents = torch.arange(len(positions), device=positions.device).unsqueeze(1).expand_as(likeliest.indices)

        def place(values: Tensor, fill: float = 0) -> Tensor:
            # (B, n) of the open captions, to their positions among all beams: (I, K n)
            placed = values.new_full((beams.scores.numel(), values.shape[1]), fill).index_copy(0, positions, values)
            return placed.view(len(beams.scores), -1)

        parts = place(offsets.unsqueeze(1) + likeliest.values, -torch.inf), place(parents), place(likeliest.indices)
        order = parts[0].argsort(dim=1, descending=True, stable=True)[:, : 2 * self.beam_size]
        log_p, parents, words = (part.gather(1, order) for part in parts)
        tokens, rows = (part.flatten(0, 1)[positions[parents]] for part in beams[1:])
        extended = [torch.cat([old, new.unsqueeze(2)], dim=2) for old, new in ((tokens, words), (rows, parents))]
        return Beams(log_p, *extended)

    def _add(self, finished: Finished, beams: Beams, are_open: bool = False) -> Finished:
        """Return the best of the finished captions and those of the beams.

        Args:
            are_open: the captions follow all finished ones, except with `shrink_beam`.
        """
        scores, tokens, rows = beams
        length = tokens.shape[2] - 1
        padding = (0, self.max_length - length)
        added = (self.rank_score(scores, length), scores, pad(tokens[..., 1:], padding), pad(rows[..., 1:], padding))
        joined = Finished(*(torch.cat(parts, dim=1) for parts in zip(finished, added, strict=True)))
        if are_open and not self.shrink_beam:
            order = joined.ranks.isneginf().int().argsort(dim=1, stable=True)
        else:
            order = joined.ranks.argsort(dim=1, descending=True, stable=True)
        best = order[:, : self.num_captions]
        ranks, scores = (part.gather(1, best) for part in joined[:2])
        return Finished(ranks, scores, *(part.take_along_dim(best.unsqueeze(2), dim=1) for part in joined[2:]))

    def _prune(self, beams: Beams, finished: Finished) -> Beams:
        """Prune captions that cannot be returned.

        Pruning does not change the result: what a pruned caption would keep out of the beam cannot be returned either.
        With `shrink_beam` this does not hold, so all captions of an image are pruned, or none.
        """
        # log p <= 0 only falls with more words, so this is the best rank score that a caption can reach
        can_improve = self.rank_score(beams.scores, self.max_length) > finished.ranks[:, -1:]  # (I, K)
        if self.shrink_beam:
            can_improve = can_improve.any(dim=1, keepdim=True)
        return beams._replace(scores=beams.scores.masked_fill(~can_improve, -torch.inf))

    def _outputs(self, finished: Finished, steps: Sequence[Step]) -> Captions:
        """Return each image's captions, best first, with log p and attention of each word, from the rows that they had
        in the steps."""
        ranks, order = finished.ranks.sort(dim=1, descending=True, stable=True)
        images, places = (ranks > -torch.inf).nonzero(as_tuple=True)  # (M,) of all captions
        scores, tokens, rows = (part[images, order[images, places]] for part in finished[1:])
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
