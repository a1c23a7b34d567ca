"""Fused recurrence: additive attention and the LSTM over all steps of given captions, with a custom backward pass.

`unroll_fused` is the entry point. Cheaper than autograd over `models.unroll`: one product of h with all matrices that
read it, one product per weight gradient after the last step, and attention's inner values recomputed, not stored.

With z including beta, each step computes

    e_i = u . tanh(p_i + W_q h + b_q)     alpha = softmax(e)              beta = sigmoid(W_b h + b_b)
    z = beta sum_i m_i a_i                m = alpha (soft) or one-hot of a sampled location (hard)
    i, f, o, g = x + W_h h + W_z z        c' = sig(f) c + sig(i) tanh(g)  h' = sig(o) tanh(c')
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from showattendtell.models.attention import Attention, AttentionCache, ScoredAttention, SoftAttention
from showattendtell.models.decoder import Decoder, DecoderState, LSTMDecoder
from showattendtell.models.hard_attention import HardAttention, path_of
from showattendtell.models.kernels import to_multiply, without_autocast
from showattendtell.models.kernels.attention import AdditiveKeys, RegionPairs, WeightedSum
from showattendtell.models.kernels.parallel import CaptionGroups
from showattendtell.models.scores import AdditiveScore
from showattendtell.models.unroll import DecoderOutput, Packing


def is_fused_supported(attention: Attention, decoder: Decoder) -> bool:
    """Return whether `unroll_fused` computes the result of `unroll`.

    True for soft or hard attention with the additive score and the LSTM, but not for subclasses or gumbel_st training.
    """
    return (
        type(attention) in (SoftAttention, HardAttention)
        and type(attention.score) is AdditiveScore
        and type(decoder) is LSTMDecoder
        and not (attention.training and getattr(attention, "estimator", None) == "gumbel_st")
    )


def unroll_fused(
    attention: Attention,
    decoder: Decoder,
    packing: Packing,
    memory: AttentionCache,
    state: DecoderState,
    word_gates: Tensor,
    image_index: Tensor,
    locations: Tensor | None,
) -> DecoderOutput:
    """Compute the result of `unroll`, whose arguments these are, with the fused recurrence."""
    assert isinstance(attention, ScoredAttention)
    assert isinstance(decoder, LSTMDecoder)
    image_index = image_index[packing.order]
    keys, state = memory.keys.values, state.select(image_index)
    layout = Layout(packing, CaptionGroups(image_index, len(keys)))
    if attention.stochastic:
        sample = cast(HardAttention, attention).draw
        chosen = None if locations is None else packing.pack(locations)
        mask = memory.use_expectation
        mask = torch.zeros(len(keys), dtype=torch.bool, device=keys.device) if mask is None else mask
        layout = layout._replace(
            draw=lambda alpha, rows: sample(alpha.unsqueeze(1), None if chosen is None else chosen[rows]),
            use_expectation=mask[image_index],
        )
    first = (state.hidden.to(keys.dtype), state.cell.to(keys.dtype))
    weights = weights_of(attention, decoder)
    with without_autocast(keys.device):
        hidden, context, scores, beta, drawn = _Recurrence.apply(
            layout, keys, memory.regions, word_gates, *first, *weights
        )
    log_weights = scores.log_softmax(dim=1)
    gates = beta.mean(dim=1) if beta.shape[1] else log_weights.new_ones(len(log_weights))
    output = DecoderOutput(hidden, context, log_weights.exp(), gates)
    if drawn is None or layout.use_expectation is None:
        return output
    of_words = torch.cat([layout.use_expectation[:size] for size in packing.sizes])
    return output._replace(sample=path_of(log_weights.unsqueeze(1), drawn, of_words))


class Layout(NamedTuple):
    """Batch layout of the recurrence.

    packing  the order of the words
    groups   the images of the captions, in this order
    draw     hard attention: maps alpha (b, L) and the step's rows among the N words to sampled locations (b, 1)
    use_expectation  (B,) true if z is an expectation, so that its gradient reaches alpha; None: for all captions
    """

    packing: Packing
    groups: CaptionGroups
    draw: Callable[[Tensor, slice], Tensor] | None = None
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


def weights_of(attention: ScoredAttention, decoder: LSTMDecoder) -> RecurrenceWeights:
    """Concatenate the matrices that read h; convert them to the autocast's precision."""
    score, gate = attention.score, attention.gate
    assert isinstance(score, AdditiveScore)
    readers = [decoder.hidden_gates.weight, score.query.weight, *([] if gate is None else [gate.weight])]
    biases = [score.query.bias, *([] if gate is None else [gate.bias])]
    no_bias = biases[0].new_zeros(len(readers[0]))  # word_gates contain the bias of the gates
    whole, bias = torch.cat(readers), torch.cat([no_bias, *biases])
    state, bias, context = to_multiply(whole, bias, decoder.context_gates.weight)
    return RecurrenceWeights(state, bias, context, attention.temperature * score.score.weight.squeeze(0))


