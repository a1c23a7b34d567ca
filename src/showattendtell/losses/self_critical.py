"""Self-critical sequence training: reward sampled captions instead of fitting the reference captions (Rennie et al.
2017, "Self-critical Sequence Training for Image Captioning")."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from showattendtell.data.tokenizers import Counts, count_ngrams
from showattendtell.data.vocabulary import EOS, PAD, START, Vocabulary
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Constraints
from showattendtell.decoding.ensemble import Ensemble
from showattendtell.decoding.sampling import Sampling
from showattendtell.errors import UserError
from showattendtell.losses.caption import LossOutput, negative_log_likelihood
from showattendtell.metrics.cider import CiderD, DocumentFrequencies, Weighted, bleu4
from showattendtell.metrics.diversity import EndingRates, judge_endings
from showattendtell.metrics.tokenizers import Words
from showattendtell.models.captioner import Captioner, eval_mode
from showattendtell.settings import NonNegativeFloat, PositiveInt
from showattendtell.types import Batch

NEVER = (PAD, START)
"""Tokens that no caption contains."""


class Reward(NamedTuple):
    """Reward of captions that are sampled from the model for the training images; without a weight on any reward
    nothing is sampled.

    cider: the weight of CIDEr-D (0 to 10); document frequencies are those of the training captions.
    bleu4: the weight of BLEU-4 (0 to 1).
    likelihood: the weight of the usual loss on the reference captions, with all its terms; 0 leaves it out.
    samples: N, the number of captions sampled per image of a batch.
    baseline: subtracted from a caption's reward: the mean reward of the image's other samples (others), or the reward
        of the greedy caption (greedy).
    max_length: the maximum sample length in words, <eos> included; a cut caption has no <eos>, which lowers its reward.
    """

    cider: NonNegativeFloat = 0.0
    bleu4: NonNegativeFloat = 0.0
    likelihood: NonNegativeFloat = 0.0
    samples: PositiveInt = 5
    baseline: Literal["others", "greedy"] = "others"
    max_length: PositiveInt = 30

    @property
    def is_given(self) -> bool:
        return bool(self.cider or self.bleu4)


class RewardSamples(NamedTuple):
    """Sampled captions, N consecutive ones per image.

    tokens     (K, T) `<pad>` after `<eos>`
    locations  (K, T, H) the regions that hard attention sampled; None without sampling
    """

    tokens: Tensor
    locations: Tensor | None

    @property
    def captions(self) -> list[list[int]]:
        """The tokens without padding."""
        return [[token for token in tokens if token != PAD] for tokens in self.tokens.tolist()]


class RewardFunction:
    """Score captions against the reference captions of their images; `<eos>` counts as a word in both.

    Args:
        references: the reference captions of each training image.
    """

    def __init__(self, reward: Reward, vocabulary: Vocabulary, references: Sequence[Sequence[Words]]):
        self._reward, self._words = reward, vocabulary.words
        self._references, self._end = references, (vocabulary.words[EOS],)
        self.frequencies = DocumentFrequencies.of([(*words, *self._end) for words in said] for said in references)
        self._cider = CiderD(self.frequencies)

    def describe(self) -> dict[str, Any]:
        """Return the statistics on which rewards depend, as plain data."""
        return {"images": self.frequencies.images, "document_frequencies": self.frequencies.sha256}

    def judge(self, captions: Sequence[Sequence[int]], images: Sequence[int]) -> dict[str, Tensor]:
        """Return the `reward` of each caption in tokens (K,), and its unweighted terms `cider` and `bleu4`.

        Args:
            images: indices of the captions' images among the training images.
        """
        references = {image: self._weigh(image) for image in set(images)}
        scores = [self._score(tokens, *references[image]) for tokens, image in zip(captions, images, strict=True)]
        cider, bleu = torch.tensor(scores).unbind(dim=1)
        return {"reward": self._reward.cider * cider + self._reward.bleu4 * bleu, "cider": cider, "bleu4": bleu}

    def _weigh(self, image: int) -> tuple[list[Counts[str]], list[Weighted]]:
        counts = [count_ngrams((*words, *self._end)) for words in self._references[image]]
        return counts, [self._cider.weigh(each) for each in counts]

    def _score(self, tokens: Sequence[int], counts: list[Counts[str]], weighted: list[Weighted]) -> tuple[float, float]:
        own = count_ngrams([self._words[token] for token in tokens])
        return self._cider.score(self._cider.weigh(own), weighted), bleu4(own, counts)


class SelfCriticalLoss(nn.Module):
    """Maximise the expected reward of the model's captions, sum_y p(y|a) r(y), with samples y_k.

        loss = -1/N sum_k (r(y_k) - b_k) log p(y_k)     E[grad loss] = -grad sum_y p(y|a) r(y)

    The loss is averaged over images, weighted by their number of captions in the batch. b_k is the mean reward of the
    image's other samples, or the reward of its greedy caption. With hard attention p(y_k) is that of words and sampled
    locations together, and the gradient is computed at these locations. Captions and their p are computed in
    evaluation mode: no dropout, and hard attention's `inference_mode`. So p is the distribution sampled from.

    Args:
        references: the reference captions of each training image.
    """

    def __init__(self, reward: Reward, vocabulary: Vocabulary, references: Sequence[Sequence[Words]]):
        super().__init__()
        if reward.baseline == "others" and reward.samples < 2:
            raise UserError(
                f"reward.baseline=others compares an image's captions; reward.samples must be 2 or more, got "
                f"{reward.samples}"
            )
        self.reward, self.vocabulary = reward, vocabulary
        self.judge = RewardFunction(reward, vocabulary, references)
        self._constraints = Constraints((), (), NEVER, min_length=0, max_length=reward.max_length, block_ngrams=0)

    def forward(self, captioner: Captioner, regions: Tensor, batch: Batch) -> LossOutput:
        """Compute the loss from the regions (I, L, D) of the batch's images."""
        with eval_mode(captioner):
            samples = self._draw(captioner, regions)
            log_p = log_prob(captioner, regions, samples).view(len(regions), -1)  # (I, N)
            values = self._judge(samples.captions, batch.positions)
            baseline = self._baseline(captioner, regions, batch.positions, values["reward"])
        advantage = (values["reward"] - baseline).to(log_p)
        shares = torch.bincount(batch.image_index, minlength=len(regions)) / len(batch.image_index)  # (I,)
        loss = -(shares.unsqueeze(1) * advantage * log_p).sum() / self.reward.samples
        figures = {f"sampled_{name}": part for name, part in self._figures(samples, values, shares).items()}
        return LossOutput(None, {"reward": loss}, figures)

    def _draw(self, captioner: Captioner, regions: Tensor) -> RewardSamples:
        sampling = Sampling(num_captions=self.reward.samples, max_length=self.reward.max_length)
        draws = sampling.draw(Ensemble([captioner]), [regions], self._constraints)
        ends = draws.tokens == EOS
        behind = ends.cumsum(dim=1) > ends.long()
        return RewardSamples(draws.tokens.masked_fill(behind, PAD), draws.locations)

    def _judge(self, captions: Sequence[Sequence[int]], positions: Tensor) -> dict[str, Tensor]:
        """Return the rewards of N consecutive captions per image, (I, N) each."""
        images = positions.repeat_interleave(len(captions) // len(positions))
        values = self.judge.judge(captions, images.tolist())
        return {name: value.view(len(positions), -1) for name, value in values.items()}

    def _baseline(self, captioner: Captioner, regions: Tensor, positions: Tensor, reward: Tensor) -> Tensor:
        """Return the baseline of each sample's reward, (I, N) or (I, 1)."""
        if self.reward.baseline == "others":
            return (reward.sum(dim=1, keepdim=True) - reward) / (self.reward.samples - 1)
        with torch.no_grad():
            greedy = BeamSearch(max_length=self.reward.max_length).generate(
                Ensemble([captioner]), [regions], self.vocabulary
            )
        return self._judge([caption.tokens for [caption] in greedy], positions)["reward"]

    def _figures(self, samples: RewardSamples, values: dict[str, Tensor], shares: Tensor) -> dict[str, Tensor]:
        """Return means over the batch's samples: the reward and its terms, and statistics of how captions end."""
        words = [self.vocabulary.decode(tokens) for tokens in samples.captions]
        endings = [judge_endings([said], [EOS in tokens]) for said, tokens in zip(words, samples.captions, strict=True)]
        each = torch.tensor(endings).T.reshape(3, len(shares), -1)
        parts = {**values, **dict(zip(EndingRates._fields, each, strict=True))}
        return {name: shares.cpu() @ part.mean(dim=1) for name, part in parts.items()}


def log_prob(captioner: Captioner, regions: Tensor, samples: RewardSamples) -> Tensor:
    """Return log p of the captions (K,), N consecutive ones per image, including the log p of the locations that hard
    attention sampled for them."""
    tokens, locations = samples
    image_index = torch.arange(len(regions), device=tokens.device).repeat_interleave(len(tokens) // len(regions))
    trace = captioner.unroll(*captioner.init_state(regions), image_index, tokens, locations)
    never = torch.tensor(NEVER, device=tokens.device)
    bias = trace.output_features.bias.index_fill(0, never, -torch.inf)
    log_p = -negative_log_likelihood(trace._replace(output_features=trace.output_features._replace(bias=bias)), tokens)
    if trace.sample is None:
        return log_p
    return log_p + (trace.sample.log_prob * (tokens != PAD)).sum(dim=1)
