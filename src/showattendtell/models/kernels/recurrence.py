"""Fused recurrence: additive attention and the LSTM over all steps of given captions, with a custom backward pass.

Cheaper than autograd: one product of h with all matrices that read it, one product per weight gradient after the last
step, and the attention's inner values are recomputed instead of stored.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from showattendtell.models.kernels.additive import AdditiveKeys, RegionPairs
from showattendtell.models.kernels.packing import Packing
from showattendtell.models.kernels.parallel import CaptionGroups
from showattendtell.models.kernels.precision import without_autocast
from showattendtell.models.kernels.weighted_sum import WeightedSum


class AttentionLookup(NamedTuple):
    """Attention of one step: weights (b, L) of the regions, and the regions (b, 1) that hard attention sampled."""

    maps: Tensor
    drawn: Tensor | None = None


def at_all(alpha: Tensor, rows: slice) -> AttentionLookup:
    """Soft attention: the weights are alpha itself."""
    return AttentionLookup(alpha)


class RecurrenceLayout(NamedTuple):
    """Batch layout and attention look-up of the recurrence.

    packing   the order of the words
    groups    the images of the captions, in this order
    look      maps alpha (b, L) and the step's rows among the N words to the `AttentionLookup`
    use_expectation  (B,) true if z is an expectation, so that its gradient reaches alpha; None: for all captions
    """

    packing: Packing
    groups: CaptionGroups
    look: Callable[[Tensor, slice], AttentionLookup] = at_all
    use_expectation: Tensor | None = None


class RecurrenceWeights(NamedTuple):
    """Weights of the recurrence.

    state    (4n + A + G, n) packed rows: from h to the gates i, f, o, g, to the query q, and to beta (G rows)
    bias     (4n + A + G,)
    context  (4n, D) from beta z to the gates
    score    u, (A,)
    """

    state: Tensor
    bias: Tensor
    context: Tensor
    score: Tensor


class RecurrenceOutput(NamedTuple):
    """Outputs for N words: h (N, n), beta z (N, D), e (N, L), beta (N, G), and hard attention's samples (N, 1)."""

    hidden: Tensor
    context: Tensor
    scores: Tensor
    gates: Tensor
    drawn: Tensor | None


def recur(
    plan: RecurrenceLayout,
    keys: Tensor,
    regions: Tensor,
    word_gates: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weights: RecurrenceWeights,
) -> RecurrenceOutput:
    """Run all steps of the captions. In the equations z includes beta.

        e_i = u . tanh(p_i + W_q h + b_q)     beta = sigmoid(W_b h + b_b)     z = beta sum_i m_i a_i
        i, f, o, g = x + W_h h + W_z z        c' = sig(f) c + sig(i) tanh(g)  h' = sig(o) tanh(c')

    Args:
        keys: p, (I, L, A).
        regions: a, (I, L, D).
        word_gates: x, (N, 4n).
        hidden: h before the first word, (B, n), in the packing's order.
        cell: c before the first word, (B, n).
    """
    with without_autocast(keys.device):
        return RecurrenceOutput(*_Recurrence.apply(plan, keys, regions, word_gates, hidden, cell, *weights))


class RecurrenceStep(NamedTuple):
    """Results of one step of b captions: h, c, `read` (b, 4n + A + G) = [i, f, o, g, q, beta], activated in place,
    z without beta, beta z, e, alpha, the weights used, and the sampled regions."""

    hidden: Tensor
    cell: Tensor
    read: Tensor
    seen: Tensor
    context: Tensor
    scores: Tensor
    alpha: Tensor
    maps: Tensor
    drawn: Tensor | None


