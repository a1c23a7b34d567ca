"""Training loss of soft attention (Xu et al. 2015, Eq. 14), and the cross-entropy of captions.

Sizes are those of `showattendtell.types`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from showattendtell.errors import UserError
from showattendtell.models.captioner import Captioner
from showattendtell.models.kernels.cross_entropy import CrossEntropy
from showattendtell.settings import Fraction, NonNegativeFloat
from showattendtell.text.vocabulary import PAD
from showattendtell.types import AttentionTargets, BatchShard, CaptionerOutput, scatter_words


class LossOutput(NamedTuple):
    """Loss of a training step.

    nll      -log p(y) of the reference captions, the mean over captions; None if it was not computed
    terms    weighted loss terms by name, each a mean over captions; their sum is minimized
    metrics  other values for logging, by name
    outputs  the captioner's output from which the loss was computed
    """

    nll: Tensor | None
    terms: dict[str, Tensor]
    metrics: dict[str, Tensor]
    outputs: CaptionerOutput | None = None


def total(terms: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of the loss terms, which is minimized."""
    return torch.stack(list(terms.values())).sum()


@dataclass(eq=False, repr=False)
class SoftLoss(nn.Module):
    """-log p(y|a) + lambda * sum_i (1 - sum_t alpha_ti)^2, summed per caption, averaged over captions.

    With `supervision_weight` mu, words that have ground-truth boxes add mu times the loss of their attention. It is by
    default -sum_t sum_i m_ti log alpha_ti, in which m_ti is the fraction of the boxes' area that lies in region i (Liu
    et al. 2017, "Attention correctness in neural image captioning").

    Args:
        doubly_stochastic_weight: lambda, the weight of the doubly stochastic penalty.
        label_smoothing: the share of a target word's probability that is spread over all words.
        penalty_reduction: captions: sum over regions, mean over captions; locations: mean over regions, sum over
            captions, as in the released code.
        supervision_weight: mu, the weight of the supervision of attention by ground-truth boxes.
        supervision_loss: cross_entropy compares alpha with the boxes' area, correctness is -log of the attention that
            lies inside of the boxes.
    """

    doubly_stochastic_weight: NonNegativeFloat = 1.0
    label_smoothing: Fraction = 0.0
    penalty_reduction: Literal["captions", "locations"] = "captions"
    supervision_weight: NonNegativeFloat = 0.0
    supervision_loss: Literal["cross_entropy", "correctness"] = "cross_entropy"

    kind = "showattendtell.losses.caption.SoftLoss"
    """Import path of the first loss of its kind, which attention names as its `loss`."""

    penalty_gradient = True
    """Whether the doubly stochastic penalty has a gradient; false: it is only logged."""

    def __post_init__(self) -> None:
        super().__init__()  # of torch's module

    def check(self, captioner: Captioner) -> None:
        """Raise `UserError` if the captioner's attention needs another kind of loss."""
        attention = captioner.attention
        if attention.loss != self.kind:
            raise UserError(
                f"{type(attention).__name__} cannot be trained with {type(self).__name__}; leave loss._target_ out, or "
                f"give {attention.loss.rpartition('.')[2]} or a subclass of it"
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
        """Compute the loss of a batch, or of one process's shard of it. A subclass changes it, or adds terms to the
        result; `outputs` of the result has the logits and the attention maps.

        The term of the whole batch is the mean over processes of the shard's term times its weight.

        Args:
            regions: (I, L, D), each image once.
            image_index: (B,) the image of each caption.
            tokens: (B, T) the target words, with `<pad>` after `<eos>`, which is ignored.
            shard: the shard; by default the whole batch.
            targets: attention maps of the words that have boxes, which `supervision_weight` needs, or the result of
                `target_maps`.

        Raises:
            UserError: `supervision_weight` without targets.
        """
        maps, num_captions = self.target_maps(targets, tokens), shard.num_captions if shard else len(tokens)
        output, _ = self.likelihood(captioner, regions, image_index, tokens, num_captions)
        return self.supervised(output, maps)

    def likelihood(
        self, captioner: Captioner, regions: Tensor, image_index: Tensor, tokens: Tensor, num_captions: int
    ) -> tuple[LossOutput, Tensor]:
        """Return the loss with the terms of likelihood and penalty, and -log p of each caption (B,) without a gradient.

        Args:
            num_captions: number of captions in the whole batch.
        """
        outputs = captioner(regions, image_index, tokens)
        loss, nll = caption_cross_entropy(outputs, tokens, self.label_smoothing)
        penalty = doubly_stochastic_penalty(outputs.weights, tokens != PAD).mean()
        if self.penalty_reduction == "locations":
            penalty = penalty * (num_captions / outputs.weights.shape[2])
        learned = penalty if self.penalty_gradient else penalty.detach()
        terms = {"likelihood": loss.mean(), "doubly_stochastic": self.doubly_stochastic_weight * learned}
        return LossOutput(nll.mean(), terms, {"doubly_stochastic": penalty.detach()}, outputs), nll

    @property
    def is_capturable(self) -> bool:
        """Whether a CUDA graph can compute the loss: nothing but its arguments changes from step to step."""
        return True

    def target_maps(self, targets: AttentionTargets | Tensor | None, tokens: Tensor) -> Tensor | None:
        """Return the attention maps (B, T, L) that the boxes ask for, 0 at words without boxes; None if
        `supervision_weight` is 0. `targets` may be these maps.

        Raises:
            UserError: there are no targets.
        """
        if not self.supervision_weight:
            return None
        if targets is None:
            raise UserError(
                "loss.supervision_weight needs batches with attention targets; train with one of this package's data "
                "modules, and with a data set that has boxes"
            )
        if isinstance(targets, Tensor):
            return targets
        return scatter_words(targets.masses, targets.indices, (tokens.shape[0], tokens.shape[1]))

    def supervised(self, output: LossOutput, maps: Tensor | None) -> LossOutput:
        """Return the loss with the term of supervision by the maps (B, T, L), if any."""
        if maps is None or output.outputs is None:
            return output
        compare = attention_cross_entropy if self.supervision_loss == "cross_entropy" else negative_log_correctness
        mean = compare(output.outputs.weights, maps).mean()
        terms = {**output.terms, "supervision": self.supervision_weight * mean}
        return output._replace(terms=terms, metrics={**output.metrics, "attention_supervision": mean.detach()})


def negative_log_likelihood(outputs: CaptionerOutput, tokens: Tensor) -> Tensor:
    """Return -log p(y) of each caption (B,), summed over its words; `tokens` (B, T) are the targets."""
    return caption_cross_entropy(outputs, tokens).loss


def caption_cross_entropy(outputs: CaptionerOutput, tokens: Tensor, label_smoothing: float = 0.0) -> CrossEntropy:
    """Return the cross-entropy of each caption (B,), summed over its words; `tokens` (B, T) are the targets."""
    targets = tokens.flatten()[outputs.indices]
    is_padding = targets == PAD
    loss, nll = outputs.output_features.cross_entropy(targets, label_smoothing)  # (N,) each

    def sum_words(values: Tensor) -> Tensor:
        return outputs.at_steps(values.masked_fill(is_padding, 0.0)).sum(dim=1)

    return CrossEntropy(sum_words(loss), sum_words(nll))


def doubly_stochastic_penalty(weights: Tensor, mask: Tensor) -> Tensor:
    """Return sum_i (1 - sum_t alpha_ti)^2 of each caption (B,), which is small if the weights of each region
    sum to about 1 over the caption (Xu et al. 2015, Sec. 4.2.1).

    Args:
        weights: alpha, (B, T, L).
        mask: (B, T) true where a step counts.
    """
    totals = (weights * mask.unsqueeze(-1)).sum(dim=1)  # (B, L)
    return (1 - totals).square().sum(dim=1)


def attention_cross_entropy(weights: Tensor, maps: Tensor) -> Tensor:
    """Return -sum_t sum_i m_ti log alpha_ti of each caption (B,).

    Args:
        weights: alpha, (B, T, L).
        maps: m, (B, T, L), with sum 1 or 0 at every step.
    """
    # a weight that softmax has rounded to 0 has no gradient; the smallest number instead keeps its logarithm finite
    smallest = torch.finfo(weights.dtype).tiny
    return -torch.xlogy(maps.to(weights.dtype), weights.clamp(min=smallest)).sum(dim=(1, 2))


def negative_log_correctness(weights: Tensor, maps: Tensor) -> Tensor:
    """Return -sum_t log(sum_i alpha_ti m_ti / max_j m_tj) of each caption (B,), over the words with boxes.

    The sum over i is the attention correctness: the attention inside of the boxes. Regions that lie in them completely
    count as 1, so that attention may concentrate on some of them.

    Args:
        weights: alpha, (B, T, L).
        maps: m, (B, T, L), all 0 at words without boxes.
    """
    smallest = torch.finfo(weights.dtype).tiny
    largest = maps.to(weights.dtype).amax(dim=2, keepdim=True)
    correctness = (weights * maps / largest.clamp(min=smallest)).sum(dim=2)
    return -(correctness.clamp(min=smallest).log() * (largest.squeeze(2) > 0)).sum(dim=1)
