"""What training minimises: of soft attention (Xu et al. 2015, Eq. 14), and of hard attention (Sec. 4.1)."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from showattendtell.arguments import Fraction, NonNegativeFloat, Probability
from showattendtell.cross_entropy import CrossEntropy, cross_entropy
from showattendtell.model.captioner import Captioner
from showattendtell.model.hard import HardAttention
from showattendtell.processes import mean_over_processes
from showattendtell.records import Share, Trace
from showattendtell.scheduled import mix_words
from showattendtell.text.vocabulary import PAD


class Loss(NamedTuple):
    """A training step's loss.

    nll      -log p(y), the mean over captions
    terms    what is minimised is their sum; each is a mean over captions with its weight
    figures  other numbers that tell how training goes
    trace    the pass that it was computed from
    """

    nll: Tensor
    terms: dict[str, Tensor]
    figures: dict[str, Tensor]
    trace: Trace


def total(terms: Mapping[str, Tensor]) -> Tensor:
    """What a training step minimises."""
    return torch.stack(list(terms.values())).sum()


class SoftLoss(nn.Module):
    """-log p(y|a) + lambda * sum_i (1 - sum_t alpha_ti)^2, summed per caption, averaged over captions.

    Args:
        attention_weight: lambda, the weight of the doubly stochastic penalty.
        label_smoothing: the share of a target word's probability that is spread over all words.
        penalty_mean: over captions the penalty's sum over regions; over locations, as in the released code, its sum
            over captions.
        scheduled_sampling: the probability, at the end of training, that a word is learned behind one that the model
            says itself, instead of the caption's (Bengio et al. 2015); it rises evenly from 0 at the beginning.
    """

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
        """The share of training that is over."""

    def forward(
        self, captioner: Captioner, regions: Tensor, owners: Tensor, tokens: Tensor, share: Share | None = None
    ) -> Loss:
        """Of a batch, or of a process's share of one: the mean over processes of each term times its weight is then the
        batch's.

        Args:
            tokens: (B, T) the targets with `<pad>` behind `<eos>`; padded steps count nowhere.
        """
        share = share or Share(1.0, len(tokens))
        trace = captioner(regions, owners, tokens, mix_words(captioner, regions, owners, tokens, self.own_words))
        learned, nll = cost_of_captions(trace, tokens, self.label_smoothing)
        penalties = doubly_stochastic_penalty(trace.weights, tokens != PAD)
        penalty = self.over_batch(penalties, regions.shape[1], share.whole)
        return Loss(
            nll.mean(),
            {"likelihood": learned.mean(), "attention": self.attention_weight * penalty},
            {"attention_penalty": penalty.detach()},
            trace,
        )

    @property
    def own_words(self) -> float:
        """The probability that the captioner reads its own word now."""
        return self.scheduled_sampling * self.progress if self.training else 0.0

    def over_batch(self, penalties: Tensor, num_regions: int, num_captions: int) -> Tensor:
        """The captions' doubly stochastic penalties (B,) as the batch's of `num_captions`, before its weight."""
        return penalties.mean() * (1 if self.penalty_mean == "captions" else num_captions / num_regions)


class HardLoss(SoftLoss):
    """Ascends the bound L_s = sum_s p(s|a) log p(y|s, a) <= log p(y|a) by samples s (Xu et al. 2015, Eq. 10 to 13).

    With the reward r = log p(y|s, a) and the estimator of the attention, a sample adds to the loss

        reinforce         -r - reward_weight * (r - b) * log p(s|a) - entropy_weight * H[s]
        rloo              the same, b the mean of the caption's other rewards
        exact             -r - reward_weight * T sum_i alpha_i r_i for one step's regions i, the other steps drawn
        reinforce_arctic  the first with r / T and its b, (r / T - b) / 10, and the last two terms summed over the batch
        gumbel_st         -r - entropy_weight * H[s], differentiated through a relaxation of the draws

    where r, b and r_i in the second terms are constants. b <- decay * b + (1 - decay) * mean(r) after each mini-batch,
    the mean over all processes.

    Args:
        attention_weight: lambda, the weight of the doubly stochastic penalty.
        label_smoothing: the share of a target word's probability that is spread over all words.
        penalty_mean: over captions the penalty's sum over regions; over locations, as in the released code, its sum
            over captions.
        scheduled_sampling: the probability, at the end of training, that a word is learned behind one that the model
            says itself, instead of the caption's (Bengio et al. 2015); it rises evenly from 0 at the beginning.
        penalty_gradient: whether the penalty moves attention; in the released code it is only reported.
        reward_weight: lambda_r; 1 is the gradient of L_s itself, less tempers its variance.
        entropy_weight: lambda_e.
        decay: how much of the baseline stays at each mini-batch; 1 is no baseline, as it starts at 0.
    """

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
        self, captioner: Captioner, regions: Tensor, owners: Tensor, tokens: Tensor, share: Share | None = None
    ) -> Loss:
        """N samples of every caption of the batch; the gradient's mean is that of -L_s (but for gumbel_st's)."""
        attention = captioner.attention
        if not isinstance(attention, HardAttention):
            raise ValueError(f"the loss of hard attention needs attention=hard, got {type(attention).__name__}")
        share = share or Share(1.0, len(tokens))
        num_samples = attention.samples * share.whole
        owners, tokens = owners.repeat(attention.samples), tokens.repeat(attention.samples, 1)
        if attention.estimator == "exact":
            return self._try_all_regions(captioner, regions, owners, tokens, num_samples)
        trace = captioner(regions, owners, tokens, mix_words(captioner, regions, owners, tokens, self.own_words))
        cost = cost_of_captions(trace, tokens, self.label_smoothing)
        mask = tokens != PAD
        path, entropy = _of_captions(trace, mask)
        penalty = self.over_batch(doubly_stochastic_penalty(trace.weights, mask), regions.shape[1], num_samples)
        if attention.estimator == "gumbel_st":
            return self._loss(trace, cost, penalty, entropy.mean())
        released = attention.estimator == "reinforce_arctic"
        reward = -cost.nll / mask.sum(dim=1) if released else -cost.nll
        advantage = self._advantage(reward, attention)
        figures = {
            "baseline": self.baseline.clone(),
            "advantage": advantage.mean(),
            "advantage_std": advantage.std(correction=0),
        }
        if self.training:
            self.baseline.mul_(self.decay).add_((1 - self.decay) * mean_over_processes(share.weight * reward.mean()))
        of = num_samples if released else 1
        return self._loss(trace, cost, penalty, of * entropy.mean(), -of * (advantage * path).mean(), figures)

    def _advantage(self, reward: Tensor, attention: HardAttention) -> Tensor:
        """How much better than expected each sample did (N * B,)."""
        if attention.estimator == "rloo":
            of_caption = reward.view(attention.samples, -1)
            others = (of_caption.sum(dim=0) - of_caption) / (attention.samples - 1)
            return (of_caption - others).flatten()
        advantage = reward - self.baseline
        return advantage / 10 if attention.estimator == "reinforce_arctic" else advantage

    def _try_all_regions(
        self, captioner: Captioner, regions: Tensor, owners: Tensor, tokens: Tensor, num_captions: int
    ) -> Loss:
        """At one step of each caption, drawn uniformly, every region is tried; the other steps are drawn."""
        memory, state = captioner.begin(regions)
        mask, read = tokens != PAD, mix_words(captioner, regions, owners, tokens, self.own_words)
        with torch.no_grad():
            before = captioner.unroll(memory, state, owners, tokens, read=read).sample
        assert before is not None
        num_regions = regions.shape[1]
        step = (torch.rand(mask.shape, device=mask.device) * mask).argmax(dim=1)  # (B,)
        rows = torch.arange(len(tokens), device=tokens.device).repeat_interleave(num_regions)  # (B * L,)
        tried = torch.arange(num_regions, device=tokens.device).repeat(len(tokens))
        locations = _fork(before.locations[rows], step[rows], tried)
        read = None if read is None else read[rows]
        trace = captioner.unroll(memory, state, owners[rows], tokens[rows], locations, read)

        learned, nll = cost_of_captions(trace, tokens[rows], self.label_smoothing)
        weights = trace.weights[torch.arange(len(rows)), step[rows], tried].view(-1, num_regions)  # alpha_i, (B, L)
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
        trace: Trace,
        cost: CrossEntropy,
        penalty: Tensor,
        entropy: Tensor,
        reinforce: Tensor | None = None,
        figures: dict[str, Tensor] | None = None,
    ) -> Loss:
        terms = {
            "likelihood": cost.learned.mean(),
            "attention": self.attention_weight * (penalty if self.penalty_gradient else penalty.detach()),
            "entropy": -self.entropy_weight * entropy,
        }
        if reinforce is not None:
            terms["reinforce"] = self.reward_weight * reinforce
        return Loss(cost.nll.mean(), terms, {"attention_penalty": penalty.detach(), **(figures or {})}, trace)


def _of_captions(trace: Trace, mask: Tensor) -> tuple[Tensor, Tensor]:
    """log p(s|a) and H[s] of each caption's path, (B,) each."""
    assert trace.sample is not None
    return (trace.sample.log_probability * mask).sum(dim=1), (trace.sample.entropy * mask).sum(dim=1)


