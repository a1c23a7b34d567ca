"""Sampling with temperature, top-k and top-p (nucleus).

R is the number of captions that are sampled. The other sizes are those of `showattendtell.types`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import Tensor

from showattendtell.decoding.decoding import Captions, Constraints, Decoding, Ensemble
from showattendtell.settings import NonNegativeInt, Share, Temperature
from showattendtell.text.vocabulary import EOS, START, Vocabulary
from showattendtell.types import CaptionOutput


@dataclass(frozen=True, kw_only=True)
class Sampling(Decoding):
    """Sample each word from p^(1 / temperature), truncated by top_k and top_p.

    Args:
        temperature: below 1 likely words become more likely, above 1 less likely.
        top_k: sample only from this many most likely words; 0 for all.
        top_p: nucleus sampling (Holtzman et al. 2020) from the smallest set of words with this total probability.
    """

    temperature: Temperature = 1.0
    top_k: NonNegativeInt = 0
    top_p: Share = 1.0

    def generate(self, ensemble: Ensemble, regions: Sequence[Tensor], vocabulary: Vocabulary) -> Captions:
        """Sample `num_captions` captions per image, most likely first; log p is the model's, without temperature."""
        parts = [part.cpu() for part in self.sample(ensemble, regions, self.in_tokens(vocabulary))[:4]]
        sampled = []
        for row, *rest in zip(*parts, strict=True):
            tokens = row.tolist()
            if EOS in tokens:
                tokens = tokens[: tokens.index(EOS) + 1]
            sampled.append(CaptionOutput(tokens, *(part[: len(tokens)].clone() for part in rest)))
        images = range(0, len(sampled), self.num_captions)
        by_image = [sampled[first : first + self.num_captions] for first in images]
        return [sorted(captions, key=attrgetter("log_prob"), reverse=True) for captions in by_image]

    @torch.no_grad()
    def sample(self, ensemble: Ensemble, regions: Sequence[Tensor], constraints: Constraints) -> tuple[Tensor, ...]:
        """Sample `num_captions` captions per image, R in all; those of an image are consecutive.

        Returns:
            The tokens (R, T), the log p of each (R, T), alpha (R, T, L), beta (R, T), and the locations (R, T, H) if
            hard attention samples them. Entries after a caption's `<eos>` are not part of it.
        """
        decoder = ensemble.make_decoder(regions)
        states = decoder.init_state()
        states = states.index_select(states.images.repeat_interleave(self.num_captions))
        active = torch.arange(len(states.images), device=states.images.device)
        tokens = torch.full((len(active), 1), START, device=active.device)
        steps: list[tuple[Tensor, ...]] = []
        while len(steps) < self.max_length and len(active):
            output, states = decoder.step(states, torch.arange(len(active), device=tokens.device), tokens[active, -1])
            log_probs = constraints.apply(output.scores, tokens[active, 1:]) - output.normalizers.unsqueeze(1)
            words = multinomial(self.warp(log_probs).exp())
            parts = [words, log_probs.gather(1, words).squeeze(1), output.weights, output.gate]
            if output.locations is not None:
                parts.append(output.locations)
            # the B open captions are decoded; each part (B, ...) is put at their rows among zeros (R, ...)
            zeros = [part.new_zeros(len(tokens), *part.shape[1:]) for part in parts]
            word, *step = (empty.index_copy(0, active, part) for empty, part in zip(zeros, parts, strict=True))
            tokens = torch.cat([tokens, word], dim=1)
            steps.append(tuple(step))
            remaining = (words.squeeze(1) != EOS).nonzero().squeeze(1)
            active, states = active[remaining], states.index_select(remaining)
        return tokens[:, 1:], *(torch.stack(part, dim=1) for part in zip(*steps, strict=True))

    def warp(self, log_probs: Tensor) -> Tensor:
        """Return log p (R, V) of the words to sample from: temperature, then top_k, then top_p."""
        log_p = (log_probs / self.temperature).log_softmax(dim=1)
        if self.top_k:
            threshold = log_p.topk(min(self.top_k, log_p.shape[1])).values[:, -1:]
            log_p = log_p.masked_fill(log_p < threshold, -torch.inf).log_softmax(dim=1)
        if self.top_p < 1:
            sorted_log_p, order = log_p.sort(dim=1, descending=True)
            # the probability of all likelier words; the word that reaches top_p is still kept
            mass_before = sorted_log_p.exp().cumsum(dim=1) - sorted_log_p.exp()
            mask = torch.zeros_like(log_p, dtype=torch.bool).scatter(1, order, mass_before < self.top_p)
            log_p = log_p.masked_fill(~mask, -torch.inf).log_softmax(dim=1)
        return log_p


def multinomial(probabilities: Tensor) -> Tensor:
    """Sample a column (R, 1) from each row of (R, V), in proportion to its entries."""
    if probabilities.device.type != "cpu":
        return torch.multinomial(probabilities, 1)
    # On the CPU torch.multinomial draws a random number per entry. Inverse transform sampling draws one per row, which
    # is many times faster. In float64, because a float32 sum of 10,000 words loses the unlikely ones.
    cumulative = probabilities.cumsum(dim=1, dtype=torch.float64)
    thresholds = cumulative[:, -1:] * torch.rand(len(cumulative), 1, dtype=torch.float64)
    return torch.searchsorted(cumulative, thresholds, right=True).clamp(max=cumulative.shape[1] - 1)  # with NaN
