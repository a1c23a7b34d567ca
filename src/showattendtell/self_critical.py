"""Captions that are written and rewarded, instead of people's that are read: self-critical sequence training (Rennie et
al. 2017, "Self-critical Sequence Training for Image Captioning")."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from showattendtell.arguments import NonNegativeFloat, PositiveInt
from showattendtell.decode.rules import Rules
from showattendtell.decode.sampling import Sampling
from showattendtell.decode.search import BeamSearch
from showattendtell.decode.speaker import Speaker
from showattendtell.errors import UserError
from showattendtell.loss import negative_log_likelihood
from showattendtell.metrics.endings import Endings, judge_endings
from showattendtell.metrics.measured import Words
from showattendtell.metrics.rewards import CiderD, DocumentFrequencies, Weighted, bleu4
from showattendtell.model.captioner import Captioner, as_written
from showattendtell.records import Batch
from showattendtell.text.ngrams import Counts, count_ngrams
from showattendtell.text.vocabulary import EOS, PAD, START, Vocabulary

NEVER = (PAD, START)
"""Tokens that no caption says."""


class Reward(NamedTuple):
    """What captions that the model draws for the training images are rewarded for, word by word drawn from p; with no
    weight on any reward nothing is drawn.

    cider: the weight of CIDEr-D, which is 0 to 10; document frequencies are those of the training captions.
    bleu4: the weight of BLEU-4, which is 0 to 1.
    likelihood: the weight of the loss that people's captions have without rewards, all its terms; 0 leaves it out.
    samples: N, the captions drawn for each image of a batch.
    baseline: what a caption's reward is held against: the mean of the image's other ones, or that of the greedy one.
    max_length: the longest caption that is drawn, in words, <eos> included; what is cut off there has no <eos>, which
        costs it reward.
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


class Samples(NamedTuple):
    """Captions that were drawn, as many of each image one after the other.

    tokens     (K, T) `<pad>` behind `<eos>`
    locations  (K, T, H) which regions hard attention drew; None where nothing is drawn
    """

    tokens: Tensor
    locations: Tensor | None

    @property
    def captions(self) -> list[list[int]]:
        """The tokens without padding."""
        return [[token for token in tokens if token != PAD] for tokens in self.tokens.tolist()]


class Worth(NamedTuple):
    """What captions are worth, (K,) each: the reward that the weights make of its parts, and these."""

    reward: Tensor
    cider: Tensor
    bleu4: Tensor


class Rewards(NamedTuple):
    """What a batch's rewards give: the loss that ascends them, and what tells how that goes."""

    loss: Tensor
    figures: dict[str, Tensor]


class Judge:
    """Holds captions against those that people gave to the same images; in all of them `<eos>` counts as a word.

    Args:
        references: people's captions of each training image.
    """

    def __init__(self, reward: Reward, vocabulary: Vocabulary, references: Sequence[Sequence[Words]]):
        self._reward, self._words = reward, vocabulary.words
        self._references, self._end = references, (vocabulary.words[EOS],)
        self.frequencies = DocumentFrequencies.of([(*words, *self._end) for words in said] for said in references)
        self._cider = CiderD(self.frequencies)

    def describe(self) -> dict[str, Any]:
        """What rewards are counted by, as plain data."""
        return {"images": self.frequencies.images, "document_frequencies": self.frequencies.sha256}

    def judge(self, captions: Sequence[Sequence[int]], images: Sequence[int]) -> Worth:
        """Captions in tokens, each of the image at that place among the training images."""
        people = {image: self._people(image) for image in set(images)}
        scores = [self._score(tokens, *people[image]) for tokens, image in zip(captions, images, strict=True)]
        cider, bleu = torch.tensor(scores).unbind(dim=1)
        return Worth(self._reward.cider * cider + self._reward.bleu4 * bleu, cider, bleu)

    def _people(self, image: int) -> tuple[list[Counts[str]], list[Weighted]]:
        counts = [count_ngrams((*words, *self._end)) for words in self._references[image]]
        return counts, [self._cider.weigh(each) for each in counts]

    def _score(self, tokens: Sequence[int], counts: list[Counts[str]], weighted: list[Weighted]) -> tuple[float, float]:
        own = count_ngrams([self._words[token] for token in tokens])
        return self._cider.score(self._cider.weigh(own), weighted), bleu4(own, counts)


