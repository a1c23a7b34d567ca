"""Training losses of soft attention (Xu et al. 2015, Eq. 14) and hard attention (Eq. 10 to 12).

Sizes are those of `showattendtell.types`; N is the number of paths of locations that hard attention samples per
caption.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from showattendtell.data.vocabulary import PAD, START
from showattendtell.decoding.decoding import Ensemble
from showattendtell.decoding.sampling import draw
from showattendtell.models.captioner import Captioner, eval_mode
from showattendtell.models.kernels.cross_entropy import CrossEntropy, cross_entropy
from showattendtell.runtime.distributed import mean_over_processes
from showattendtell.settings import Fraction, NonNegativeFloat, Probability
from showattendtell.types import BatchShard, CaptionerOutput


class LossOutput(NamedTuple):
    """Loss of a training step.

    nll      -log p(y) of the reference captions, the mean over captions; None if it was not computed
    terms    weighted loss terms by name, each a mean over captions; their sum is minimised
    figures  other values for logging, by name
    trace    the captioner's output from which the loss was computed
    """

    nll: Tensor | None
    terms: dict[str, Tensor]
    figures: dict[str, Tensor]
    trace: CaptionerOutput | None = None


def total(terms: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of the loss terms, which is minimised."""
    return torch.stack(list(terms.values())).sum()


class SoftLoss(nn.Module):
    """-log p(y|a) + lambda * sum_i (1 - sum_t alpha_ti)^2, summed per caption, averaged over captions.

    Args:
        attention_weight: lambda, the weight of the doubly stochastic penalty.
        label_smoothing: the share of a target word's probability that is spread over all words.
        penalty_mean: captions: sum over regions, mean over captions; locations: mean over regions, sum over captions,
            as in the released code.
        scheduled_sampling: the final probability that an input word is sampled from the model instead of taken from
            the caption (Bengio et al. 2015); it increases linearly from 0 during training.
    """

    stochastic = False
    """Whether the loss is for attention that samples locations."""

    def __init__(
        self,
        attention_weight: NonNegativeFloat = 1.0,
        label_smoothing: Fraction = 0.0,
        penalty_mean: Literal["captions", "locations"] = "captions",
        scheduled_sampling: Probability = 0.0,
    ):
        super().__init__()
        self.attention_weight, self.label_smoothing, self.penalty_mean = attention_weight, label_smoothing, penalty_mean
        self.scheduled_sampling = scheduled_sampling
        self.progress = 0.0
        """The fraction of training that is completed."""

    def forward(
        self,
        captioner: Captioner,
        regions: Tensor,
        image_index: Tensor,
        tokens: Tensor,
        share: BatchShard | None = None,
    ) -> LossOutput:
        """Compute the loss of a batch, or of one process's shard of it.

        The term of the whole batch is the mean over processes of the shard's term times its weight.

        Args:
            regions: (I, L, D), each image once.
            image_index: (B,) the image of each caption.
            tokens: (B, T) the target words, with `<pad>` after `<eos>`, which is ignored.
            share: the shard; by default the whole batch.
        """
        share = share or BatchShard(1.0, len(tokens))
        read = mix_words(captioner, regions, image_index, tokens, self.sampling_prob)
        trace = captioner(regions, image_index, tokens, read)
        learned, nll = cost_of_captions(trace, tokens, self.label_smoothing)
        penalties = doubly_stochastic_penalty(trace.weights, tokens != PAD)
        penalty = self.over_batch(penalties, regions.shape[1], share.whole)
        terms = {"likelihood": learned.mean(), "attention": self.attention_weight * penalty}
        return LossOutput(nll.mean(), terms, {"attention_penalty": penalty.detach()}, trace)

    @property
    def sampling_prob(self) -> float:
        """The current probability that an input word is sampled from the model; 0 outside training."""
        return self.scheduled_sampling * self.progress if self.training else 0.0

    def over_batch(self, penalties: Tensor, num_regions: int, num_captions: int) -> Tensor:
        """Reduce the doubly stochastic penalties (B,) to that of a batch of `num_captions`, before its weight."""
        return penalties.mean() * (1 if self.penalty_mean == "captions" else num_captions / num_regions)


