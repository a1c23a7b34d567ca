"""The fused recurrence over all steps of given captions (teacher forcing).

`unroll_fused` returns what `RecurrentDecoder.unroll` does, the plain loop, for attention with the additive score and
the LSTM. It is faster because its backward pass is derived by hand: one product of h with all matrices that read it,
one product per weight gradient after the last step, and the scores' inner values recomputed instead of stored. Both
compute at each step (Xu et al. 2015, Eq. 1 to 5, 9 and 13; beta: Sec. 4.2.1)

    e_i = u . tanh(p_i + q)      p_i = W_a a_i      q = W_q h + b_q              attention scores
    alpha = softmax(e)
    r = sum_i m_i a_i            m = alpha (soft), one-hot of a sample s (hard)  weighted sum of the regions
    z = beta r                   beta = sigmoid(W_b h + b_b)                     gated context
    i, f, o, g = x + W_h h + W_z z                                               LSTM gates, x from the word
    c' = sigmoid(f) c + sigmoid(i) tanh(g)
    h' = sigmoid(o) tanh(c')

Sizes are those of `showattendtell.types`; N is the number of words of all captions, in the order of `Packing`. `grad_x`
or dx is the gradient of x.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from showattendtell.models.interfaces import GivenCaptions, Packing, Steps
from showattendtell.models.kernels import accelerator, without_autocast
from showattendtell.models.kernels.attention import (
    MAX_QUERY,
    RegionPairs,
    decay,
    weighted_sum,
    weighted_sum_backward,
)
from showattendtell.models.kernels.parallel import CaptionGroups
from showattendtell.models.kernels.products import linear, matmul
from showattendtell.types import SampledLocations


class RecurrenceWeights(NamedTuple):
    """Weights of the recurrence.

    state    (4n + A + G, n) stacked rows: from h to the gates i, f, o, g (4n), to the query q (A), and to beta (G);
             G is 0 without a gate on the context, 1, or D
    bias     (4n + A + G,)
    context  (4n, D) from z to the gates
    score    u, (A,)
    """

    state: Tensor
    bias: Tensor
    context: Tensor
    score: Tensor

    def split(self, stacked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return views of a product of h (b, 4n + A + G): the gates, the query, and beta."""
        gates, query, beta = stacked.tensor_split([len(self.context), len(self.context) + len(self.score)], dim=1)
        return gates, query, beta


def unroll_fused(
    weights: RecurrenceWeights,
    captions: GivenCaptions,
    word_gates: Tensor,
    sampler: Any = None,
) -> Steps:
    """Compute all steps of given captions.

    Args:
        word_gates: x, (N, 4n).
        sampler: hard attention, whose `sample` or `noise` chooses the locations; None for the expectation.
    """
    cache, packing = captions.cache, captions.packing
    image_index = captions.image_index[packing.order]
    keys, regions, state = cache.keys.values, cache.regions.contiguous(), captions.state.select(image_index)
    given = use_expectation = sample = None
    if sampler is not None:
        given = None if captions.locations is None else packing.pack(captions.locations)
        use_expectation = torch.zeros_like(image_index, dtype=torch.bool)
        if cache.use_expectation is not None:
            use_expectation = cache.use_expectation[image_index]
    single = torch.promote_types(keys.dtype, torch.float32)  # float64 in tests
    initial = (state.hidden.to(single), state.cell.to(single))
    inputs = (word_gates, *initial, *weights)
    with without_autocast(keys.device):
        if (kernels := accelerator(keys)) is not None:
            noise = None if sampler is None else sampler.noise(len(word_gates), keys)
            steps = len(packing.sizes)
            results = kernels.unroll(steps, image_index, noise, given, use_expectation, keys, regions, *inputs)
        else:
            keys, regions = keys.to(single), regions.to(single)
            groups = CaptionGroups(image_index, len(keys))
            sample_locations = None if sampler is None else sampler.sample
            sampling = (sample_locations, given, use_expectation)
            results = _Recurrence.apply(packing, groups, *sampling, keys, regions, *inputs)
    hidden, context, scores, beta, sampled = results
    # The recurrence returns scores: alpha and log p(s) of the losses are differentiated by torch from here.
    log_weights = scores.log_softmax(dim=1)
    gates = beta.mean(dim=1) if beta.shape[1] else log_weights.new_ones(len(log_weights))
    if use_expectation is not None:
        word_expectation = torch.cat([use_expectation[:size] for size in packing.sizes])
        sample = SampledLocations.of(log_weights.unsqueeze(1), sampled, word_expectation)
    return Steps(hidden, log_weights.exp(), gates, context, sample)