class SavedTensors(NamedTuple):
    """Tensors saved for the backward pass: the inputs, and the step results of all words."""

    keys: AdditiveKeys
    regions: Tensor
    first_hidden: Tensor
    first_cell: Tensor
    weights: RecurrenceWeights
    hidden: Tensor
    cell: Tensor
    read: Tensor
    seen: Tensor
    context: Tensor
    alpha: Tensor
    maps: Tensor


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        plan: RecurrenceLayout,
        keys: Tensor,
        regions: Tensor,
        word_gates: Tensor,
        first_hidden: Tensor,
        first_cell: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor | None, ...]:
        given = RecurrenceWeights(*weights)
        pairs, reading = RegionPairs(plan.groups, AdditiveKeys(keys), given.score), WeightedSum(plan.groups, regions)
        hidden, cell, steps = first_hidden, first_cell, []
        for rows, size in zip(plan.packing.steps(), plan.packing.sizes, strict=True):
            step = _advance(plan, pairs, reading, given, word_gates[rows], hidden[:size], cell[:size], rows)
            hidden, cell = step.hidden, step.cell
            steps.append(step)
        *parts, draws = zip(*steps, strict=True)
        hidden, cell, read, seen, context, scores, alpha, maps = (torch.cat(part) for part in parts)
        kept = pairs.kept()
        ctx.plan, ctx.decayed = plan, kept.decayed
        before = (kept.values, regions, first_hidden, first_cell, *weights)
        ctx.save_for_backward(*before, hidden, cell, read, seen, context, alpha, maps)
        drawn = None if draws[0] is None else torch.cat(draws)
        if drawn is not None:
            ctx.mark_non_differentiable(drawn)
        return hidden, context, scores, read[:, 4 * hidden.shape[1] + keys.shape[2] :].clone(), drawn

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weights, left = ctx.saved_tensors[:4], ctx.saved_tensors[4:8], ctx.saved_tensors[8:]
        stored = SavedTensors._make(
            [AdditiveKeys(inputs[0], ctx.decayed), *inputs[1:], RecurrenceWeights._make(weights), *left]
        )
        going_back = _BackwardPass(ctx.plan, stored, *gradients[:4])
        steps = zip(ctx.plan.packing.steps(), ctx.plan.packing.sizes, strict=True)
        for rows, size in reversed(list(steps)):
            going_back.step(rows, size)
        return None, *going_back.ends(regions=ctx.needs_input_grad[2])


def _advance(
    plan: RecurrenceLayout,
    pairs: RegionPairs,
    reading: WeightedSum,
    weights: RecurrenceWeights,
    word_gates: Tensor,
    hidden: Tensor,
    cell: Tensor,
    rows: slice,
) -> RecurrenceStep:
    """Compute one step of b captions from their h and c (b, n)."""
    units, width = hidden.shape[1], weights.score.shape[0]
    read = _product(hidden, weights.state, weights.bias)
    gates, query, beta = read.split([4 * units, width, read.shape[1] - 4 * units - width], dim=1)
    scores = pairs.scores(query)
    alpha = scores.softmax(dim=1)
    maps, drawn = plan.look(alpha, rows)
    seen = reading.read(maps)
    beta.sigmoid_()
    context = beta * seen if beta.shape[1] else seen
    gates.add_(word_gates).add_(_product(context, weights.context))
    gates[:, : 3 * units].sigmoid_()
    gates[:, 3 * units :].tanh_()
    admit, forget, output, candidate = gates.chunk(4, dim=1)
    cell = forget * cell + admit * candidate
    return RecurrenceStep(output * torch.tanh(cell), cell, read, seen, context, scores, alpha, maps, drawn)


