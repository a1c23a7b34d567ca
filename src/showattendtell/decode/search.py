"""Greedy and beam search over a batch of images at once, with the attention of every word."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor

from showattendtell.arguments import NonNegativeFloat, PositiveFloat, PositiveInt
from showattendtell.decode.beams import Beams, Candidates, caption_of, first_beams, grow, likeliest, side_by_side
from showattendtell.decode.decoding import Decoding
from showattendtell.decode.rules import Rules
from showattendtell.decode.speaker import Speaker
from showattendtell.records import Generated
from showattendtell.text.vocabulary import EOS, Vocabulary

Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True, kw_only=True)
class BeamSearch(Decoding):
    """The likeliest captions that a beam finds; a beam of 1 is greedy.

    Captions that say more of the required words have beams of their own, so that each word comes where it fits best
    (Hokamp and Liu 2017). With several groups the beams write captions unlike each other (Vijayakumar et al. 2018).

    beam_size: the number of open captions of an image, in all groups.
    normalisation: captions of an image are compared by log p; by log p / length^length_power; or, as in GNMT (Wu et al.
        2016), by log p / ((5 + length) / 6)^length_power. The length counts <eos>.
    length_power: the power of the length; a larger one favours longer captions.
    groups: the beam is divided into as many, which take each step one after the other.
    diversity: what a word's log p loses in a group for each caption of earlier groups that says it at the same step.
    shrinking: captions that end leave the beam for good, and those still open at max_length are compared with them.
    """

    beam_size: PositiveInt = 1
    normalisation: Literal["none", "length", "gnmt"] = "none"
    length_power: PositiveFloat = 1.0
    groups: PositiveInt = 1
    diversity: NonNegativeFloat = 0.5
    shrinking: bool = False

    def __post_init__(self) -> None:
        if self.beam_size % self.groups:
            raise ValueError(f"beam_size={self.beam_size} cannot be divided into groups={self.groups} of one size")
        if self.num_captions > self.beam_size:
            raise ValueError(f"num_captions={self.num_captions} needs a beam as large; got beam_size={self.beam_size}")
        if self.shrinking and (self.groups > 1 or self.required):
            raise ValueError("shrinking=true is for one beam; leave it out with groups or required words")

    def merit(self, log_probability: Number, length: int) -> Number:
        """What an image's captions are compared by."""
        if self.normalisation == "none":
            return log_probability
        base = length if self.normalisation == "length" else (5 + length) / 6
        return log_probability / base**self.length_power

    @torch.no_grad()
    def write(self, speaker: Speaker, regions: Sequence[Tensor], vocabulary: Vocabulary) -> list[list[Generated]]:
        """The best captions found for each image, by `merit`.

        An image's search ends as soon as none of its open captions can beat the worst of its best ended ones: at best
        they reach `max_length` without losing log p. Captions that are open then are returned where too few have ended,
        or where the beam is shrinking and they are better than what has.
        """
        rules = self.in_tokens(vocabulary)
        shape = (self.groups, len(rules.required) + 1, self.beam_size // self.groups)
        found = Found(self, len(regions[0]))
        beams = first_beams(speaker, regions, shape)
        for _ in range(self.max_length):
            beams = extend(speaker, beams, self, rules, found)
            beams = beams.keep(found.unsettled(beams))
            if not len(beams.images):
                break
        return found.best(beams)


class Found:
    """The best captions of each image and group so far."""

    def __init__(self, search: BeamSearch, num_images: int):
        self._search = search
        self._wanted = -(-search.num_captions // search.groups)
        self._lists: list[list[list[Generated]]] = [[[] for _ in range(search.groups)] for _ in range(num_images)]

    def merit(self, caption: Generated) -> float:
        return self._search.merit(caption.log_probability, len(caption.tokens))

    def add(self, beams: Beams) -> None:
        """Take those of the captions that are better than what is held of their image and group."""
        length, in_group = beams.tokens.shape[2] - 1, math.prod(beams.scores.shape[2:])
        scores = beams.scores.flatten(2).tolist()
        for row, image in enumerate(beams.images.tolist()):
            for group, kept in enumerate(self._lists[image]):
                for beam, score in enumerate(scores[row][group]):
                    worse = len(kept) == self._wanted and self._search.merit(score, length) <= self.merit(kept[-1])
                    if score > -math.inf and not worse:
                        kept.append(caption_of(beams, row, group * in_group + beam))
                        kept.sort(key=self.merit, reverse=True)
                        del kept[self._wanted :]

    def unsettled(self, beams: Beams) -> Tensor:
        """Images of which an open caption may still enter the best (J,)."""
        reachable = self._search.merit(beams.scores.amax(dim=(2, 3)), self._search.max_length)  # (J, G)
        worst = [
            [self.merit(kept[-1]) if len(kept) == self._wanted else -math.inf for kept in self._lists[image]]
            for image in beams.images.tolist()
        ]
        return (reachable > reachable.new_tensor(worst).view_as(reachable)).any(dim=1)

    def best(self, still_open: Beams) -> list[list[Generated]]:
        """At the end the best of each image; open captions where too few have ended, or of a shrinking beam where they
        are better."""
        rest = Found(self._search, len(self._lists))
        rest.add(still_open)
        best = []
        for groups, open_groups in zip(self._lists, rest._lists, strict=True):
            captions = [caption for pair in zip(groups, open_groups, strict=True) for caption in self._fill(*pair)]
            best.append(sorted(captions, key=self.merit, reverse=True)[: self._search.num_captions])
        return best

    def _fill(self, ended: list[Generated], still_open: list[Generated]) -> list[Generated]:
        together = [*ended, *still_open]
        return (sorted(together, key=self.merit, reverse=True) if self._search.shrinking else together)[: self._wanted]


def extend(speaker: Speaker, beams: Beams, search: BeamSearch, rules: Rules, found: Found) -> Beams:
    """One word more. Captions that end within the beam go to `found`; the best that do not end stay open."""
    said = speaker.step(beams.thoughts, beams.tokens[:, :, -1].flatten())
    log_p = rules.apply(said.log_probabilities, beams.tokens[:, :, 1:].flatten(0, 1))
    log_p = log_p.view(*beams.scores.shape, -1)  # (J, G, C + 1, K, V)
    ended: list[Candidates] = []
    still_open: list[Candidates] = []
    for group in range(search.groups):
        penalty = search.diversity * _spoken(still_open, log_p.shape[-1]) if still_open else None
        candidates = best_candidates(beams, group, log_p[:, group], rules, penalty)
        ends = candidates.words == EOS
        within = torch.arange(ends.shape[-1], device=ends.device) < beams.widths.view(-1, 1, 1)
        ended.append(candidates.best(beams.scores.shape[-1], among=ends & within))
        followed = within if search.shrinking else True
        still_open.append(candidates.best(beams.scores.shape[-1], among=~ends & followed))
    complete = grow(beams, said, side_by_side(ended))
    found.add(complete)
    if search.shrinking:
        beams = beams._replace(widths=beams.widths - complete.scores.isfinite().sum(dim=(1, 2, 3)))
    return grow(beams, said, side_by_side(still_open))


def _spoken(groups: Sequence[Candidates], vocabulary_size: int) -> Tensor:
    """How often earlier groups say each word at this step, (J, 1, 1, V)."""
    words = torch.cat([group.words.flatten(1) for group in groups], dim=1)
    counted = torch.cat([group.scores.flatten(1) for group in groups], dim=1).isfinite()
    counts = groups[0].scores.new_zeros(len(words), vocabulary_size)
    return counts.scatter_add_(1, words, counted.to(counts)).view(len(words), 1, 1, -1)


def best_candidates(beams: Beams, group: int, log_p: Tensor, rules: Rules, penalty: Tensor | None) -> Candidates:
    """From log p of a group's next words (J, C + 1, K, V); best first. Twice as many as beams, since half of them may
    end."""
    number = 2 * beams.scores.shape[-1]
    chosen_by = log_p if penalty is None else log_p - penalty
    if not rules.required:
        words = likeliest(chosen_by, min(number, log_p.shape[-1]))
        return _continue(beams, group, words, log_p, chosen_by).best(number)
    required = torch.tensor(rules.required, device=log_p.device)
    tokens = beams.tokens.view(*beams.scores.shape, -1)[:, group, ..., 1:]  # (J, C + 1, K, t)
    unsaid = rules.unsaid(tokens.flatten(0, 2)).view(*log_p.shape[:3], -1)
    staying, moving = chosen_by.clone(), torch.full_like(chosen_by, -torch.inf)
    staying[..., required] = chosen_by[..., required].masked_fill(unsaid, -torch.inf)
    moving[..., required] = chosen_by[..., required].masked_fill(~unsaid, -torch.inf)
    words = likeliest(staying, min(number, log_p.shape[-1]))
    stay = _continue(beams, group, words, log_p, staying)
    move = _continue(beams, group, required.expand_as(unsaid), log_p, moving).next_bank()
    together = Candidates(*(torch.cat(parts, dim=-1) for parts in zip(stay, move, strict=True)))
    return together.best(number)


def _continue(beams: Beams, group: int, words: Tensor, log_p: Tensor, chosen_by: Tensor) -> Candidates:
    """A group's captions, each with each of its words (J, C + 1, K, n), as (J, C + 1, K * n)."""
    before = beams.scores[:, group].unsqueeze(-1)
    in_group = before[0].numel()
    numbers = torch.arange(group * in_group, (group + 1) * in_group, device=words.device).view(before.shape[1:])
    scores, merits = (before + part.gather(-1, words) for part in (log_p, chosen_by))
    return Candidates(*(part.flatten(2) for part in (scores, merits, numbers.expand_as(words), words)))