class _Recurrence(torch.autograd.Function):
    """The equations of the module, forward and backward, for packed captions.

    At every step the first `size` rows of h and c, longest captions first, belong to the captions that have not ended.
    """

    @staticmethod
    def forward(
        ctx: Any,
        packing: Packing,
        groups: CaptionGroups,
        sample_locations: Callable[[Tensor, Tensor | None], Tensor] | None,
        given: Tensor | None,
        use_expectation: Tensor | None,
        keys: Tensor,
        regions: Tensor,
        word_gates: Tensor,
        first_hidden: Tensor,
        first_cell: Tensor,
        *weight_tensors: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Return h (N, n), z (N, D), e (N, L), beta (N, G), and hard attention's locations (N, 1).

        Args:
            groups: the images of the captions, in the packing's order.
            sample_locations: hard attention: from alpha (b, 1, L) and `given` (b, 1) to sampled locations (b, 1).
            given: (N, 1) locations; negative entries are sampled.
            use_expectation: (B,) true if r is an expectation and its gradient reaches alpha; None: for all captions.
            keys: p, (I, L, A); the regions a are (I, L, D).
            word_gates: x, (N, 4n).
            first_hidden: h before the first word, (B, n), in the packing's order; `first_cell` likewise.
            weight_tensors: the fields of `RecurrenceWeights`, one by one because autograd needs tensors.
        """
        weights, decays = RecurrenceWeights(*weight_tensors), decay(keys)
        pairs = RegionPairs(groups, keys, decays, weights.score)
        hidden, cell, sigmoids = first_hidden, first_cell, 3 * first_hidden.shape[1]
        steps, samples = [], []
        for rows, size in packing.steps():
            # W_h h, q and the argument of beta by one product; the three are views of it
            from_hidden = _product(hidden[:size], weights.state, weights.bias)  # (b, 4n + A + G)
            gates, query, beta = weights.split(from_hidden)
            scores = pairs.scores(query)  # (b, L)
            maps = alpha = scores.softmax(dim=1)
            if sample_locations is not None and use_expectation is not None:
                samples.append(sample_locations(alpha.unsqueeze(1), None if given is None else given[rows]))
                one_hot = F.one_hot(samples[-1].squeeze(1), alpha.shape[1]).to(alpha.dtype)
                maps = torch.where(use_expectation[:size].unsqueeze(1), alpha, one_hot)
            region_sum = weighted_sum(groups, regions, maps)  # (b, D)
            # The activations are computed in place: `from_hidden` then holds sigmoid(i, f, o), tanh(g), q and beta,
            # from which the backward pass computes their derivatives.
            beta.sigmoid_()
            context = beta * region_sum if beta.shape[1] else region_sum
            gates.add_(word_gates[rows]).add_(_product(context, weights.context))
            gates[:, :sigmoids].sigmoid_()  # i, f and o are adjacent
            gates[:, sigmoids:].tanh_()
            i, f, o, g = gates.chunk(4, dim=1)
            cell = f * cell[:size] + i * g
            hidden = o * torch.tanh(cell)
            steps.append((hidden, cell, from_hidden, region_sum, context, alpha, maps, scores))
        *words, scores = (torch.cat(part) for part in zip(*steps, strict=True))
        ctx.packing, ctx.groups, ctx.use_expectation = packing, groups, use_expectation
        # where e^-2p is enough for all words, saving it without p takes a quarter less memory
        ctx.saves_decays = decays is not None and bool(weights.split(words[2])[1].abs().amax() <= MAX_QUERY)
        saved_keys = decays if ctx.saves_decays else keys
        ctx.save_for_backward(saved_keys, regions, first_hidden, first_cell, *weights, *words)
        sampled = torch.cat(samples) if samples else None
        if sampled is not None:
            ctx.mark_non_differentiable(sampled)
        hidden, _, from_hidden, _, context, *_ = words
        return hidden, context, scores, weights.split(from_hidden)[2].clone(), sampled

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Backpropagate through time, from the last step to the first.

        The loss reads h, z, e and beta of every word (`gradients`). h and c of a step are also read by the next step:
        `grad_hidden` and `grad_cell` carry these parts back. A caption that has ended has zeros there.
        """
        keys, regions, first_hidden, first_cell = ctx.saved_tensors[:4]
        weights, packing = RecurrenceWeights(*ctx.saved_tensors[4:8]), ctx.packing
        hidden, cell, from_hidden, region_sum, context, alpha, maps = ctx.saved_tensors[8:]  # (N, ...), of all words
        loss_grad_hidden, loss_grad_context, loss_grad_scores, loss_grad_beta = gradients[:4]
        pairs = RegionPairs(ctx.groups, keys, keys if ctx.saves_decays else decay(keys), weights.score)
        hidden_before, cell_before = _shift(first_hidden, hidden, packing), _shift(first_cell, cell, packing)
        gates, query, betas = weights.split(from_hidden)
        grad_from_hidden, grad_region_sum = torch.empty_like(from_hidden), torch.empty_like(region_sum)
        grad_gates, grad_query, grad_betas = weights.split(grad_from_hidden)  # views: each step writes its rows
        grad_keys, grad_score = torch.zeros_like(keys), weights.score.new_zeros(len(keys), len(weights.score))
        grad_hidden, grad_cell = torch.zeros_like(first_hidden), torch.zeros_like(first_cell)
        for rows, size in reversed([*packing.steps()]):
            # h' = o tanh(c'):  dc' += dh' o (1 - tanh^2 c')
            i, f, o, g = gates[rows].chunk(4, dim=1)  # after their activations
            tanh_cell, grad_out = torch.tanh(cell[rows]), grad_hidden[:size] + loss_grad_hidden[rows]
            grad_next = grad_cell[:size] + grad_out * o * (1 - tanh_cell**2)  # dc'
            # c' = f c + i g:  di = dc' g,  df = dc' c,  dg = dc' i;  do = dh' tanh c'.  Then through the activations:
            # s' = s (1 - s) of a sigmoid s,  t' = 1 - t^2 of a tanh t.
            grad_i, grad_f, grad_o, grad_g = grad_gates[rows].chunk(4, dim=1)
            grad_i[:] = grad_next * g * i * (1 - i)
            grad_f[:] = grad_next * cell_before[rows] * f * (1 - f)
            grad_o[:] = grad_out * tanh_cell * o * (1 - o)
            grad_g[:] = grad_next * i * (1 - g**2)
            grad_cell[:size] = grad_next * f  # dc = dc' f
            # gates = x + W_h h + W_z z:  dz = W_z^T dgates; the deep output reads z too
            grad_context = _product(grad_gates[rows], weights.context.T) + loss_grad_context[rows]
            if (beta := betas[rows]).shape[1]:
                # z = beta r:  dbeta = r . dz,  dr = beta dz;  the sigmoid's argument gets dbeta beta (1 - beta)
                grad_beta = grad_context * region_sum[rows]
                grad_beta = grad_beta if beta.shape[1] > 1 else grad_beta.sum(dim=1, keepdim=True)
                grad_betas[rows] = (grad_beta + loss_grad_beta[rows]) * beta * (1 - beta)
                grad_context = grad_context * beta
            grad_region_sum[rows] = grad_context
            # r = sum_i m_i a_i:  dm_i = a_i . dr.  m = alpha, or a sample, which passes no gradient on.
            grad_alpha = weighted_sum_backward(ctx.groups, regions, grad_context)
            if ctx.use_expectation is not None:
                grad_alpha = grad_alpha * ctx.use_expectation[:size].unsqueeze(1)
            # alpha = softmax(e):  de = alpha (dalpha - sum_j alpha_j dalpha_j); the loss reads e too
            weighted = alpha[rows] * grad_alpha
            grad_scores = weighted - alpha[rows] * weighted.sum(dim=1, keepdim=True) + loss_grad_scores[rows]
            grad_query[rows] = pairs.scores_backward(query[rows], grad_scores, grad_keys, grad_score)
            # gates, q and beta read h:  dh = W^T of all three by one product
            grad_hidden[:size] = _product(grad_from_hidden[rows], weights.state.T)
        grad_regions = None
        if ctx.needs_input_grad[6]:
            # da_i = sum_t m_ti dr_t, summed over the captions of an image
            maps, grad_region_sum = (
                packing.pad(part)[packing.order] for part in (maps, grad_region_sum)
            )  # (B, T, ...)
            grad_regions = torch.zeros_like(regions).index_add_(0, ctx.groups.image_index, maps.mT @ grad_region_sum)
        grad_state = _outer(grad_from_hidden, hidden_before, weights.state.dtype)
        grad_matrix = _outer(grad_gates, context, weights.context.dtype)
        grad_weights = (grad_state, grad_from_hidden.sum(dim=0), grad_matrix, grad_score.sum(dim=0))
        # x is added to the gates, so dx = dgates; no gradient for the five arguments that are not tensors of the model
        return *(None,) * 5, grad_keys, grad_regions, grad_gates, grad_hidden, grad_cell, *grad_weights


def _product(rows: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return W x + b of every row x, multiplied in the precision of W."""
    return linear(rows.to(matrix.dtype), matrix, bias).to(rows.dtype)


def _outer(grad_outputs: Tensor, inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gradient of W for all rows y = W x: dW = sum_k dy_k x_k^T, multiplied in `dtype`."""
    return matmul(grad_outputs.T.to(dtype), inputs.to(dtype)).to(inputs.dtype)


def _shift(initial: Tensor, values: Tensor, packing: Packing) -> Tensor:
    """Return the values before each step (N, n): `initial` (B, n), then `values` (N, n) of the previous step.

    A step has at most as many captions as the previous one, so it reads the first rows of the previous step.
    """
    steps = zip(packing.steps(), packing.sizes[1:], strict=False)
    return torch.cat([initial[: packing.sizes[0]], *(values[rows][:size] for (rows, _), size in steps)])