class _BackwardPass:
    """Backpropagation through time, from the last step to the first.

    Args:
        to_hidden, to_context, to_scores, to_beta: gradients of the outputs for all N words.
    """

    def __init__(
        self,
        plan: RecurrenceLayout,
        stored: SavedTensors,
        to_hidden: Tensor,
        to_context: Tensor,
        to_scores: Tensor,
        to_beta: Tensor,
    ):
        self.plan, self.stored = plan, stored
        self.to_hidden, self.to_context, self.to_scores, self.to_beta = to_hidden, to_context, to_scores, to_beta
        keys, weights = stored.keys.values, stored.weights
        self.pairs = RegionPairs(plan.groups, stored.keys, weights.score)
        self.reading = WeightedSum(plan.groups, stored.regions)
        self.to_sums, self.to_score = torch.zeros_like(keys), weights.score.new_zeros(len(keys), len(weights.score))
        self.to_read, self.to_seen = torch.empty_like(stored.read), torch.empty_like(stored.seen)
        self.onward, self.to_cell = torch.zeros_like(stored.first_hidden), torch.zeros_like(stored.first_cell)
        self.hidden_before = _shift(stored.first_hidden, stored.hidden, plan.packing)
        self.cell_before = _shift(stored.first_cell, stored.cell, plan.packing)

    def step(self, rows: slice, size: int) -> None:
        """Backpropagate through the step with these rows. For z = beta r: dbeta = r . dz, dr = beta dz."""
        stored, units, width = self.stored, self.stored.hidden.shape[1], len(self.stored.weights.score)
        to_gates = self._through_gates(rows, size, self.to_read[rows, : 4 * units])
        to_context = _product(to_gates, stored.weights.context.T) + self.to_context[rows]
        beta = stored.read[rows, 4 * units + width :]
        if beta.shape[1]:
            to_beta = to_context * stored.seen[rows]
            to_beta = to_beta if beta.shape[1] > 1 else to_beta.sum(dim=1, keepdim=True)
            self.to_read[rows, 4 * units + width :] = (to_beta + self.to_beta[rows]) * beta * (1 - beta)
            to_context = to_context * beta
        self.to_seen[rows] = to_context
        query = stored.read[rows, 4 * units : 4 * units + width]
        to_scores = self._through_maps(rows, size, to_context)
        to_query = self.pairs.scores_back(query, to_scores, self.to_sums, self.to_score)
        self.to_read[rows, 4 * units : 4 * units + width] = to_query
        self.onward[:size] = _product(self.to_read[rows], stored.weights.state.T)

    def _through_gates(self, rows: slice, size: int, into: Tensor) -> Tensor:
        """Return the pre-activations' gradient (b, 4n) from dh', dc'; store dc = (dc' + dh' o (1 - tanh^2 c')) f."""
        admit, forget, output, candidate = self.stored.read[rows, : into.shape[1]].chunk(4, dim=1)
        to_admit, to_forget, to_output, to_candidate = into.chunk(4, dim=1)
        saturated = torch.tanh(self.stored.cell[rows])
        out = self.onward[:size] + self.to_hidden[rows]
        kept = self.to_cell[:size] + out * output * (1 - saturated**2)
        to_admit[:] = kept * candidate * admit * (1 - admit)
        to_forget[:] = kept * self.cell_before[rows] * forget * (1 - forget)
        to_output[:] = out * saturated * output * (1 - output)
        to_candidate[:] = kept * admit * (1 - candidate**2)
        self.to_cell[:size] = kept * forget
        return into

    def _through_maps(self, rows: slice, size: int, to_seen: Tensor) -> Tensor:
        """Return the gradient of e (b, L) from dz: the softmax gradient de = alpha (dm - sum_j alpha_j dm_j)."""
        to_maps = self.reading.read_back(to_seen)
        if self.plan.use_expectation is not None:
            to_maps = to_maps * self.plan.use_expectation[:size].unsqueeze(1)
        alpha = self.stored.alpha[rows]
        inner = alpha * to_maps
        return inner - alpha * inner.sum(dim=1, keepdim=True) + self.to_scores[rows]

    def ends(self, regions: bool) -> tuple[Tensor | None, ...]:
        """Return the gradients of p, a (None unless `regions`), x, the first h and c, and the weights."""
        stored, weights, packing = self.stored, self.stored.weights, self.plan.packing
        to_gates = self.to_read[:, : len(weights.context)]
        to_regions = None
        if regions:
            maps, to_seen = (packing.pad(values)[packing.order] for values in (stored.maps, self.to_seen))
            to_regions = self.reading.regions_back(maps, to_seen)
        to_state = _outer(self.to_read, self.hidden_before, weights.state.dtype)
        to_context = _outer(to_gates, stored.context, weights.context.dtype)
        to_weights = (to_state, self.to_read.sum(dim=0), to_context, self.to_score.sum(dim=0))
        return self.to_sums, to_regions, to_gates, self.onward, self.to_cell, *to_weights


def _product(rows: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return W x + b of every row x, multiplied in the precision of W."""
    return F.linear(rows.to(matrix.dtype), matrix, bias).to(rows.dtype)


def _outer(to_rows: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gradient of W, sum_k dy_k x_k^T of all rows y = W x."""
    return (to_rows.T.to(dtype) @ rows.to(dtype)).to(rows.dtype)


def _shift(first: Tensor, values: Tensor, packing: Packing) -> Tensor:
    """Return the values before each step (N, n): `first` (B, n), then `values` (N, n) of the previous step."""
    starts = [rows.start for rows in packing.steps()]
    earlier = [first[: packing.sizes[0]]]
    earlier += [values[start : start + size] for start, size in zip(starts, packing.sizes[1:], strict=False)]
    return torch.cat(earlier)
