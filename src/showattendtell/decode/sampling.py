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
        rows = torch.arange(len(thoughts.images), device=thoughts.images.device)
        tokens = torch.full((len(rows), 1), START, device=rows.device)
        steps: list[tuple[Tensor, ...]] = []
        ended = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
        while len(steps) < self.max_length and not ended.all():
            said = speech.step(thoughts, rows, tokens[:, -1])
            thoughts = said.thoughts
            allowed = rules.apply(said.scores, tokens[:, 1:]) - said.normalisers.unsqueeze(1)
            words = torch.multinomial(self.sharpen(allowed).exp(), 1)
            tokens = torch.cat([tokens, words], dim=1)
            locations = () if said.locations is None else (said.locations,)
            steps.append((allowed.gather(1, words).squeeze(1), said.weights, said.gate, *locations))
            ended |= words.squeeze(1) == EOS
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


def _cut(tokens: Tensor, scores: Tensor, weights: Tensor, gates: Tensor) -> Generated:
    """One draw, up to its `<eos>`."""
    words = tokens.tolist()
    length = words.index(EOS) + 1 if EOS in words else len(words)
    return Generated(words[:length], scores[:length].clone(), weights[:length].clone(), gates[:length].clone())
