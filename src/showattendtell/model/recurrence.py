"""Additive attention and the LSTM over all steps of given captions, with a backward pass of its own.

What autograd would store and repeat at every step is computed once: a product of h with all that reads it, a product
for each weight's gradient behind the last step, and the attention's inner values again instead of keeping them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from showattendtell.model.additive import Keys, Pairs
from showattendtell.model.loops import Groups
from showattendtell.model.packing import Packing
from showattendtell.model.precision import without_autocast
from showattendtell.model.reading import Reading


class Look(NamedTuple):
    """Where captions look at one step: maps (b, L) to read under, and the regions (b, 1) that hard attention drew."""

    maps: Tensor
    drawn: Tensor | None = None


def at_all(alpha: Tensor, rows: slice) -> Look:
    """Soft attention reads the expectation."""
    return Look(alpha)


class Plan(NamedTuple):
    """What the recurrence goes by.

    packing   the words' order
    groups    the images of the captions in this order
    look      from alpha (b, L) and the step's rows among the N words to where is looked
    expected  (B,) whether z is an expectation, through which a gradient reaches alpha; None: for all captions
    """

    packing: Packing
    groups: Groups
    look: Callable[[Tensor, slice], Look] = at_all
    expected: Tensor | None = None


class Weights(NamedTuple):
    """Of the recurrence.

    state    (4n + A + G, n) from h to the gates' sums i, f, o, g, to the query q, and to the G sums of beta
    bias     (4n + A + G,)
    context  (4n, D) from beta z to the gates' sums
    score    u, (A,)
    """

    state: Tensor
    bias: Tensor
    context: Tensor
    score: Tensor


class Passed(NamedTuple):
    """Of N words: h (N, n), beta z (N, D), e (N, L), beta (N, G), and what hard attention drew (N, 1)."""

    hidden: Tensor
    context: Tensor
    scores: Tensor
    gates: Tensor
    drawn: Tensor | None


def recur(
    plan: Plan, keys: Tensor, regions: Tensor, word_gates: Tensor, hidden: Tensor, cell: Tensor, weights: Weights
) -> Passed:
    """All steps of the captions.

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
        return Passed(*_Recurrence.apply(plan, keys, regions, word_gates, hidden, cell, *weights))


class OneStep(NamedTuple):
    """What one step of b captions leaves: h, c, what was read off the h before it (the gates, q and beta, b x (4n + A +
    G)), z before beta, beta z, e, alpha, the maps, and the regions drawn."""

    hidden: Tensor
    cell: Tensor
    read: Tensor
    seen: Tensor
    context: Tensor
    scores: Tensor
    alpha: Tensor
    maps: Tensor
    drawn: Tensor | None


class Stored(NamedTuple):
    """What the backward pass starts from: the inputs, and of all words what their steps left."""

    keys: Keys
    regions: Tensor
    first_hidden: Tensor
    first_cell: Tensor
    weights: Weights
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
        plan: Plan,
        keys: Tensor,
        regions: Tensor,
        word_gates: Tensor,
        first_hidden: Tensor,
        first_cell: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor | None, ...]:
        given = Weights(*weights)
        pairs, reading = Pairs(plan.groups, Keys(keys), given.score), Reading(plan.groups, regions)
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
        stored = Stored._make([Keys(inputs[0], ctx.decayed), *inputs[1:], Weights._make(weights), *left])
        going_back = _GoingBack(ctx.plan, stored, *gradients[:4])
        steps = zip(ctx.plan.packing.steps(), ctx.plan.packing.sizes, strict=True)
        for rows, size in reversed(list(steps)):
            going_back.step(rows, size)
        return None, *going_back.ends(regions=ctx.needs_input_grad[2])


def _advance(
    plan: Plan,
    pairs: Pairs,
    reading: Reading,
    weights: Weights,
    word_gates: Tensor,
    hidden: Tensor,
    cell: Tensor,
    rows: slice,
) -> OneStep:
    """One step of b captions from their h and c (b, n)."""
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
    return OneStep(output * torch.tanh(cell), cell, read, seen, context, scores, alpha, maps, drawn)


class _GoingBack:
    """The gradients, from the last step to the first.

    Args:
        to_hidden, to_context, to_scores, to_beta: of what the recurrence gave of all words.
    """

    def __init__(
        self, plan: Plan, stored: Stored, to_hidden: Tensor, to_context: Tensor, to_scores: Tensor, to_beta: Tensor
    ):
        self.plan, self.stored = plan, stored
        self.to_hidden, self.to_context, self.to_scores, self.to_beta = to_hidden, to_context, to_scores, to_beta
        keys, weights = stored.keys.values, stored.weights
        self.pairs = Pairs(plan.groups, stored.keys, weights.score)
        self.reading = Reading(plan.groups, stored.regions)
        self.to_sums, self.to_score = torch.zeros_like(keys), weights.score.new_zeros(len(keys), len(weights.score))
        self.to_read, self.to_seen = torch.empty_like(stored.read), torch.empty_like(stored.seen)
        self.onward, self.to_cell = torch.zeros_like(stored.first_hidden), torch.zeros_like(stored.first_cell)
        self.hidden_before = _shift(stored.first_hidden, stored.hidden, plan.packing)
        self.cell_before = _shift(stored.first_cell, stored.cell, plan.packing)

    def step(self, rows: slice, size: int) -> None:
        """Back over the step that has these rows of all words."""
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
        """The gradient of the gates' sums (b, 4n), from that of h and c behind them; it leaves that of the c before."""
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
        """The gradient of e (b, L), from that of z."""
        to_maps = self.reading.read_back(to_seen)
        if self.plan.expected is not None:
            to_maps = to_maps * self.plan.expected[:size].unsqueeze(1)
        alpha = self.stored.alpha[rows]
        inner = alpha * to_maps
        return inner - alpha * inner.sum(dim=1, keepdim=True) + self.to_scores[rows]

    def ends(self, regions: bool) -> tuple[Tensor | None, ...]:
        """The gradients of p, a (where it is asked for), x, the first h and c, and the weights."""
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
    """W x + b of every row x, multiplied in the precision of W."""
    return F.linear(rows.to(matrix.dtype), matrix, bias).to(rows.dtype)


def _outer(to_rows: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """The gradient of W from that of all W x and from all x."""
    return (to_rows.T.to(dtype) @ rows.to(dtype)).to(rows.dtype)


def _shift(first: Tensor, values: Tensor, packing: Packing) -> Tensor:
    """What stood before each step: `first` (B, n), then `values` (N, n) of the step before."""
    starts = [rows.start for rows in packing.steps()]
    earlier = [first[: packing.sizes[0]]]
    earlier += [values[start : start + size] for start, size in zip(starts, packing.sizes[1:], strict=False)]
    return torch.cat(earlier)
