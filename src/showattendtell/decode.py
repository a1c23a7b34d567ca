"""Writing captions: greedy and beam search over a batch of images at once, with the attention of every word."""

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from showattendtell.arguments import PositiveInt
from showattendtell.model.captioner import Captioner
from showattendtell.model.steps import Memory, State, Step
from showattendtell.records import Generated
from showattendtell.text.vocabulary import EOS, PAD, START

Number = TypeVar("Number", float, Tensor)


class Decoding(NamedTuple):
    """How captions are written.

    beam_size: the number of open captions an image; 1 is greedy.
    max_length: the longest caption in words, <eos> included.
    shrinking: captions that end leave the beam for good, and those still open at max_length are compared with them.
    divide_by_length: choose among an image's captions by log p divided by the number of words, <eos> included.
    """

    beam_size: PositiveInt = 1
    max_length: PositiveInt = 30
    shrinking: bool = False
    divide_by_length: bool = False

    def merit(self, log_probability: Number, num_words: int) -> Number:
        """What an image's captions are chosen by."""
        return log_probability / num_words if self.divide_by_length else log_probability


class Beams(NamedTuple):
    """The open captions of the J images that are still searched: K an image, best first.

    images  (J,) which of the batch's images they are      memory, state  of J images and of J * K captions
    widths  (J,) how many of the K may be open             scores  (J, K) log p, -inf where none is open
    tokens  (J, K, t), `<start>` first                     weights, gates  (J, K, t - 1, L) alpha, (J, K, t - 1) beta
    """

    images: Tensor
    widths: Tensor
    memory: Memory
    state: State
    scores: Tensor
    tokens: Tensor
    weights: Tensor
    gates: Tensor

    def captions(self, parents: Tensor) -> Tensor:
        """Beam numbers (J, K') to rows of the flat captions, (J * K')."""
        offsets = torch.arange(len(parents), device=parents.device).unsqueeze(1) * self.scores.shape[1]
        return (offsets + parents).flatten()

    def keep(self, rows: Tensor) -> "Beams":
        """The beams of some of the images."""
        all_beams = torch.arange(self.scores.shape[1], device=rows.device).expand(len(self.scores), -1)
        captions = self.captions(all_beams).view_as(all_beams)[rows].flatten()
        tracked = (part[rows] for part in (self.scores, self.tokens, self.weights, self.gates))
        return Beams(
            self.images[rows], self.widths[rows], self.memory.select(rows), self.state.select(captions), *tracked
        )


class Candidates(NamedTuple):
    """The likeliest captions one word longer: log p, the beam that they continue, their last word; (J, 2K) each."""

    scores: Tensor
    parents: Tensor
    words: Tensor

    def best(self, number: int, among: Tensor) -> "Candidates":
        """The best `number` of those marked in `among`, best first; where there are fewer, with log p = -inf."""
        scores, order = self.scores.masked_fill(~among, -torch.inf).topk(number)
        return Candidates(scores, self.parents.gather(1, order), self.words.gather(1, order))


@torch.no_grad()
def generate(captioner: Captioner, regions: Tensor, decoding: Decoding) -> list[Generated]:
    """The best caption found for each image, by `Decoding.merit`.

    The beam holds the K best captions that have not ended; where it is shrinking, K less the number of those that have.
    An image's search ends as soon as none of its open captions can beat its best ended one: at best they reach
    `max_length` without losing log p. Captions that are open then are returned where nothing has ended, or where the
    beam is shrinking and they are better than what has.

    Args:
        regions: (I, L, D).
    """
    found: dict[int, Generated] = {}
    beams = _first_beams(captioner, regions, decoding.beam_size)
    for _ in range(decoding.max_length):
        beams = _unsettled(_extend(captioner, beams, decoding, found), decoding, found)
        if not len(beams.images):
            break
    for row, image in enumerate(beams.images.tolist()):
        if decoding.shrinking or image not in found:
            found[image] = _caption(beams, row, 0)
    return [found[image] for image in range(len(regions))]


def _unsettled(beams: Beams, decoding: Decoding, found: dict[int, Generated]) -> Beams:
    """The beams of the images that an open caption may still win."""
    best_ended = [_merit(found[image], decoding) if image in found else -torch.inf for image in beams.images.tolist()]
    reachable = decoding.merit(beams.scores[:, 0], decoding.max_length)
    searching = reachable > torch.tensor(best_ended, device=reachable.device)
    return beams if searching.all() else beams.keep(searching.nonzero().squeeze(1))


