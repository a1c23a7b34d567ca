"""Captions drawn word by word from what the model finds likely."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from showattendtell.arguments import NonNegativeInt, PositiveFloat, Share
from showattendtell.decode.decoding import Decoding
from showattendtell.decode.rules import Rules
from showattendtell.decode.speaker import Speaker
from showattendtell.records import Generated
from showattendtell.text.vocabulary import EOS, START, Vocabulary


class Draws(NamedTuple):
    """R captions, until the last of them has ended: what stands behind a caption's `<eos>` is none of it.

    tokens     (R, T)
    scores     (R, T) log p of each
    weights    (R, T, L) alpha
    gates      (R, T) beta
    locations  (R, T, H) which regions hard attention drew; None where nothing is drawn
    """

    tokens: Tensor
    scores: Tensor
    weights: Tensor
    gates: Tensor
    locations: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Sampling(Decoding):
    """Each word is drawn from p^(1 / temperature), cut to the likeliest words.

    temperature: below 1 likely words become likelier, above 1 less so.
    top_k: only that many words may be drawn; 0 for all.
    top_p: only the fewest words that together have this probability may be drawn (Holtzman et al. 2020).
    """

    temperature: PositiveFloat = 1.0
    top_k: NonNegativeInt = 0
    top_p: Share = 1.0

    def write(self, speaker: Speaker, regions: Sequence[Tensor], vocabulary: Vocabulary) -> list[list[Generated]]:
        """`num_captions` draws for each image, the likeliest first; log p is the model's own, without temperature."""
        draws = self.draw(speaker, regions, self.in_tokens(vocabulary))
        parts = (part.cpu() for part in (draws.tokens, draws.scores, draws.weights, draws.gates))
        drawn = [_cut(*row) for row in zip(*parts, strict=True)]
        by_image = (drawn[first : first + self.num_captions] for first in range(0, len(drawn), self.num_captions))
        return [sorted(captions, key=lambda caption: caption.log_probability, reverse=True) for captions in by_image]

    @torch.no_grad()
    def draw(self, speaker: Speaker, regions: Sequence[Tensor], rules: Rules) -> Draws:
        """`num_captions` draws for each image, those of an image together."""
        speech = speaker.before(regions)
        thoughts = speech.begin()
        thoughts = thoughts.follow(thoughts.images.repeat_interleave(self.num_captions))
        still_open = torch.arange(len(thoughts.images), device=thoughts.images.device)
        tokens = torch.full((len(still_open), 1), START, device=still_open.device)
        steps: list[tuple[Tensor, ...]] = []
        while len(steps) < self.max_length and len(still_open):
            said = speech.step(thoughts, torch.arange(len(still_open), device=tokens.device), tokens[still_open, -1])
            allowed = rules.apply(said.scores, tokens[still_open, 1:]) - said.normalisers.unsqueeze(1)
            words = draw(self.sharpen(allowed).exp())
            parts = (words, allowed.gather(1, words).squeeze(1), said.weights, said.gate, said.locations)
            word, *step = (_spread(part, still_open, len(tokens)) for part in parts if part is not None)
            tokens = torch.cat([tokens, word], dim=1)
            steps.append(tuple(step))
            going_on = (words.squeeze(1) != EOS).nonzero().squeeze(1)
            still_open, thoughts = still_open[going_on], said.thoughts.follow(going_on)
        return Draws(tokens[:, 1:], *(torch.stack(part, dim=1) for part in zip(*steps, strict=True)))

    def sharpen(self, log_probabilities: Tensor) -> Tensor:
        """log p of the words to draw from, (R, V): temperature first, then the cuts."""
        log_p = (log_probabilities / self.temperature).log_softmax(dim=1)
        if self.top_k:
            least = log_p.topk(min(self.top_k, log_p.shape[1])).values[:, -1:]
            log_p = log_p.masked_fill(log_p < least, -torch.inf).log_softmax(dim=1)
        if self.top_p < 1:
            ranked, order = log_p.sort(dim=1, descending=True)
            before = ranked.exp().cumsum(dim=1) - ranked.exp()
            kept = torch.zeros_like(log_p, dtype=torch.bool).scatter(1, order, before < self.top_p)
            log_p = log_p.masked_fill(~kept, -torch.inf).log_softmax(dim=1)
        return log_p


def draw(probabilities: Tensor) -> Tensor:
    """A column (R, 1) drawn from each row of (R, V).

    On a processor torch.multinomial draws a number for each entry, which takes many times as long as one for each row:
    the first column whose cumulative sum is above it.
    """
    if probabilities.device.type != "cpu":
        return torch.multinomial(probabilities, 1)
    sums = probabilities.cumsum(dim=1, dtype=torch.float64)
    heights = sums[:, -1:] * torch.rand(len(sums), 1, dtype=torch.float64)
    return torch.searchsorted(sums, heights, right=True)


def _spread(part: Tensor, rows: Tensor, num_rows: int) -> Tensor:
    """(B, ...) as these rows of (R, ...), whose others are 0."""
    return part.new_zeros(num_rows, *part.shape[1:]).index_copy(0, rows, part)


def _cut(tokens: Tensor, scores: Tensor, weights: Tensor, gates: Tensor) -> Generated:
    """One draw, up to its `<eos>`."""
    words = tokens.tolist()
    length = words.index(EOS) + 1 if EOS in words else len(words)
    return Generated(words[:length], scores[:length].clone(), weights[:length].clone(), gates[:length].clone())
