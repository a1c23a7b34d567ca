"""Self-critical sequence training: reward sampled captions instead of fitting the reference captions (Rennie et al.
2017, "Self-critical Sequence Training for Image Captioning")."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Constraints, Ensemble
from showattendtell.decoding.sampling import Sampling
from showattendtell.errors import UserError
from showattendtell.losses.caption import LossOutput, negative_log_likelihood
from showattendtell.metrics.diversity import ending_rates
from showattendtell.metrics.ngrams import SentenceCIDErD, bleu4, count_ngrams
from showattendtell.metrics.tokenizers import Words
from showattendtell.models.captioner import Captioner, eval_mode
from showattendtell.settings import NonNegativeFloat, PositiveInt
from showattendtell.text.vocabulary import EOS, PAD, START, Vocabulary
from showattendtell.types import Batch

SUPPRESSED = (PAD, START)
"""Tokens that no caption contains."""


class Reward(NamedTuple):
    """Reward of captions that are sampled from the model for the training images. Without a weight on any reward
    nothing is sampled.

    Args:
        cider: the weight of CIDEr-D (0 to 10); document frequencies are those of the training captions.
        bleu4: the weight of BLEU-4 (0 to 1).
        likelihood: the weight of the usual loss on the reference captions, with all its terms; 0 leaves it out.
        num_samples: N, the number of captions sampled per image of a batch.
        baseline: subtracted from a caption's reward: the mean reward of the image's other samples (others), or the
            reward of the greedy caption (greedy).
        max_length: the maximum sample length in words, <eos> included; a cut caption has no <eos>, which lowers its
            reward.
    """

    cider: NonNegativeFloat = 0.0
    bleu4: NonNegativeFloat = 0.0
    likelihood: NonNegativeFloat = 0.0
    num_samples: PositiveInt = 5
    baseline: Literal["others", "greedy"] = "others"
    max_length: PositiveInt = 30


class SelfCriticalLoss(nn.Module):
    """Maximize the expected reward of the model's captions, sum_y p(y|a) r(y), with N samples y_k per image.

        loss = -1/N sum_k (r(y_k) - b_k) log p(y_k|a)     E[grad loss] = -grad sum_y p(y|a) r(y)

    The loss is averaged over images, weighted by their number of captions in the batch. b_k is the mean reward of the
    image's other samples, or the reward of its greedy caption; r and b are constants. With hard attention p(y_k) is
    that of words and sampled locations together, and the gradient is computed at these locations. Captions and their p
    are computed in evaluation mode, without dropout and with hard attention's `inference_mode`, so that p is the
    distribution from which they are sampled.

    `<eos>` counts as a word of captions and of references in rewards.

    Args:
        references: the reference captions of each training image.

    Raises:
        UserError: reward.baseline=others with fewer than two samples per image.
    """

    def __init__(self, reward: Reward, vocabulary: Vocabulary, references: Sequence[Sequence[Words]]):
        super().__init__()
        if reward.baseline == "others" and reward.num_samples < 2:
            raise UserError(
                f"reward.baseline=others compares an image's captions; reward.num_samples must be 2 or more, got "
                f"{reward.num_samples}"
            )
        self.reward, self.vocabulary = reward, vocabulary
        self._references, self._end = references, (vocabulary.words[EOS],)
        ended = ([(*words, *self._end) for words in captions] for captions in references)
        self._cider = SentenceCIDErD(ended)
        self._constraints = Constraints(suppressed=SUPPRESSED)

    def forward(self, captioner: Captioner, regions: Tensor, batch: Batch) -> LossOutput:
        """Compute the loss from the regions (I, L, D) of the batch's images."""
        with eval_mode(captioner):
            sampling = Sampling(num_captions=self.reward.num_samples, max_length=self.reward.max_length)
            tokens, _, _, _, *locations = sampling.sample(Ensemble([captioner]), [regions], self._constraints)
            ends = tokens == EOS
            tokens = tokens.masked_fill(ends.cumsum(dim=1) > ends.long(), PAD)  # all tokens after the first `<eos>`
            log_p = log_prob(captioner, regions, tokens, *locations).view(len(regions), -1)  # (I, N)
            captions = [[token for token in caption if token != PAD] for caption in tokens.tolist()]
            values = self.score_captions(captions, batch.positions)
            baseline = self._baseline(captioner, regions, batch.positions, values["reward"])
        advantage = (values["reward"] - baseline).to(log_p)  # (I, N)
        image_weights = torch.bincount(batch.image_index, minlength=len(regions)) / len(batch.image_index)  # (I,)
        loss = -(image_weights.unsqueeze(1) * advantage * log_p).sum() / self.reward.num_samples
        metrics = {f"sampled_{name}": value for name, value in self._metrics(captions, values, image_weights).items()}
        return LossOutput(None, {"reward": loss}, metrics)

    def score_captions(self, captions: Sequence[Sequence[int]], positions: Tensor) -> dict[str, Tensor]:
        """Return the `reward` of captions and its unweighted terms `cider` and `bleu4`, (I, N) each.

        Args:
            captions: the tokens of I * N captions, N consecutive ones per image.
            positions: (I,) the images' positions among the training images.
        """
        images = positions.repeat_interleave(len(captions) // len(positions)).tolist()
        references = {}
        for image in set(images):
            counts = [count_ngrams((*words, *self._end)) for words in self._references[image]]
            references[image] = counts, [self._cider.weigh(ngrams) for ngrams in counts]
        scores = []
        for tokens, image in zip(captions, images, strict=True):
            counts, weighted = references[image]
            ngrams = count_ngrams([self.vocabulary.words[token] for token in tokens])
            scores.append((self._cider.score(self._cider.weigh(ngrams), weighted), bleu4(ngrams, counts)))
        cider, bleu = torch.tensor(scores).view(len(positions), -1, 2).unbind(dim=2)
        return {"reward": self.reward.cider * cider + self.reward.bleu4 * bleu, "cider": cider, "bleu4": bleu}

    def _baseline(self, captioner: Captioner, regions: Tensor, positions: Tensor, reward: Tensor) -> Tensor:
        """Return the baseline of each sample's reward, (I, N) or (I, 1)."""
        if self.reward.baseline == "others":
            return (reward.sum(dim=1, keepdim=True) - reward) / (self.reward.num_samples - 1)
        search = BeamSearch(max_length=self.reward.max_length)
        with torch.no_grad():
            greedy = search.generate(Ensemble([captioner]), [regions], self.vocabulary)
        return self.score_captions([caption.tokens for [caption] in greedy], positions)["reward"]

    def _metrics(
        self, captions: Sequence[Sequence[int]], values: dict[str, Tensor], image_weights: Tensor
    ) -> dict[str, Tensor]:
        """Return weighted means of the reward and its terms, and statistics of how captions end."""
        means = {name: image_weights.cpu() @ value.mean(dim=1) for name, value in values.items()}
        rates = ending_rates([*map(self.vocabulary.decode, captions)], [EOS in tokens for tokens in captions])
        return {**means, **{name: torch.tensor(rate) for name, rate in rates.items()}}


def log_prob(captioner: Captioner, regions: Tensor, tokens: Tensor, locations: Tensor | None = None) -> Tensor:
    """Return log p of the captions `tokens` (K, T), N consecutive ones per image with `<pad>` after `<eos>`, including
    the log p of the locations (K, T, H) that hard attention sampled for them."""
    image_index = torch.arange(len(regions), device=tokens.device).repeat_interleave(len(tokens) // len(regions))
    outputs = captioner(regions, image_index, tokens, locations=locations)
    # words that are never sampled get p = 0, so that p is normalized over those that are
    outputs = outputs._replace(output_features=outputs.output_features.without(SUPPRESSED))
    log_p = -negative_log_likelihood(outputs, tokens)
    if outputs.sample is None:
        return log_p
    return log_p + (outputs.sample.log_prob * (tokens != PAD)).sum(dim=1)
