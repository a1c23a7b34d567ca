"""Beam search with length penalty, batched over images.

Sizes are those of `showattendtell.types`; K is the number of beams of an image. A step decodes the open captions of all
images together, B rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from showattendtell.decoding.decoding import Captions, Decoding, Ensemble
from showattendtell.errors import UserError
from showattendtell.settings import Count, PositiveFloat
from showattendtell.text.vocabulary import EOS, PAD, START, Vocabulary
from showattendtell.types import CaptionOutput

Step = tuple[Tensor, Tensor, Tensor]
"""One search step of B captions: log p of their words before the step (B,), alpha (B, L) and beta (B,)."""


class Beams(NamedTuple):
    """Captions of the images. A beam without a caption has log p = -inf, and costs no computation.

    scores  (I, K) log p
    tokens  (I, K, t), `<start>` first, and `<pad>` after the words of finished captions
    rows    (I, K, t) the row that a caption's first words had in each step of the search, in the first one its image
    """

    scores: Tensor
    tokens: Tensor
    rows: Tensor

    def select(self, order: Tensor) -> "Beams":
        """Return the captions of each image in the order of their indices (I, k)."""
        parts = (part.take_along_dim(order.unsqueeze(2), dim=1) for part in (self.tokens, self.rows))
        return Beams(self.scores.gather(1, order), *parts)

    def best(self, k: int, mask: Tensor) -> "Beams":
        """Return the best k of each image, where the mask (I, K) is true, best first; ties keep their order."""
        masked = self._replace(scores=self.scores.masked_fill(~mask, -torch.inf))
        return masked.select(masked.scores.argsort(dim=1, descending=True, stable=True)[:, :k])


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
            raise UserError(f"num_captions={self.num_captions} needs a beam as large; got beam_size={self.beam_size}")

    def rank_score(self, log_prob: Tensor, length: Any) -> Tensor:
        """Return the score by which an image's captions are ranked: log p / length penalty, of an integer length or a
        tensor of them."""
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
        images = states.images.view(-1, 1, 1)
        scores = images.new_zeros(len(images), 1, dtype=states.states[0].hidden.dtype)
        beams = Beams(scores, torch.full_like(images, START), images)
        finished = Beams(scores[:, :0], *images.new_empty(2, len(images), 0, self.max_length + 1))
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

    def _extend(self, beams: Beams, positions: Tensor, offsets: Tensor, scores: Tensor) -> Beams:
        """Return each image's best captions with one word more, best first.

        They are twice as many as the beams: each beam has one candidate at most that ends, so that enough stay open.

        Args:
            positions: (B,) of the open captions among all I * K beams.
            offsets: (B,) log p of the open captions, less the normalizers of the next word's scores.
            scores: (B, V) of the next word: log p of the extended captions = offsets + scores.
        """
        likeliest = scores.topk(min(2 * self.beam_size, scores.shape[1]))
        width = likeliest.values.shape[1]
        log_p = scores.new_full((beams.scores.numel(), width), -torch.inf)
        words, rows = positions.new_zeros(log_p.shape), positions.new_zeros(len(log_p))
        log_p[positions], words[positions] = offsets.unsqueeze(1) + likeliest.values, likeliest.indices
        rows[positions] = torch.arange(len(positions), device=positions.device)
        log_p, words = (part.view(len(beams.scores), -1) for part in (log_p, words))  # (I, K * width)
        order = log_p.argsort(dim=1, descending=True, stable=True)[:, : 2 * self.beam_size]
        parents = order // width  # the beam of each candidate
        extended, new_rows = beams.select(parents), rows.view_as(beams.scores).gather(1, parents)
        return Beams(
            log_p.gather(1, order),
            torch.cat([extended.tokens, words.gather(1, order).unsqueeze(2)], dim=2),
            torch.cat([extended.rows, new_rows.unsqueeze(2)], dim=2),
        )

    def _ranks(self, finished: Beams) -> Tensor:
        """Return the scores (I, N) by which finished captions are ranked; -inf without a caption."""
        lengths = (finished.tokens != PAD).sum(dim=2) - 1
        return self.rank_score(finished.scores, lengths.to(finished.scores))

    def _add(self, finished: Beams, beams: Beams, are_open: bool = False) -> Beams:
        """Return the best of the finished captions and those of the beams, best first.

        Args:
            are_open: the captions follow all finished ones, except with `shrink_beam`.
        """
        padding = (0, self.max_length + 1 - beams.tokens.shape[2])
        padded = Beams(beams.scores, pad(beams.tokens, padding), pad(beams.rows, padding))
        joined = Beams(*(torch.cat(parts, dim=1) for parts in zip(finished, padded, strict=True)))
        ranks = self._ranks(joined)
        if are_open and not self.shrink_beam:
            ranks = ranks.isfinite().to(ranks)
        return joined.select(ranks.argsort(dim=1, descending=True, stable=True)[:, : self.num_captions])

    def _prune(self, beams: Beams, finished: Beams) -> Beams:
        """Prune captions that cannot be returned.

        Pruning does not change the result: what a pruned caption would keep out of the beam cannot be returned either.
        With `shrink_beam` this does not hold, so all captions of an image are pruned, or none.
        """
        if finished.scores.shape[1] < self.num_captions:
            return beams
        # log p <= 0 only falls with more words, so this is the best rank score that a caption can reach
        can_improve = self.rank_score(beams.scores, self.max_length) > self._ranks(finished)[:, -1:]  # (I, K)
        if self.shrink_beam:
            can_improve = can_improve.any(dim=1, keepdim=True)
        return beams._replace(scores=beams.scores.masked_fill(~can_improve, -torch.inf))

    def _outputs(self, finished: Beams, steps: Sequence[Step]) -> Captions:
        """Return each image's captions, best first, with log p and attention of each word, from the rows that they had
        in the steps."""
        finished = finished.select(self._ranks(finished).argsort(dim=1, descending=True, stable=True))
        exists = finished.scores > -torch.inf
        images, scores = exists.nonzero()[:, 0].tolist(), finished.scores[exists].unsqueeze(1).cpu()
        tokens, rows = finished.tokens[exists][:, 1:].tolist(), finished.rows[exists][:, 1:].T
        outputs: Captions = [[] for _ in exists]
        traces = (
            torch.stack([part[step_rows] for part, step_rows in zip(parts, rows, strict=False)], dim=1).cpu()
            for parts in zip(*steps, strict=True)
        )
        for image, score, words, log_p, weights, gates in zip(images, scores, tokens, *traces, strict=True):
            n = words.index(PAD) if PAD in words else len(words)
            # of a word: log p of the words up to it, less that of the words before it
            log_probs = torch.cat([log_p[:n], score]).diff()
            outputs[image].append(CaptionOutput(words[:n], log_probs, weights[:n].clone(), gates[:n].clone()))
        return outputs