class Readings(NamedTuple):
    """Views of a packed product of h (b, 4n + A + G), in this order; G is 0 without a gate, 1, or D."""

    gates: Tensor
    query: Tensor
    beta: Tensor

    @classmethod
    def of(cls, packed: Tensor, weights: RecurrenceWeights) -> "Readings":
        gates, query = len(weights.context), len(weights.score)
        return cls(*packed.split([gates, query, packed.shape[1] - gates - query], dim=1))


class LSTMGates(NamedTuple):
    """Views of the gates (b, 4n), (b, n) each: i, f and o after their sigmoids, g after its tanh."""

    input: Tensor
    forget: Tensor
    output: Tensor
    candidate: Tensor

    @classmethod
    def of(cls, gates: Tensor) -> "LSTMGates":
        return cls(*gates.chunk(4, dim=1))


class WordValues(NamedTuple):
    """Values of words that the backward pass needs, one row per word: those of a step, or of all N words.

    h', c', `read` = the `Readings` of h after their activations, z without beta, beta z, alpha, and m.
    """

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
        layout: Layout,
        keys: Tensor,
        regions: Tensor,
        word_gates: Tensor,
        first_hidden: Tensor,
        first_cell: Tensor,
        *packed_weights: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Return h (N, n), beta z (N, D), e (N, L), beta (N, G), and hard attention's locations (N, 1).

        Args:
            keys: p, (I, L, A); the regions a are (I, L, D).
            word_gates: x, (N, 4n).
            first_hidden: h before the first word, (B, n), in the packing's order; `first_cell` likewise.
        """
        weights = RecurrenceWeights(*packed_weights)
        pairs = RegionPairs(layout.groups, AdditiveKeys(keys), weights.score)
        sums = WeightedSum(layout.groups, regions)
        hidden, cell, steps = first_hidden, first_cell, []
        for rows, size in zip(layout.packing.steps(), layout.packing.sizes, strict=True):
            step = _step(layout, pairs, sums, weights, word_gates[rows], hidden[:size], cell[:size], rows)
            hidden, cell = step[0].hidden, step[0].cell
            steps.append(step)
        values, scores, draws = zip(*steps, strict=True)
        words = WordValues(*(torch.cat(part) for part in zip(*values, strict=True)))
        kept = pairs.kept()
        ctx.layout, ctx.decayed = layout, kept.decayed
        ctx.save_for_backward(kept.values, regions, first_hidden, first_cell, *weights, *words)
        drawn = None if layout.draw is None else torch.cat(draws)
        if drawn is not None:
            ctx.mark_non_differentiable(drawn)
        return words.hidden, words.context, torch.cat(scores), Readings.of(words.read, weights).beta.clone(), drawn

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        keys, regions, hidden, cell = ctx.saved_tensors[:4]
        weights, words = RecurrenceWeights(*ctx.saved_tensors[4:8]), WordValues(*ctx.saved_tensors[8:])
        through_time = _BackwardPass(
            ctx.layout, AdditiveKeys(keys, ctx.decayed), regions, hidden, cell, weights, words, gradients[:4]
        )
        steps = zip(ctx.layout.packing.steps(), ctx.layout.packing.sizes, strict=True)
        for rows, size in reversed(list(steps)):
            through_time.step(rows, size)
        return None, *through_time.ends(regions=ctx.needs_input_grad[2])


def _step(
    layout: Layout,
    pairs: RegionPairs,
    sums: WeightedSum,
    weights: RecurrenceWeights,
    word_gates: Tensor,
    hidden: Tensor,
    cell: Tensor,
    rows: slice,
) -> tuple[WordValues, Tensor, Tensor | None]:
    """Compute one step of b captions from their h and c (b, n); also return e and hard attention's locations."""
    read = _product(hidden, weights.state, weights.bias)
    gates, query, beta = Readings.of(read, weights)
    scores = pairs.scores(query)
    alpha = scores.softmax(dim=1)
    maps, drawn = alpha, None
    if layout.draw is not None and layout.use_expectation is not None:
        drawn = layout.draw(alpha, rows)
        one_hot = F.one_hot(drawn.squeeze(1), alpha.shape[1]).to(alpha.dtype)
        maps = torch.where(layout.use_expectation[: len(alpha)].unsqueeze(1), alpha, one_hot)
    seen = sums.read(maps)
    beta.sigmoid_()
    context = beta * seen if beta.shape[1] else seen
    gates.add_(word_gates).add_(_product(context, weights.context))
    gates[:, : 3 * hidden.shape[1]].sigmoid_()  # i, f and o at once
    gates[:, 3 * hidden.shape[1] :].tanh_()
    lstm = LSTMGates.of(gates)
    cell = lstm.forget * cell + lstm.input * lstm.candidate
    hidden = lstm.output * torch.tanh(cell)
    return WordValues(hidden, cell, read, seen, context, alpha, maps), scores, drawn


