"""Training loss of hard attention by sampled locations (Xu et al. 2015, Eq. 10 to 12).

Sizes are those of `showattendtell.types`; N is the number of paths of locations that are sampled per caption.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from showattendtell.data.vocabulary import PAD
from showattendtell.errors import UserError
from showattendtell.losses.caption import LossOutput, SoftLoss, caption_cross_entropy, doubly_stochastic_penalty
from showattendtell.models.captioner import Captioner
from showattendtell.models.kernels.cross_entropy import CrossEntropy
from showattendtell.runtime.distributed import mean_over_processes, world_size
from showattendtell.settings import Fraction, NonNegativeFloat, Probability
from showattendtell.types import AttentionTargets, BatchShard, CaptionerOutput


class BaselineLoss(SoftLoss):
    """Base class of losses with a moving average of rewards as the baseline of REINFORCE.

    After each batch b <- d b + (1 - d) mean(r), with d = `baseline_decay` and the mean over all processes; at first
    b = 0.
    """

    baseline: Tensor

    def __init__(self, baseline_decay: float, **settings: Any):
        super().__init__(**settings)
        self.baseline_decay = baseline_decay
        self.register_buffer("baseline", torch.tensor(0.0))

    @property
    def is_capturable(self) -> bool:
        return super().is_capturable and world_size() == 1  # processes capture at different steps, and would wait

    def update_baseline(self, mean_reward: Tensor, shard: BatchShard) -> None:
        """Update the baseline in training with the mean reward of a shard of the batch."""
        if self.training:
            mean_reward = mean_over_processes(shard.weight * mean_reward)
            self.baseline.mul_(self.baseline_decay).add_((1 - self.baseline_decay) * mean_reward)


class HardLoss(BaselineLoss):
    """Maximize the bound L_s = sum_s p(s|a) log p(y|s, a) <= log p(y|a) by sampled paths s (Xu et al. 2015, Eq. 10-12).

    The gradient of L_s is an expectation over p(s|a) and is estimated from samples, with the reward r = log p(y|s, a):

        grad L_s = E[grad r + (r - b) grad log p(s|a)]     for any b that does not depend on s

    The loss of a sample depends on the estimator, an option of the attention:

        reinforce         -r - reward_weight (r - b) log p(s|a) - entropy_weight H[s], b a moving average of r
        rloo              as reinforce, with b the mean reward of the caption's other samples (Kool et al. 2019)
        exact             -r - reward_weight T sum_i alpha_i r_i - entropy_weight H[s], i the regions at one step
        reinforce_arctic  as reinforce, with (r / T - b) / 10, b of r / T, and the last two terms summed over the batch
        gumbel_st         -r - entropy_weight H[s], differentiated through a relaxation of the samples

    In the second terms r, b and r_i are constants: only log p(s|a) and alpha_i are differentiated there. After each
    batch b <- baseline_decay * b + (1 - baseline_decay) * mean(r), the mean over all processes.

    Args:
        doubly_stochastic_weight: lambda, the weight of the doubly stochastic penalty.
        label_smoothing: the share of a target word's probability that is spread over all words.
        penalty_reduction: captions: sum over regions, mean over captions; locations: mean over regions, sum over
            captions, as in the released code.
        scheduled_sampling: the final probability that an input word is sampled from the model instead of taken from
            the caption (Bengio et al. 2015); it increases linearly from 0 during training.
        penalty_gradient: whether the penalty has a gradient; false: it is only logged, as in the released code.
        reward_weight: lambda_r; 1 is the gradient of L_s itself, smaller values reduce its variance.
        entropy_weight: lambda_e, the weight of the entropy bonus.
        baseline_decay: decay of the baseline's moving average per batch; 1 means no baseline, because b starts at 0.
        supervision_weight: mu, the weight of the supervision of attention by ground-truth boxes.
        supervision_schedule: keep mu constant, or decrease it linearly to 0 during training.
        supervision_loss: cross_entropy compares alpha with the boxes' area, correctness is -log of the attention that
            lies inside of the boxes.

    Raises:
        UserError: from `forward`, if the attention does not sample.
    """

    kind = "showattendtell.losses.reinforce.HardLoss"

    def __init__(
        self,
        doubly_stochastic_weight: NonNegativeFloat = 0.0,
        label_smoothing: Fraction = 0.0,
        penalty_reduction: Literal["captions", "locations"] = "captions",
        penalty_gradient: bool = True,
        reward_weight: NonNegativeFloat = 0.03,
        entropy_weight: NonNegativeFloat = 0.002,
        baseline_decay: Probability = 0.9,
        scheduled_sampling: Probability = 0.0,
        supervision_weight: NonNegativeFloat = 0.0,
        supervision_schedule: Literal["constant", "linear"] = "constant",
        supervision_loss: Literal["cross_entropy", "correctness"] = "cross_entropy",
    ):
        super().__init__(
            baseline_decay,
            doubly_stochastic_weight=doubly_stochastic_weight,
            label_smoothing=label_smoothing,
            penalty_reduction=penalty_reduction,
            scheduled_sampling=scheduled_sampling,
            supervision_weight=supervision_weight,
            supervision_schedule=supervision_schedule,
            supervision_loss=supervision_loss,
        )
        self.penalty_gradient = penalty_gradient
        self.reward_weight, self.entropy_weight = reward_weight, entropy_weight

    def check(self, captioner: Captioner) -> None:
        super().check(captioner)
        word_dropout = getattr(captioner.decoder, "word_dropout", None)
        if captioner.attention.by_region and word_dropout and word_dropout.p:
            raise UserError(
                "attention.estimator=exact evaluates every region with the same words; leave words out of "
                "decoder.dropout_places"
            )

    def forward(
        self,
        captioner: Captioner,
        regions: Tensor,
        image_index: Tensor,
        tokens: Tensor,
        shard: BatchShard | None = None,
        targets: AttentionTargets | Tensor | None = None,
    ) -> LossOutput:
        """Compute the loss from N samples per caption; the arguments are those of `SoftLoss.forward`.

        With reward_weight=1, and without entropy bonus, penalty, label smoothing and expectations in place of samples,
        the expected gradient is that of -L_s, except with reinforce_arctic and gumbel_st.
        """
        self.check(captioner)
        attention: Any = captioner.attention
        shard = shard or BatchShard(1.0, len(tokens))
        num_rows = attention.num_samples * shard.num_captions
        maps = self.target_maps(targets, tokens)
        maps = None if maps is None else maps.repeat(attention.num_samples, 1, 1)
        # N * B captions: the whole batch once per sample
        image_index, tokens = image_index.repeat(attention.num_samples), tokens.repeat(attention.num_samples, 1)
        if attention.estimator == "exact":
            return self._evaluate_all_regions(captioner, regions, image_index, tokens, num_rows, maps)
        input_tokens = self.mix_words(captioner, regions, image_index, tokens)
        outputs = captioner(regions, image_index, tokens, input_tokens)
        cross_entropy = caption_cross_entropy(outputs, tokens, self.label_smoothing)
        mask = tokens != PAD
        path, entropy = _path_terms(outputs, mask)
        penalties = doubly_stochastic_penalty(outputs.weights, mask, outputs.present)
        penalty = self.over_batch(penalties, outputs.num_regions, num_rows)
        released = attention.estimator == "reinforce_arctic"
        scale = num_rows if released else 1  # turns means over samples into sums over the batch
        output = self._loss(outputs, cross_entropy, penalty, scale * entropy.mean())
        if attention.estimator != "gumbel_st":
            reward = -cross_entropy.nll / mask.sum(dim=1) if released else -cross_entropy.nll  # without a gradient
            if attention.estimator == "rloo":
                by_sample = reward.view(attention.num_samples, -1)  # (N, B)
                baselines = (by_sample.sum(dim=0) - by_sample) / (attention.num_samples - 1)
                advantage = (by_sample - baselines).flatten()  # (N * B,)
            else:
                advantage = (reward - self.baseline) / (10 if released else 1)
            output.terms["reinforce"] = self.reward_weight * (-scale * (advantage * path).mean())
            output.metrics["baseline"] = self.baseline.clone()
            output.metrics["advantage"] = advantage.mean()
            output.metrics["advantage_std"] = advantage.std(correction=0)
            self.update_baseline(reward.mean(), shard)
        return output if maps is None else self.supervised(output, self.supervision_loss(outputs.weights, maps))

    def _evaluate_all_regions(
        self,
        captioner: Captioner,
        regions: Tensor,
        image_index: Tensor,
        tokens: Tensor,
        num_captions: int,
        maps: Tensor | None,
    ) -> LossOutput:
        """Evaluate every region at one uniformly sampled step t of each caption; the other steps are sampled.

        The REINFORCE term is a sum over steps, which T times the term of a random step estimates without bias. The term
        of that step is no longer sampled, but an exact sum over its L locations:

            E[r grad log alpha_t(s_t)] = sum_i alpha_ti r_i grad log alpha_ti = sum_i r_i grad alpha_ti

        with r_i the reward of the path with location i at step t. The first term of the loss, the penalty and the
        supervision by target `maps` (B, T, L) become expectations under the same alpha_t.
        """
        initial = captioner.init_state(regions)
        mask, input_tokens = tokens != PAD, self.mix_words(captioner, regions, image_index, tokens)
        with torch.no_grad():
            sampled = captioner(regions, image_index, tokens, input_tokens, initial=initial)
        sample = sampled.sample
        assert sample is not None
        num_regions = regions.shape[1]
        step = (torch.rand(mask.shape, device=mask.device) * mask).argmax(dim=1)  # (B,), never padding
        # B * L paths: path b * L + i tries region i for caption b
        rows = torch.arange(len(tokens), device=tokens.device).repeat_interleave(num_regions)  # (B * L,)
        region = torch.arange(num_regions, device=tokens.device).repeat(len(tokens))
        # locations (B * L, T, 1): unchanged before the step, the tried region at it, and -1 (to be sampled) after it
        steps, current = torch.arange(mask.shape[1], device=mask.device)[None, :, None], step[rows][:, None, None]
        locations = torch.where(steps == current, region[:, None, None], -1)
        locations = sample.locations[rows].where(steps < current, locations)
        input_tokens = None if input_tokens is None else input_tokens[rows]
        outputs = captioner(regions, image_index[rows], tokens[rows], input_tokens, locations, initial)

        loss, nll = caption_cross_entropy(outputs, tokens[rows], self.label_smoothing)
        weights = outputs.weights[torch.arange(len(rows)), step[rows], region].view(-1, num_regions)  # alpha_ti, (B, L)
        _, entropy = _path_terms(outputs, mask[rows])
        penalties = doubly_stochastic_penalty(outputs.weights, mask[rows], outputs.present)

        def expected(values: Tensor) -> Tensor:
            return (weights.detach() * values.view_as(weights)).sum(dim=1)

        reinforce = mask.sum(dim=1) * (weights * nll.view_as(weights)).sum(dim=1)
        penalty = self.over_batch(expected(penalties), sampled.num_regions, num_captions)
        cross_entropy = CrossEntropy(expected(loss), expected(nll))
        output = self._loss(outputs, cross_entropy, penalty, expected(entropy).mean())
        output.terms["reinforce"] = self.reward_weight * reinforce.mean()
        if maps is None:
            return output
        return self.supervised(output, expected(self.supervision_loss(outputs.weights, maps[rows])))

    def _loss(
        self, outputs: CaptionerOutput, cross_entropy: CrossEntropy, penalty: Tensor, entropy: Tensor
    ) -> LossOutput:
        """Weight the terms of the loss, each a mean over captions."""
        learned = penalty if self.penalty_gradient else penalty.detach()
        terms = {
            "likelihood": cross_entropy.loss.mean(),
            "doubly_stochastic": self.doubly_stochastic_weight * learned,
            "entropy": -self.entropy_weight * entropy,
        }
        return LossOutput(cross_entropy.nll.mean(), terms, {"doubly_stochastic": penalty.detach()}, outputs)


def _path_terms(outputs: CaptionerOutput, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p(s|a) and H[s] of each caption's path, (B,) each, summed over its words."""
    assert outputs.sample is not None
    return (outputs.sample.log_prob * mask).sum(dim=1), (outputs.sample.entropy * mask).sum(dim=1)
