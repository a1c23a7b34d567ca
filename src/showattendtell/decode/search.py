"""Greedy and beam search over a batch of images at once, with the attention of every word."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor

from showattendtell.arguments import NonNegativeFloat, PositiveFloat, PositiveInt
from showattendtell.decode.beams import Beams, first_beams
from showattendtell.decode.candidates import Candidates, Offer, best_candidates, grow, side_by_side, spoken
from showattendtell.decode.decoding import Decoding
from showattendtell.decode.past import Ends, Past
from showattendtell.decode.rules import Rules
from showattendtell.decode.speaker import Speaker, Speech
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

        An open caption is hopeless when it cannot beat the worst of its image's best ended ones: at best it reaches
        `max_length` without losing log p. The search of an image ends when all are. Captions that are open then are
        returned where too few have ended, or where the beam is shrinking and they are better than what has.
        """
        rules = self.in_tokens(vocabulary)
        shape = (self.groups, len(rules.required) + 1, self.beam_size // self.groups)
        speech, past = speaker.before(regions), Past()
        beams = first_beams(speech.begin(), shape)
        found = Found(self, beams.scores)
        for _ in range(self.max_length):
            beams = extend(speech, beams, self, rules, found, past)
            beams = found.without_hopeless(beams)
            if not len(beams.images):
                break
        return found.best(beams, past)


class Found:
    """The best captions of each image and group so far.

    Args:
        like: log p of captions, a row for each of the I images.
    """

    def __init__(self, search: BeamSearch, like: Tensor):
        self._search = search
        wanted = -(-search.num_captions // search.groups)
        self._ends = Ends.none(like, len(like), search.groups, wanted)

    def add(self, images: Tensor, captions: Candidates, length: int) -> None:
        """Take those of the images' captions (J, G, ...) that are better than what is held of their group."""
        if not captions.scores.isfinite().any():
            return
        scores, parents, words = (part.flatten(2) for part in (captions.scores, captions.parents, captions.words))
        ends = Ends(self._search.merit(scores, length), scores, torch.full_like(words, length), parents, words)
        held = self._ends.each(lambda part: part[images]).beside(ends).best(self._ends.words.shape[2])
        self._ends = Ends(*(whole.index_copy(0, images, part) for whole, part in zip(self._ends, held, strict=True)))

    def without_hopeless(self, beams: Beams) -> Beams:
        """Only captions that may still enter the best, and only images that have such.

        All that a hopeless caption could have kept out of the beam is as hopeless. But where groups look at each
        other's words, or captions that end take a place, an image keeps all of its own until it is dropped.
        """
        reachable = self._search.merit(beams.scores, self._search.max_length)
        hopeful = reachable > self._ends.merits[beams.images, :, -1, None, None]  # (J, G, C + 1, K)
        if self._search.groups == 1 and not self._search.shrinking:
            beams = beams._replace(scores=beams.scores.masked_fill(~hopeful, -torch.inf))
        return beams.keep(hopeful.flatten(1).any(dim=1))

    def best(self, still_open: Beams, past: Past) -> list[list[Generated]]:
        """At the end the best of each image; open captions where too few have ended, or of a shrinking beam where they
        are better."""
        rest, wanted = Found(self._search, self._ends.scores), self._ends.words.shape[2]
        rest.add(still_open.images, Candidates.of(still_open), length=still_open.tokens.shape[2] - 1)
        together = self._ends.beside(rest._ends)
        chosen = together.best(wanted) if self._search.shrinking else together.first(wanted)
        of_images = chosen.each(lambda part: part.flatten(1)).best(self._search.num_captions)
        there = of_images.scores.isfinite()
        captions = iter(past.tell(of_images.each(lambda part: part[there])))
        return [[next(captions) for _ in range(number)] for number in there.sum(dim=1).tolist()]


def extend(speech: Speech, beams: Beams, search: BeamSearch, rules: Rules, found: Found, past: Past) -> Beams:
    """One word more. Captions that end within the beam go to `found`; the best that do not end stay open."""
    places = beams.places()
    parents, stems = beams.parents.flatten()[places].unique(return_inverse=True)
    tokens = beams.tokens.flatten(0, 1)[places]
    said = speech.step(beams.thoughts.follow(parents), stems, tokens[:, -1])
    past.add(parents[stems], tokens[:, -1], beams.scores.flatten()[places], stems, said)
    rows, scores = torch.arange(len(places), device=places.device), rules.apply(said.scores, tokens[:, 1:])
    ended, still_open = choose(beams, Offer(rows, places, tokens, scores, said.normalisers), search, rules)
    found.add(beams.images, ended, length=tokens.shape[1])
    if search.shrinking:
        beams = beams._replace(widths=beams.widths - ended.scores.isfinite().sum(dim=(1, 2, 3)))
    return grow(beams, tokens, said.thoughts, still_open)


def choose(beams: Beams, offer: Offer, search: BeamSearch, rules: Rules) -> tuple[Candidates, Candidates]:
    """The captions that end and those that stay open, (J, G, C + 1, K) each."""
    ended: list[Candidates] = []
    still_open: list[Candidates] = []
    num_beams = beams.scores.shape[3]
    for group in range(search.groups):
        penalty = search.diversity * spoken(still_open, offer.scores.shape[1]) if still_open else None
        candidates = best_candidates(beams, group, offer.of_group(beams, group), rules, penalty)
        ends = candidates.words == EOS
        within = torch.arange(ends.shape[2], device=ends.device) < beams.widths.view(-1, 1, 1)
        ended.append(candidates.best(num_beams, among=ends & within))
        followed = within if search.shrinking else True
        still_open.append(candidates.best(num_beams, among=~ends & followed))
    return side_by_side(ended), side_by_side(still_open)