class _BackwardPass:
    """Backpropagation through time, from the last step to the first. dx stands for the gradient of x.

    Args:
        gradients: of the outputs h, beta z, e and beta for all N words.
    """

    def __init__(
        self,
        layout: Layout,
        keys: AdditiveKeys,
        regions: Tensor,
        first_hidden: Tensor,
        first_cell: Tensor,
        weights: RecurrenceWeights,
        words: WordValues,
        gradients: Sequence[Tensor],
    ):
        self.layout, self.weights, self.words = layout, weights, words
        self.to_hidden, self.to_context, self.to_scores, self.to_beta = gradients
        self.pairs = RegionPairs(layout.groups, keys, weights.score)
        self.sums = WeightedSum(layout.groups, regions)
        self.read, self.to_read = Readings.of(words.read, weights), torch.empty_like(words.read)
        self.to_keys = torch.zeros_like(keys.values)
        self.to_score = weights.score.new_zeros(len(keys.values), len(weights.score))
        self.to_seen = torch.empty_like(words.seen)
        self.onward, self.to_cell = torch.zeros_like(first_hidden), torch.zeros_like(first_cell)
        self.hidden_before = _shift(first_hidden, words.hidden, layout.packing)
        self.cell_before = _shift(first_cell, words.cell, layout.packing)

    def step(self, rows: slice, size: int) -> None:
        """Backpropagate through the step with these rows."""
        into = Readings.of(self.to_read[rows], self.weights)
        self._through_gates(rows, size, LSTMGates.of(into.gates))
        to_context = _product(into.gates, self.weights.context.T) + self.to_context[rows]
        beta = self.read.beta[rows]
        if beta.shape[1]:
            # z = beta r: dbeta = r . dz, dr = beta dz; a sigmoid's argument gets dbeta beta (1 - beta)
            to_beta = to_context * self.words.seen[rows]
            to_beta = to_beta if beta.shape[1] > 1 else to_beta.sum(dim=1, keepdim=True)
            into.beta[:] = (to_beta + self.to_beta[rows]) * beta * (1 - beta)
            to_context = to_context * beta
        self.to_seen[rows] = to_context
        to_scores = self._through_maps(rows, size, to_context)
        into.query[:] = self.pairs.scores_back(self.read.query[rows], to_scores, self.to_keys, self.to_score)
        self.onward[:size] = _product(self.to_read[rows], self.weights.state.T)

    def _through_gates(self, rows: slice, size: int, into: LSTMGates) -> None:
        """Write the gradients of the gates' pre-activations, from dh' and dc'; store dc."""
        gates = LSTMGates.of(self.read.gates[rows])
        saturated = torch.tanh(self.words.cell[rows])
        # h' = o tanh(c'):  dc' += dh' o (1 - tanh^2 c')
        out = self.onward[:size] + self.to_hidden[rows]
        kept = self.to_cell[:size] + out * gates.output * (1 - saturated**2)
        # c' = f c + i g:  di = dc' g,  df = dc' c,  dg = dc' i;  do = dh' tanh c'
        into.input[:] = kept * gates.candidate * gates.input * (1 - gates.input)
        into.forget[:] = kept * self.cell_before[rows] * gates.forget * (1 - gates.forget)
        into.output[:] = out * saturated * gates.output * (1 - gates.output)
        into.candidate[:] = kept * gates.input * (1 - gates.candidate**2)
        self.to_cell[:size] = kept * gates.forget  # dc = dc' f

    def _through_maps(self, rows: slice, size: int, to_seen: Tensor) -> Tensor:
        """Return de (b, L) from dr: dm_i = a_i . dr, and through the softmax de = alpha (dm - sum_j alpha_j dm_j)."""
        to_maps = self.sums.read_back(to_seen)
        if self.layout.use_expectation is not None:  # a sampled location passes no gradient on
            to_maps = to_maps * self.layout.use_expectation[:size].unsqueeze(1)
        alpha = self.words.alpha[rows]
        inner = alpha * to_maps
        return inner - alpha * inner.sum(dim=1, keepdim=True) + self.to_scores[rows]

    def ends(self, regions: bool) -> tuple[Tensor | None, ...]:
        """Return the gradients of p, a (None unless `regions`), x, the first h and c, and the weights."""
        words, weights, packing = self.words, self.weights, self.layout.packing
        to_gates = Readings.of(self.to_read, weights).gates
        to_regions = None
        if regions:
            maps, to_seen = (packing.pad(values)[packing.order] for values in (words.maps, self.to_seen))
            to_regions = self.sums.regions_back(maps, to_seen)
        to_state = _outer(self.to_read, self.hidden_before, weights.state.dtype)
        to_context = _outer(to_gates, words.context, weights.context.dtype)
        to_weights = (to_state, self.to_read.sum(dim=0), to_context, self.to_score.sum(dim=0))
        return self.to_keys, to_regions, to_gates, self.onward, self.to_cell, *to_weights


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