def _fork(locations: Tensor, step: Tensor, tried: Tensor) -> Tensor:
    """Paths (B, T, 1) as they were drawn up to `step` (B,), there at `tried` (B,), and free (-1) behind it."""
    number = torch.arange(locations.shape[1], device=locations.device)
    step, tried = step[:, None, None], tried[:, None, None]
    number = number[None, :, None]
    return locations.where(number < step, torch.where(number == step, tried, -1))


def negative_log_likelihood(trace: Trace, tokens: Tensor) -> Tensor:
    """-log p of each caption (B,), summed over its words, the targets `tokens` (B, T)."""
    return cost_of_captions(trace, tokens).learned


def cost_of_captions(trace: Trace, tokens: Tensor, label_smoothing: float = 0.0) -> CrossEntropy:
    """What each caption costs (B,), summed over its words, the targets `tokens` (B, T)."""
    targets = tokens.flatten()[trace.places]
    words = cross_entropy(trace.answers, targets, label_smoothing)
    return CrossEntropy(*(trace.at_steps(part.masked_fill(targets == PAD, 0.0)).sum(dim=1) for part in words))


def doubly_stochastic_penalty(weights: Tensor, mask: Tensor, tau: float = 1.0) -> Tensor:
    """sum_i (tau - sum_t alpha_ti)^2 of each caption: every region is to be looked at about `tau` times in all.

    Args:
        weights: (B, T, L).
        mask: (B, T), true where the caption has a word.
    """
    looked = (weights * mask.unsqueeze(-1)).sum(dim=1)  # (B, L)
    return (tau - looked).square().sum(dim=1)