def _merit(caption: Generated, decoding: Decoding) -> float:
    return decoding.merit(caption.log_probability, len(caption.tokens))


def _first_beams(captioner: Captioner, regions: Tensor, beam_size: int) -> Beams:
    """`<start>` in every beam; all but the first beam are ruled out, since they would be copies of it."""
    memory, state = captioner.begin(regions)
    images = torch.arange(len(regions), device=regions.device)
    scores = regions.new_full((len(regions), beam_size), -torch.inf)
    scores[:, 0] = 0
    tokens = torch.full((len(regions), beam_size, 1), START, device=regions.device)
    weights = regions.new_zeros(len(regions), beam_size, 0, regions.shape[1])
    state = state.select(images.repeat_interleave(beam_size))
    return Beams(images, torch.full_like(images, beam_size), memory, state, scores, tokens, weights, weights[..., 0])


def _extend(captioner: Captioner, beams: Beams, decoding: Decoding, found: dict[int, Generated]) -> Beams:
    """One word more. Captions that end within the beam go to `found` if they are their image's best so far; the best
    that do not end stay open."""
    beam_size = beams.scores.shape[1]
    step = captioner.step(beams.memory, beams.state, beams.tokens[:, :, -1].flatten())
    candidates = _best_candidates(beams, step.log_probabilities)
    ends = candidates.words == EOS
    within = torch.arange(ends.shape[1], device=ends.device) < beams.widths.unsqueeze(1)
    ended = _grown(beams, step, candidates.best(beam_size, among=ends & within))
    _collect(ended, decoding, found)
    if not decoding.shrinking:
        return _grown(beams, step, candidates.best(beam_size, among=~ends))
    narrower = beams._replace(widths=beams.widths - ended.scores.isfinite().sum(dim=1))
    return _grown(narrower, step, candidates.best(beam_size, among=~ends & within))


def _best_candidates(beams: Beams, log_probabilities: Tensor) -> Candidates:
    """From log p of the next word (J * K, V); best first. Twice as many as beams, since half of them may end."""
    num_images, beam_size = beams.scores.shape
    log_probabilities[:, [PAD, START]] = -torch.inf
    best, words = log_probabilities.topk(min(2 * beam_size, log_probabilities.shape[1]))  # (J * K, 2K)
    totals = (beams.scores.flatten().unsqueeze(1) + best).view(num_images, -1)
    scores, chosen = totals.topk(min(2 * beam_size, totals.shape[1]))  # (J, 2K)
    return Candidates(scores, chosen // best.shape[1], words.view(num_images, -1).gather(1, chosen))


def _grown(beams: Beams, step: Step, candidates: Candidates) -> Beams:
    """The candidates, with their parents' histories."""
    rows = beams.captions(candidates.parents)

    def history(past: Tensor, now: Tensor) -> Tensor:
        joined = torch.cat([past.flatten(0, 1)[rows], now.unsqueeze(1)], dim=1)
        return joined.unflatten(0, candidates.scores.shape)

    return beams._replace(
        state=step.state.select(rows),
        scores=candidates.scores,
        tokens=history(beams.tokens, candidates.words.flatten()),
        weights=history(beams.weights, step.weights[rows]),
        gates=history(beams.gates, step.gate[rows]),
    )


def _collect(ended: Beams, decoding: Decoding, found: dict[int, Generated]) -> None:
    """Put captions that have ended into `found`, where they beat what it holds of their image."""
    for row, beam in ended.scores.isfinite().nonzero().tolist():
        image = int(ended.images[row])
        caption = _caption(ended, row, beam)
        if image not in found or _merit(caption, decoding) > _merit(found[image], decoding):
            found[image] = caption


def _caption(beams: Beams, row: int, beam: int) -> Generated:
    parts = (beams.tokens[row, beam, 1:], beams.scores[row, beam], beams.weights[row, beam], beams.gates[row, beam])
    tokens, score, weights, gates = (part.cpu().clone() for part in parts)
    return Generated(tokens.tolist(), score.item(), weights, gates)
