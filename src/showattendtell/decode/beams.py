"""The open captions of a batch of images as tensors: how they begin, grow by a word, and which words are likeliest."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from showattendtell.decode.speaker import Speaker, Thoughts, Utterance
from showattendtell.records import Generated
from showattendtell.text.vocabulary import START


class Beams(NamedTuple):
    """The open captions of the J images that are still searched.

    An image has G groups of C + 1 banks, for the captions that have said 0 to C of the required words, of K beams, best
    first: W beams in all.

    images  (J,) which of the batch's images they are      thoughts  of J images and of J * W captions
    widths  (J,) how many of the K may be open             scores  (J, G, C + 1, K) log p, -inf where none is open
    tokens  (J, W, t), `<start>` first                     weights, gates  (J, W, t - 1, L) alpha, (J, W, t - 1) beta
    """

    images: Tensor
    widths: Tensor
    thoughts: Thoughts
    scores: Tensor
    tokens: Tensor
    weights: Tensor
    gates: Tensor

    def rows(self, beams: Tensor) -> Tensor:
        """Beam numbers within each image (J, ...) to rows of all captions, flat."""
        offsets = torch.arange(len(beams), device=beams.device) * self.tokens.shape[1]
        return (offsets.view(-1, *[1] * (beams.ndim - 1)) + beams).flatten()

    def keep(self, chosen: Tensor) -> "Beams":
        """The beams of the images that are marked (J,)."""
        if chosen.all():
            return self
        images = chosen.nonzero().squeeze(1)
        width = self.tokens.shape[1]
        captions = (images.unsqueeze(1) * width + torch.arange(width, device=images.device)).flatten()
        tracked = (part[images] for part in (self.scores, self.tokens, self.weights, self.gates))
        thoughts = self.thoughts.select(images, captions)
        return Beams(self.images[images], self.widths[images], thoughts, *tracked)


class Candidates(NamedTuple):
    """Captions one word longer, (J, C + 1, any number): log p, what they are chosen by, the beam that they continue,
    their last word."""

    scores: Tensor
    merits: Tensor
    parents: Tensor
    words: Tensor

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


def first_beams(speaker: Speaker, regions: Sequence[Tensor], shape: tuple[int, int, int]) -> Beams:
    """`<start>` in every beam; all but the first of each group are ruled out, since they would be copies of it."""
    seen, width = regions[0], shape[-1]
    images, num_beams = torch.arange(len(seen), device=seen.device), math.prod(shape)
    scores = seen.new_full((len(seen), *shape), -torch.inf)
    scores[:, :, 0, 0] = 0
    tokens = torch.full((len(seen), num_beams, 1), START, device=seen.device)
    weights = seen.new_zeros(len(seen), num_beams, 0, seen.shape[1])
    thoughts = speaker.begin(regions, num_beams)
    return Beams(images, torch.full_like(images, width), thoughts, scores, tokens, weights, weights[..., 0])


def grow(beams: Beams, said: Utterance, candidates: Candidates) -> Beams:
    """The candidates (J, G, C + 1, K), with their parents' histories."""
    parents = candidates.parents.flatten(1)
    rows = beams.rows(parents)

    def history(past: Tensor, now: Tensor) -> Tensor:
        joined = torch.cat([past.flatten(0, 1)[rows], now.unsqueeze(1)], dim=1)
        return joined.unflatten(0, parents.shape)

    return beams._replace(
        thoughts=said.thoughts.follow(rows),
        scores=candidates.scores,
        tokens=history(beams.tokens, candidates.words.flatten()),
        weights=history(beams.weights, said.weights[rows]),
        gates=history(beams.gates, said.gate[rows]),
    )


def side_by_side(groups: Sequence[Candidates]) -> Candidates:
    """Candidates of the groups (J, C + 1, K) as (J, G, C + 1, K)."""
    return Candidates(*(torch.stack(parts, dim=1) for parts in zip(*groups, strict=True)))


def likeliest(log_p: Tensor, number: int) -> Tensor:
    """The words of the `number` largest log p (..., V), best first.

    They stand in as many blocks of sqrt(V) words, those of the largest maxima, which takes less than ranking V words.
    """
    num_words = log_p.shape[-1]
    size = math.isqrt(num_words)
    if size < 4 * number:
        return log_p.topk(number).indices
    whole = num_words // size * size
    blocks = log_p[..., :whole].unflatten(-1, (-1, size))
    best = blocks.amax(dim=-1).topk(number).indices.unsqueeze(-1)  # (..., number, 1)
    within = torch.arange(size, device=log_p.device)
    rest = torch.arange(whole, num_words, device=log_p.device).expand(*log_p.shape[:-1], -1)
    words = torch.cat([(best * size + within).flatten(-2), rest], dim=-1)
    return words.gather(-1, log_p.gather(-1, words).topk(number).indices)


def caption_of(beams: Beams, row: int, beam: int) -> Generated:
    """One of an image's open captions, by its row and its number among the W."""
    parts = (beams.tokens[row, beam, 1:], beams.weights[row, beam], beams.gates[row, beam])
    tokens, weights, gates = (part.cpu().clone() for part in parts)
    return Generated(tokens.tolist(), beams.scores[row].flatten()[beam].item(), weights, gates)