class SelfCritical(nn.Module):
    """Ascends the expected reward of the captions that the model writes, sum_y p(y|a) r(y), by samples y.

        -1/N sum_k (r(y_k) - b_k) log p(y_k)   and its gradient's mean is that of -sum_y p(y|a) r(y)

    averaged over a batch's captions, each of which stands for its image. b_k is the mean reward of the image's other
    samples, or the reward of its greedy caption. With hard attention the locations are drawn with the words, p(y_k) is
    that of both, and the gradient is taken where they were drawn. A caption is drawn, and its p taken, as captions are
    written: without dropout, and with what hard attention does outside training. So p is what it was drawn from.

    Args:
        references: people's captions of each training image.
    """

    def __init__(self, reward: Reward, vocabulary: Vocabulary, references: Sequence[Sequence[Words]]):
        super().__init__()
        if reward.baseline == "others" and reward.samples < 2:
            raise UserError(
                f"reward.baseline=others compares an image's captions; reward.samples must be 2 or more, got "
                f"{reward.samples}"
            )
        self.reward, self.vocabulary = reward, vocabulary
        self.judge = Judge(reward, vocabulary, references)
        self._rules = Rules((), (), NEVER, min_length=0, max_length=reward.max_length, block_ngrams=0)

    def forward(self, captioner: Captioner, regions: Tensor, batch: Batch) -> Rewards:
        """From the regions (I, L, D) of the batch's images."""
        with as_written(captioner):
            samples = self._draw(captioner, regions)
            log_p = log_probability(captioner, regions, samples).view(len(regions), -1)  # (I, N)
            worth = self._judge(samples.captions, batch.positions)
            baseline = self._baseline(captioner, regions, batch.positions, worth.reward)
        advantage = (worth.reward - baseline).to(log_p)
        shares = torch.bincount(batch.owners, minlength=len(regions)) / len(batch.owners)  # (I,)
        loss = -(shares.unsqueeze(1) * advantage * log_p).sum() / self.reward.samples
        figures = {f"sampled_{name}": part for name, part in self._figures(samples, worth, shares).items()}
        return Rewards(loss, figures)

    def _draw(self, captioner: Captioner, regions: Tensor) -> Samples:
        sampling = Sampling(num_captions=self.reward.samples, max_length=self.reward.max_length)
        draws = sampling.draw(Speaker([captioner]), [regions], self._rules)
        ends = draws.tokens == EOS
        behind = ends.cumsum(dim=1) > ends.long()
        return Samples(draws.tokens.masked_fill(behind, PAD), draws.locations)

    def _judge(self, captions: Sequence[Sequence[int]], positions: Tensor) -> Worth:
        """Of as many captions of each image, (I, N) each."""
        images = positions.repeat_interleave(len(captions) // len(positions))
        return Worth(*(part.view(len(positions), -1) for part in self.judge.judge(captions, images.tolist())))

    def _baseline(self, captioner: Captioner, regions: Tensor, positions: Tensor, reward: Tensor) -> Tensor:
        """What each sample's reward is held against, (I, N) or (I, 1)."""
        if self.reward.baseline == "others":
            return (reward.sum(dim=1, keepdim=True) - reward) / (self.reward.samples - 1)
        with torch.no_grad():
            greedy = BeamSearch(max_length=self.reward.max_length).write(
                Speaker([captioner]), [regions], self.vocabulary
            )
        return self._judge([caption.tokens for [caption] in greedy], positions).reward

    def _figures(self, samples: Samples, worth: Worth, shares: Tensor) -> dict[str, Tensor]:
        """The samples' means over the batch: the reward by its parts, and how the captions end."""
        words = [self.vocabulary.decode(tokens) for tokens in samples.captions]
        endings = [judge_endings([said], [EOS in tokens]) for said, tokens in zip(words, samples.captions, strict=True)]
        each = torch.tensor(endings).T.reshape(3, len(shares), -1)
        parts = {**worth._asdict(), **dict(zip(Endings._fields, each, strict=True))}
        return {name: shares.cpu() @ part.mean(dim=1) for name, part in parts.items()}


def log_probability(captioner: Captioner, regions: Tensor, samples: Samples) -> Tensor:
    """log p of the captions (K,), as many of each image one after the other, and of the locations that hard attention
    drew for them."""
    tokens, locations = samples
    owners = torch.arange(len(regions), device=tokens.device).repeat_interleave(len(tokens) // len(regions))
    trace = captioner.unroll(*captioner.begin(regions), owners, tokens, locations)
    never = torch.tensor(NEVER, device=tokens.device)
    bias = trace.answers.bias.index_fill(0, never, -torch.inf)
    log_p = -negative_log_likelihood(trace._replace(answers=trace.answers._replace(bias=bias)), tokens)
    if trace.sample is None:
        return log_p
    return log_p + (trace.sample.log_probability * (tokens != PAD)).sum(dim=1)
