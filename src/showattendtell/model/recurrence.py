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
    decays    e^-2p of the images' regions, (I, L, A)
    look      from alpha (b, L) and the step's rows among the N words to where is looked
    expected  (B,) whether z is an expectation, through which a gradient reaches alpha; None: for all captions
    """

    packing: Packing
    groups: Groups
    decays: Tensor | None
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
    plan: Plan, sums: Tensor, regions: Tensor, word_gates: Tensor, hidden: Tensor, cell: Tensor, weights: Weights
) -> Passed:
    """All steps of the captions.

        e_i = u . tanh(p_i + W_q h + b_q)     beta = sigmoid(W_b h + b_b)     z = beta sum_i m_i a_i
        i, f, o, g = x + W_h h + W_z z        c' = sig(f) c + sig(i) tanh(g)  h' = sig(o) tanh(c')

    Args:
        sums: p, (I, L, A).
        regions: a, (I, L, D).
        word_gates: x, (N, 4n).
        hidden: h before the first word, (B, n), in the packing's order.
        cell: c before the first word, (B, n).
    """
    with without_autocast(sums.device):
        return Passed(*_Recurrence.apply(plan, sums, regions, word_gates, hidden, cell, *weights))


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        plan: Plan,
        sums: Tensor,
        regions: Tensor,
        word_gates: Tensor,
        first_hidden: Tensor,
        first_cell: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor | None, ...]:
        given = Weights(*weights)
        pairs, reading = Pairs(plan.groups, Keys(sums, plan.decays), given.score), Reading(plan.groups, regions)
        width, end = 4 * first_hidden.shape[1], 4 * first_hidden.shape[1] + sums.shape[2]
        hidden, cell, steps = first_hidden, first_cell, []
        for rows, size in zip(plan.packing.steps(), plan.packing.sizes, strict=True):
            read = _product(hidden[:size], given.state, given.bias)
            scores = pairs.scores(read[:, width:end])
            alpha = scores.softmax(dim=1)
            maps, drawn = plan.look(alpha, rows)
            seen = reading.read(maps)
            beta = read[:, end:].sigmoid_()
            context = beta * seen if beta.shape[1] else seen
            gates = read[:, :width].add_(word_gates[rows]).add_(_product(context, given.context))
            admit, forget, output, candidate = gates.chunk(4, dim=1)
            gates[:, : 3 * len(hidden[0])].sigmoid_()
            candidate.tanh_()
            cell = forget * cell[:size] + admit * candidate
            hidden = output * torch.tanh(cell)
            steps.append((hidden, cell, read, seen, context, scores, alpha, maps, drawn))
        *parts, draws = zip(*steps, strict=True)
        hidden, cell, read, seen, context, scores, alpha, maps = (torch.cat(part) for part in parts)
        ctx.plan, ctx.bounds = plan, (width, end)
        ctx.save_for_backward(
            sums, regions, first_hidden, first_cell, *weights, hidden, cell, read, seen, context, alpha, maps
        )
        if draws[0] is None:
            return hidden, context, scores, read[:, end:].clone(), None
        drawn = torch.cat(draws)
        ctx.mark_non_differentiable(drawn)
        return hidden, context, scores, read[:, end:].clone(), drawn

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        to_hidden, to_context, to_scores, to_beta, _ = gradients
        sums, regions, first_hidden, first_cell, *rest = ctx.saved_tensors
        weights, (hidden, cell, read, seen, context, alpha, maps) = Weights(*rest[:4]), rest[4:]
        plan, (width, end) = ctx.plan, ctx.bounds
        packing, units = plan.packing, first_hidden.shape[1]
        pairs, reading = Pairs(plan.groups, Keys(sums, plan.decays), weights.score), Reading(plan.groups, regions)
        to_sums, to_score = torch.zeros_like(sums), weights.score.new_zeros(len(sums), len(weights.score))
        to_read, to_seen = torch.empty_like(read), torch.empty_like(seen)
        onward, to_cell = torch.zeros_like(first_hidden), torch.zeros_like(first_cell)
        before = _shift(first_hidden, hidden, packing), _shift(first_cell, cell, packing)
        for rows, size in reversed(list(zip(packing.steps(), packing.sizes, strict=True))):
            admit, forget, output, candidate = read[rows, :width].chunk(4, dim=1)
            saturated = torch.tanh(cell[rows])
            out = onward[:size] + to_hidden[rows]
            kept = to_cell[:size] + out * output * (1 - saturated**2)
            to_gates = to_read[rows, :width]
            to_gates[:, :units] = kept * candidate * admit * (1 - admit)
            to_gates[:, units : 2 * units] = kept * before[1][rows] * forget * (1 - forget)
            to_gates[:, 2 * units : 3 * units] = out * saturated * output * (1 - output)
            to_gates[:, 3 * units :] = kept * admit * (1 - candidate**2)
            to_cell[:size] = kept * forget
            pulled = _product(to_gates, weights.context.T) + to_context[rows]
            beta = read[rows, end:]
            if beta.shape[1]:
                by_beta = pulled * seen[rows]
                by_beta = by_beta if beta.shape[1] > 1 else by_beta.sum(dim=1, keepdim=True)
                to_read[rows, end:] = (by_beta + to_beta[rows]) * beta * (1 - beta)
                pulled = pulled * beta
            to_seen[rows] = pulled
            to_maps = reading.read_back(pulled)
            if plan.expected is not None:
                to_maps = to_maps * plan.expected[:size].unsqueeze(1)
            inner = alpha[rows] * to_maps
            given = inner - alpha[rows] * inner.sum(dim=1, keepdim=True) + to_scores[rows]
            to_read[rows, width:end] = pairs.scores_back(read[rows, width:end], given, to_sums, to_score)
            onward[:size] = _product(to_read[rows], weights.state.T)

        def in_order(values: Tensor) -> Tensor:
            return packing.pad(values)[packing.order]

        return (
            None,
            to_sums,
            reading.regions_back(*map(in_order, (maps, to_seen))) if ctx.needs_input_grad[2] else None,
            to_read[:, :width],
            onward,
            to_cell,
            _outer(to_read, before[0], weights.state.dtype),
            to_read.sum(dim=0),
            _outer(to_read[:, :width], context, weights.context.dtype),
            to_score.sum(dim=0),
        )


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