class HardLoss(SoftLoss):
    """Maximise the bound L_s = sum_s p(s|a) log p(y|s, a) <= log p(y|a) by sampled paths s (Xu et al. 2015, Eq. 10-12).

    The gradient of L_s is an expectation over p(s|a) and is estimated from samples, with the reward r = log p(y|s, a):

        grad L_s = E[grad r + (r - b) grad log p(s|a)]     for any b that does not depend on s

    The loss of a sample depends on the estimator, an option of the attention:

        reinforce         -r - reward_weight (r - b) log p(s|a) - entropy_weight H[s], b a moving average of r
        rloo              as reinforce, with b the mean reward of the caption's other samples (Kool et al. 2019)
        exact             -r - reward_weight T sum_i alpha_i r_i - entropy_weight H[s], i the regions at one step
        reinforce_arctic  as reinforce, with (r / T - b) / 10, b of r / T, and the last two terms summed over the batch
        gumbel_st         -r - entropy_weight H[s], differentiated through a relaxation of the samples

    In the second terms r, b and r_i are constants: only log p(s|a) and alpha_i are differentiated there. After each
    batch b <- decay * b + (1 - decay) * mean(r), the mean over all processes.

    Args:
        attention_weight: lambda, the weight of the doubly stochastic penalty.
        label_smoothing: the share of a target word's probability that is spread over all words.
        penalty_mean: captions: sum over regions, mean over captions; locations: mean over regions, sum over captions,
            as in the released code.
        scheduled_sampling: the final probability that an input word is sampled from the model instead of taken from
            the caption (Bengio et al. 2015); it increases linearly from 0 during training.
        penalty_gradient: whether the penalty has a gradient; false: it is only logged, as in the released code.
        reward_weight: lambda_r; 1 is the gradient of L_s itself, smaller values reduce its variance.
        entropy_weight: lambda_e, the weight of the entropy bonus.
        decay: decay of the baseline's moving average per batch; 1 means no baseline, because b starts at 0.

    Raises:
        ValueError: from `forward`, if the attention does not sample.
    """

    stochastic = True
    baseline: Tensor

    def __init__(
        self,
        attention_weight: NonNegativeFloat = 0.0,
        label_smoothing: Fraction = 0.0,
        penalty_mean: Literal["captions", "locations"] = "captions",
        penalty_gradient: bool = True,
        reward_weight: NonNegativeFloat = 0.03,
        entropy_weight: NonNegativeFloat = 0.002,
        decay: Probability = 0.9,
        scheduled_sampling: Probability = 0.0,
    ):
        super().__init__(attention_weight, label_smoothing, penalty_mean, scheduled_sampling)
        self.penalty_gradient = penalty_gradient
        self.reward_weight, self.entropy_weight, self.decay = reward_weight, entropy_weight, decay
        self.register_buffer("baseline", torch.tensor(0.0))

    def forward(
        self,
        captioner: Captioner,
        regions: Tensor,
        image_index: Tensor,
        tokens: Tensor,
        share: BatchShard | None = None,
    ) -> LossOutput:
        """Compute the loss from N samples per caption; the arguments are those of `SoftLoss.forward`.

        With reward_weight=1, and without entropy bonus, penalty, label smoothing and expectations in place of samples,
        the expected gradient is that of -L_s, except with reinforce_arctic and gumbel_st.
        """
        attention: Any = captioner.attention
        if not attention.stochastic:
            raise ValueError(f"the loss of hard attention needs attention=hard, got {type(attention).__name__}")
        share = share or BatchShard(1.0, len(tokens))
        num_samples = attention.samples * share.whole
        # N * B captions: the whole batch once per sample
        image_index, tokens = image_index.repeat(attention.samples), tokens.repeat(attention.samples, 1)
        if attention.estimator == "exact":
            return self._try_all_regions(captioner, regions, image_index, tokens, num_samples)
        read = mix_words(captioner, regions, image_index, tokens, self.sampling_prob)
        trace = captioner(regions, image_index, tokens, read)
        cost = cost_of_captions(trace, tokens, self.label_smoothing)
        mask = tokens != PAD
        path, entropy = _of_captions(trace, mask)
        penalty = self.over_batch(doubly_stochastic_penalty(trace.weights, mask), regions.shape[1], num_samples)
        if attention.estimator == "gumbel_st":
            return self._loss(trace, cost, penalty, entropy.mean())
        released = attention.estimator == "reinforce_arctic"
        reward = -cost.nll / mask.sum(dim=1) if released else -cost.nll  # without a gradient
        if attention.estimator == "rloo":
            by_sample = reward.view(attention.samples, -1)  # (N, B)
            others = (by_sample.sum(dim=0) - by_sample) / (attention.samples - 1)
            advantage = (by_sample - others).flatten()  # (N * B,)
        else:
            advantage = (reward - self.baseline) / (10 if released else 1)
        figures = {"baseline": self.baseline.clone(), "advantage": advantage.mean()}
        figures["advantage_std"] = advantage.std(correction=0)
        if self.training:
            self.baseline.mul_(self.decay).add_((1 - self.decay) * mean_over_processes(share.weight * reward.mean()))
        of = num_samples if released else 1  # turns means over samples into sums over the batch
        return self._loss(trace, cost, penalty, of * entropy.mean(), -of * (advantage * path).mean(), figures)

    def _try_all_regions(
        self, captioner: Captioner, regions: Tensor, image_index: Tensor, tokens: Tensor, num_captions: int
    ) -> LossOutput:
        """Evaluate every region at one uniformly sampled step t of each caption; the other steps are sampled.

        The REINFORCE term is a sum over steps, which T times the term of a random step estimates without bias. The term
        of that step is no longer sampled, but an exact sum over its L locations:

            E[r grad log alpha_t(s_t)] = sum_i alpha_ti r_i grad log alpha_ti = sum_i r_i grad alpha_ti

        with r_i the reward of the path with location i at step t. The first term of the loss and the penalty become
        expectations under the same alpha_t.
        """
        initial = captioner.init_state(regions)
        mask, read = tokens != PAD, mix_words(captioner, regions, image_index, tokens, self.sampling_prob)
        with torch.no_grad():
            before = captioner(regions, image_index, tokens, read, initial=initial).sample
        assert before is not None
        num_regions = regions.shape[1]
        step = (torch.rand(mask.shape, device=mask.device) * mask).argmax(dim=1)  # (B,), never padding
        # B * L paths: path b * L + i tries region i for caption b
        rows = torch.arange(len(tokens), device=tokens.device).repeat_interleave(num_regions)  # (B * L,)
        tried = torch.arange(num_regions, device=tokens.device).repeat(len(tokens))
        # locations (B * L, T, 1): unchanged before the step, the tried region at it, and -1 (to be sampled) after it
        number, at = torch.arange(mask.shape[1], device=mask.device)[None, :, None], step[rows][:, None, None]
        locations = torch.where(number == at, tried[:, None, None], -1)
        locations = before.locations[rows].where(number < at, locations)
        read = None if read is None else read[rows]
        trace = captioner(regions, image_index[rows], tokens[rows], read, locations, initial)

        learned, nll = cost_of_captions(trace, tokens[rows], self.label_smoothing)
        weights = trace.weights[torch.arange(len(rows)), step[rows], tried].view(-1, num_regions)  # alpha_ti, (B, L)
        _, entropy = _of_captions(trace, mask[rows])
        penalties = doubly_stochastic_penalty(trace.weights, mask[rows])

        def expected(values: Tensor) -> Tensor:
            return (weights.detach() * values.view_as(weights)).sum(dim=1)

        reinforce = mask.sum(dim=1) * (weights * nll.view_as(weights)).sum(dim=1)
        penalty = self.over_batch(expected(penalties), num_regions, num_captions)
        cost = CrossEntropy(expected(learned), expected(nll))
        return self._loss(trace, cost, penalty, expected(entropy).mean(), reinforce.mean())

    def _loss(
        self,
        trace: CaptionerOutput,
        cost: CrossEntropy,
        penalty: Tensor,
        entropy: Tensor,
        reinforce: Tensor | None = None,
        figures: dict[str, Tensor] | None = None,
    ) -> LossOutput:
        """Weight the terms of the loss, each a mean over captions."""
        terms = {
            "likelihood": cost.learned.mean(),
            "attention": self.attention_weight * (penalty if self.penalty_gradient else penalty.detach()),
            "entropy": -self.entropy_weight * entropy,
        }
        if reinforce is not None:
            terms["reinforce"] = self.reward_weight * reinforce
        return LossOutput(cost.nll.mean(), terms, {"attention_penalty": penalty.detach(), **(figures or {})}, trace)


