"""Writing captions: greedy and beam search over a batch of images at once, with the attention of every word."""

from typing import NamedTuple

import torch
from torch import Tensor

from showattendtell.arguments import PositiveInt
from showattendtell.model.attention import Memory
from showattendtell.model.captioner import Captioner
from showattendtell.model.decoder import State
from showattendtell.records import Generated
from showattendtell.text.vocabulary import EOS, PAD, START


class Decoding(NamedTuple):
    """How captions are written.

    beam_size: the number of open captions an image; 1 is greedy.
    max_length: the longest caption in words, `<eos>` included.
    """

    beam_size: PositiveInt = 1
    max_length: PositiveInt = 30


class Beams(NamedTuple):
    """The open captions of the J images that are still searched: K an image, best first.

    images  (J,) which of the batch's images they are      memory, state  of J images and of J * K captions
    scores  (J, K) log p                                   tokens  (J, K, t), `<start>` first
    weights (J, K, t - 1, L) alpha                         gates   (J, K, t - 1) beta
    """

    images: Tensor
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
        return Beams(self.images[rows], self.memory.select(rows), self.state.select(captions), *tracked)


@torch.no_grad()
def generate(captioner: Captioner, regions: Tensor, decoding: Decoding) -> list[Generated]:
    """The best caption found for each image, by the sum of its words' log p.

    An image's search ends as soon as none of its open captions can beat its best ended one. Where nothing has ended
    after `max_length` words, the best open caption is returned.

    Args:
        regions: (I, L, D).
    """
    found: dict[int, Generated] = {}
    beams = _first_beams(captioner, regions, decoding.beam_size)
    for _ in range(decoding.max_length):
        beams = _extend(captioner, beams, found)
        best_ended = [found[image].log_probability if image in found else -torch.inf for image in beams.images.tolist()]
        searching = beams.scores[:, 0] > torch.tensor(best_ended, device=regions.device)
        if not searching.all():
            beams = beams.keep(searching.nonzero().squeeze(1))
        if not len(beams.images):
            break
    for row, image in enumerate(beams.images.tolist()):
        if image not in found:
            found[image] = _caption(beams, row, 0)
    return [found[image] for image in range(len(regions))]


def _first_beams(captioner: Captioner, regions: Tensor, beam_size: int) -> Beams:
    """`<start>` in every beam; all but the first beam are ruled out, since they would be copies of it."""
    memory, state = captioner.begin(regions)
    images = torch.arange(len(regions), device=regions.device)
    scores = regions.new_full((len(regions), beam_size), -torch.inf)
    scores[:, 0] = 0
    tokens = torch.full((len(regions), beam_size, 1), START, device=regions.device)
    weights = regions.new_zeros(len(regions), beam_size, 0, regions.shape[1])
    return Beams(
        images, memory, state.select(images.repeat_interleave(beam_size)), scores, tokens, weights, weights[..., 0]
    )


def _extend(captioner: Captioner, beams: Beams, found: dict[int, Generated]) -> Beams:
    """One word more. Captions that end among the best K go to `found` if they are their image's best so far; the best K
    that do not end stay open."""
    num_images, beam_size = beams.scores.shape
    step = captioner.step(beams.memory, beams.state, beams.tokens[:, :, -1].flatten())
    log_probabilities = step.log_probabilities
    log_probabilities[:, [PAD, START]] = -torch.inf
    best, words = log_probabilities.topk(min(2 * beam_size, log_probabilities.shape[1]))  # (J * K, 2K)
    totals = (beams.scores.flatten().unsqueeze(1) + best).view(num_images, -1)
    scores, chosen = totals.topk(min(2 * beam_size, totals.shape[1]))  # (J, 2K), best first
    parents, words = chosen // best.shape[1], words.view(num_images, -1).gather(1, chosen)

    def grown(order: Tensor, scores: Tensor) -> Beams:
        """The candidates at the ranks `order` (J, K'), with their parents' histories."""
        rows = beams.captions(parents.gather(1, order))

        def history(past: Tensor, now: Tensor) -> Tensor:
            joined = torch.cat([past.flatten(0, 1)[rows], now.unsqueeze(1)], dim=1)
            return joined.unflatten(0, (num_images, -1))

        return beams._replace(
            state=step.state.select(rows),
            scores=scores,
            tokens=history(beams.tokens, words.gather(1, order).flatten()),
            weights=history(beams.weights, step.weights[rows]),
            gates=history(beams.gates, step.gate[rows]),
        )

    ended = words == EOS
    _collect(grown(torch.arange(beam_size, device=words.device).expand(num_images, -1), scores[:, :beam_size]), found)
    open_scores, order = scores.masked_fill(ended, -torch.inf).topk(beam_size)
    return grown(order, open_scores)


def _collect(candidates: Beams, found: dict[int, Generated]) -> None:
    """Move captions that have ended to `found`, where they beat what it holds of their image."""
    ended = candidates.tokens[:, :, -1] == EOS
    for row, beam in (ended & candidates.scores.isfinite()).nonzero().tolist():
        image = int(candidates.images[row])
        caption = _caption(candidates, row, beam)
        if image not in found or caption.log_probability > found[image].log_probability:
            found[image] = caption


def _caption(beams: Beams, row: int, beam: int) -> Generated:
    parts = (beams.tokens[row, beam, 1:], beams.scores[row, beam], beams.weights[row, beam], beams.gates[row, beam])
    tokens, score, weights, gates = (part.cpu().clone() for part in parts)
    return Generated(tokens.tolist(), score.item(), weights, gates)