def _of_captions(trace: CaptionerOutput, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p(s|a) and H[s] of each caption's path, (B,) each, summed over its words."""
    assert trace.sample is not None
    return (trace.sample.log_prob * mask).sum(dim=1), (trace.sample.entropy * mask).sum(dim=1)


def negative_log_likelihood(trace: CaptionerOutput, tokens: Tensor) -> Tensor:
    """Return -log p(y) of each caption (B,), summed over its words; `tokens` (B, T) are the targets."""
    return cost_of_captions(trace, tokens).learned


def cost_of_captions(trace: CaptionerOutput, tokens: Tensor, label_smoothing: float = 0.0) -> CrossEntropy:
    """Return the cross-entropy of each caption (B,), summed over its words; `tokens` (B, T) are the targets."""
    targets = tokens.flatten()[trace.places]
    words = cross_entropy(trace.output_features, targets, label_smoothing)
    return CrossEntropy(*(trace.at_steps(part.masked_fill(targets == PAD, 0.0)).sum(dim=1) for part in words))


def doubly_stochastic_penalty(weights: Tensor, mask: Tensor) -> Tensor:
    """Return sum_i (1 - sum_t alpha_ti)^2 of each caption (B,), which is small if the weights of each region
    sum to about 1 over the caption (Xu et al. 2015, Sec. 4.2.1).

    Args:
        weights: alpha, (B, T, L).
        mask: (B, T) true where a step counts.
    """
    totals = (weights * mask.unsqueeze(-1)).sum(dim=1)  # (B, L)
    return (1 - totals).square().sum(dim=1)


@torch.no_grad()
def mix_words(
    captioner: Captioner, regions: Tensor, image_index: Tensor, tokens: Tensor, probability: float
) -> Tensor | None:
    """Return the input tokens (B, T) of scheduled sampling (Bengio et al. 2015); None if the probability is 0.

    They are `<start>`, then the caption's words, each replaced with `probability` by a word that is sampled from the
    model given the inputs so far. The model is in evaluation mode.
    """
    if not probability:
        return None
    order = image_index.argsort(stable=True)  # the decoder takes captions in the order of their images
    with eval_mode(captioner):
        decoder = Ensemble([captioner]).start([regions])
        states = decoder.init_state().index_select(image_index[order])
        rows = torch.arange(len(image_index), device=image_index.device)
        read, never = [torch.full_like(image_index, START)], torch.tensor([PAD, START], device=image_index.device)
        for words in tokens[order].T[:-1]:
            output, states = decoder.step(states, rows, read[-1])
            scores = output.scores.index_fill(1, never, -torch.inf)
            sampled = draw(scores.softmax(dim=1)).squeeze(1)
            read.append(sampled.where(torch.rand_like(scores[:, 0]) < probability, words))
    mixed = torch.stack(read, dim=1)[order.argsort()]  # back in the order of the captions
    return mixed.masked_fill(tokens == PAD, PAD)
