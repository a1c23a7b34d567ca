"""Teacher forcing: packed captions, and the recurrence over all their steps, as a plain loop and fused.

`unroll` takes any attention and decoder. `unroll_fused` computes the same, faster, for soft and hard attention with the
LSTM, by a custom backward pass: one product of h with all matrices that read it, one product per weight gradient after
the last step, and attention's inner values recomputed, not stored. With z including beta, each step computes

    e_i = u . tanh(p_i + W_q h + b_q)     alpha = softmax(e)              beta = sigmoid(W_b h + b_b)
    z = beta sum_i m_i a_i                m = alpha (soft) or one-hot of a sampled location (hard)
    i, f, o, g = x + W_h h + W_z z        c' = sig(f) c + sig(i) tanh(g)  h' = sig(o) tanh(c')
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from showattendtell.data.vocabulary import PAD
from showattendtell.models.attention import Attention, AttentionCache, ScoredAttention, SoftAttention
from showattendtell.models.decoder import Decoder, DecoderState, LSTMDecoder
from showattendtell.models.hard_attention import HardAttention, path_of
from showattendtell.models.kernels import to_multiply, without_autocast
from showattendtell.models.kernels.attention import AdditiveKeys, RegionPairs, WeightedSum
from showattendtell.models.kernels.parallel import CaptionGroups
from showattendtell.models.scores import AdditiveScore
from showattendtell.types import SampledLocations, at_places


class Packing(NamedTuple):
    """Packing of N words: all first words, then all second words, and so on, longest caption first.

    order   (B,) indices of the captions, longest first
    sizes   the number of captions with a word at each step
    places  (N,) flat indices b * T + t of the words in tokens (B, T)
    shape   (B, T)
    """

    order: Tensor
    sizes: tuple[int, ...]
    places: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, tokens: Tensor) -> "Packing":
        """Pack captions (B, T) that end with `<pad>`. Padding is left out only on the CPU: a shape that depends on data
        would synchronise a GPU."""
        return cls.without_padding(tokens) if tokens.device.type == "cpu" else cls.with_padding(tokens)

    @classmethod
    def with_padding(cls, tokens: Tensor) -> "Packing":
        """Pack captions (B, T) as if each had T words."""
        captions, steps = shape = (len(tokens), tokens.shape[1])
        number = torch.arange(captions, device=tokens.device)
        places = torch.arange(steps, device=tokens.device).unsqueeze(1) + steps * number
        return cls(number, (captions,) * steps, places.flatten(), shape)

    @classmethod
    def without_padding(cls, tokens: Tensor) -> "Packing":
        """Pack captions (B, T), each up to its first `<pad>`."""
        lengths, order = (tokens != PAD).sum(dim=1).sort(descending=True, stable=True)
        spoken = lengths > torch.arange(int(lengths.max())).unsqueeze(1)  # (T, B)
        places = torch.arange(len(spoken)).unsqueeze(1) + tokens.shape[1] * order
        return cls(order, tuple(spoken.sum(dim=1).tolist()), places[spoken], (len(tokens), tokens.shape[1]))

    def pack(self, padded: Tensor) -> Tensor:
        """Pack (B, T, ...) to (N, ...)."""
        return padded.flatten(0, 1)[self.places]

    def pad(self, packed: Tensor) -> Tensor:
        """Unpack (N, ...) to (B, T, ...); entries without a word are zero."""
        return at_places(packed, self.places, self.shape)

    def steps(self) -> Iterator[slice]:
        """Yield the rows of each step among the N words."""
        first = 0
        for size in self.sizes:
            yield slice(first, first + size)
            first += size


class DecoderOutput(NamedTuple):
    """All steps of captions, N words: h (N, n), z (N, D), alpha (N, L), beta (N,), and the sampled locations."""

    hidden: Tensor
    context: Tensor
    weights: Tensor
    gates: Tensor
    sample: SampledLocations | None = None


def unroll(
    attention: Attention,
    decoder: Decoder,
    packing: Packing,
    memory: AttentionCache,
    state: DecoderState,
    word_gates: Tensor,
    image_index: Tensor,
    locations: Tensor | None,
) -> DecoderOutput:
    """Unroll any attention with any decoder, step by step.

    Args:
        memory: one row per image; `state` too, before the first words.
        word_gates: (N, ...), from `Decoder.embed_words`.
        image_index: (B,) the image of each caption.
        locations: (B, T, H) region indices for hard attention; negative entries are sampled.
    """
    memory, state = memory.select(image_index), state.select(image_index)
    hidden, glimpses = [], []
    for step, gates in enumerate(packing.pad(word_gates).unbind(dim=1)):
        given = {} if locations is None else {"locations": locations[:, step]}
        glimpse = attention(memory, state, **given)
        state = decoder.step(gates, glimpse.context, state)
        hidden.append(state.hidden)
        glimpses.append(glimpse)
    contexts, weights, betas, samples = zip(*glimpses, strict=True)

    def of_words(steps: tuple[Tensor, ...]) -> Tensor:
        return packing.pack(torch.stack(steps, dim=1))

    drawn = None if samples[0] is None else SampledLocations(*map(of_words, zip(*samples, strict=True)))
    return DecoderOutput(of_words(tuple(hidden)), of_words(contexts), of_words(weights), of_words(betas), drawn)


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
    draw = chosen = averaged = None
    if isinstance(attention, HardAttention):
        draw, chosen = attention.draw, None if locations is None else packing.pack(locations)
        mask = memory.use_expectation
        mask = torch.zeros(len(keys), dtype=torch.bool, device=keys.device) if mask is None else mask
        averaged = mask[image_index]
    first = (state.hidden.to(keys.dtype), state.cell.to(keys.dtype))
    batch = (packing, CaptionGroups(image_index, len(keys)), draw, chosen, averaged)
    weights = weights_of(attention, decoder)
    with without_autocast(keys.device):
        hidden, context, scores, beta, drawn = _Recurrence.apply(
            *batch, keys, memory.regions, word_gates, *first, *weights
        )
    log_weights = scores.log_softmax(dim=1)
    gates = beta.mean(dim=1) if beta.shape[1] else log_weights.new_ones(len(log_weights))
    path = None
    if averaged is not None:
        of_words = torch.cat([averaged[:size] for size in packing.sizes])
        path = path_of(log_weights.unsqueeze(1), drawn, of_words)
    return DecoderOutput(hidden, context, log_weights.exp(), gates, path)


class RecurrenceWeights(NamedTuple):
    """Weights of the recurrence.

    state    (4n + A + G, n) packed rows: from h to the gates i, f, o, g, to the query q, and to beta; G is 0 without a
             gate on the context, 1, or D
    bias     (4n + A + G,)
    context  (4n, D) from beta z to the gates
    score    u, (A,)
    """

    state: Tensor
    bias: Tensor
    context: Tensor
    score: Tensor

    def split(self, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return views of a packed product of h (b, 4n + A + G): the gates, the query, and beta."""
        gates, query, beta = packed.tensor_split([len(self.context), len(self.context) + len(self.score)], dim=1)
        return gates, query, beta


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


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        packing: Packing,
        groups: CaptionGroups,
        draw: Callable[[Tensor, Tensor | None], Tensor] | None,
        chosen: Tensor | None,
        averaged: Tensor | None,
        keys: Tensor,
        regions: Tensor,
        word_gates: Tensor,
        first_hidden: Tensor,
        first_cell: Tensor,
        *packed_weights: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Return h (N, n), beta z (N, D), e (N, L), beta (N, G), and hard attention's locations (N, 1).

        Args:
            groups: the images of the captions, in the packing's order.
            draw: hard attention: from alpha (b, 1, L) and the locations in `chosen` (N, 1) to sampled locations (b, 1).
            averaged: (B,) true if z is an expectation, so that its gradient reaches alpha; None: for all captions.
            keys: p, (I, L, A); the regions a are (I, L, D).
            word_gates: x, (N, 4n).
            first_hidden: h before the first word, (B, n), in the packing's order; `first_cell` likewise.
        """
        weights = RecurrenceWeights(*packed_weights)
        pairs, sums = RegionPairs(groups, AdditiveKeys(keys), weights.score), WeightedSum(groups, regions)
        hidden, cell, sigmoids = first_hidden, first_cell, 3 * first_hidden.shape[1]
        steps, draws = [], []
        for rows, size in zip(packing.steps(), packing.sizes, strict=True):
            read = _product(hidden[:size], weights.state, weights.bias)
            gates, query, beta = weights.split(read)
            scores = pairs.scores(query)
            maps = alpha = scores.softmax(dim=1)
            if draw is not None and averaged is not None:
                draws.append(draw(alpha.unsqueeze(1), None if chosen is None else chosen[rows]))
                one_hot = F.one_hot(draws[-1].squeeze(1), alpha.shape[1]).to(alpha.dtype)
                maps = torch.where(averaged[:size].unsqueeze(1), alpha, one_hot)
            seen = sums.read(maps)
            beta.sigmoid_()  # in place: `read` holds all values after their activations
            context = beta * seen if beta.shape[1] else seen
            gates.add_(word_gates[rows]).add_(_product(context, weights.context))
            gates[:, :sigmoids].sigmoid_()  # i, f and o at once
            gates[:, sigmoids:].tanh_()
            admit, forget, output, candidate = gates.chunk(4, dim=1)
            cell = forget * cell[:size] + admit * candidate
            hidden = output * torch.tanh(cell)
            steps.append((hidden, cell, read, seen, context, alpha, maps, scores))
        *words, scores = (torch.cat(part) for part in zip(*steps, strict=True))
        kept = pairs.kept()
        ctx.packing, ctx.groups, ctx.averaged, ctx.decayed = packing, groups, averaged, kept.decayed
        ctx.save_for_backward(kept.values, regions, first_hidden, first_cell, *weights, *words)
        drawn = torch.cat(draws) if draws else None
        if drawn is not None:
            ctx.mark_non_differentiable(drawn)
        hidden, _, read, _, context, *_ = words
        return hidden, context, scores, weights.split(read)[2].clone(), drawn

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Backpropagate through time, from the last step to the first. `to_x`, or dx, is the gradient of x."""
        keys, regions, first_hidden, first_cell = ctx.saved_tensors[:4]
        weights, packing = RecurrenceWeights(*ctx.saved_tensors[4:8]), ctx.packing
        hidden, cell, read, seen, context, alpha, maps = ctx.saved_tensors[8:]  # (N, ...), of all words
        of_hidden, of_context, of_scores, of_beta = gradients[:4]
        pairs = RegionPairs(ctx.groups, AdditiveKeys(keys, ctx.decayed), weights.score)
        sums = WeightedSum(ctx.groups, regions)
        hidden_before, cell_before = _shift(first_hidden, hidden, packing), _shift(first_cell, cell, packing)
        gates, query, betas = weights.split(read)
        to_read, to_seen = torch.empty_like(read), torch.empty_like(seen)
        to_gates, to_query, to_betas = weights.split(to_read)  # views: each step writes its rows
        to_keys, to_score = torch.zeros_like(keys), weights.score.new_zeros(len(keys), len(weights.score))
        to_hidden, to_cell = torch.zeros_like(first_hidden), torch.zeros_like(first_cell)
        for rows, size in reversed([*zip(packing.steps(), packing.sizes, strict=True)]):
            # h' = o tanh(c'):  dc' += dh' o (1 - tanh^2 c')
            admit, forget, output, candidate = gates[rows].chunk(4, dim=1)
            saturated, out = torch.tanh(cell[rows]), to_hidden[:size] + of_hidden[rows]
            kept = to_cell[:size] + out * output * (1 - saturated**2)
            # c' = f c + i g:  di = dc' g,  df = dc' c,  dg = dc' i;  do = dh' tanh c';  then through the activations:
            # s' = s (1 - s) of a sigmoid s,  t' = 1 - t^2 of a tanh t
            to_admit, to_forget, to_output, to_candidate = to_gates[rows].chunk(4, dim=1)
            to_admit[:] = kept * candidate * admit * (1 - admit)
            to_forget[:] = kept * cell_before[rows] * forget * (1 - forget)
            to_output[:] = out * saturated * output * (1 - output)
            to_candidate[:] = kept * admit * (1 - candidate**2)
            to_cell[:size] = kept * forget  # dc = dc' f
            to_context = _product(to_gates[rows], weights.context.T) + of_context[rows]
            if (beta := betas[rows]).shape[1]:
                # z = beta r: dbeta = r . dz, dr = beta dz; a sigmoid's argument gets dbeta beta (1 - beta)
                to_beta = to_context * seen[rows]
                to_beta = to_beta if beta.shape[1] > 1 else to_beta.sum(dim=1, keepdim=True)
                to_betas[rows] = (to_beta + of_beta[rows]) * beta * (1 - beta)
                to_context = to_context * beta
            to_seen[rows] = to_context
            # r = sum_i m_i a_i: dm_i = a_i . dr; a sampled location passes no gradient on
            to_maps = sums.read_back(to_context)
            to_maps = to_maps if ctx.averaged is None else to_maps * ctx.averaged[:size].unsqueeze(1)
            # alpha = softmax(e): de = alpha (dm - sum_j alpha_j dm_j)
            inner = alpha[rows] * to_maps
            to_scores = inner - alpha[rows] * inner.sum(dim=1, keepdim=True) + of_scores[rows]
            to_query[rows] = pairs.scores_back(query[rows], to_scores, to_keys, to_score)
            to_hidden[:size] = _product(to_read[rows], weights.state.T)
        to_regions = None
        if ctx.needs_input_grad[6]:
            # da_i = sum_t m_ti dr_t, summed over the captions of an image
            maps, to_seen = (packing.pad(values)[packing.order] for values in (maps, to_seen))  # (B, T, ...)
            to_regions = torch.zeros_like(sums.regions).index_add_(0, ctx.groups.image_index, maps.mT @ to_seen)
        to_state = _outer(to_read, hidden_before, weights.state.dtype)
        to_matrix = _outer(to_gates, context, weights.context.dtype)
        to_weights = (to_state, to_read.sum(dim=0), to_matrix, to_score.sum(dim=0))
        return *(None,) * 5, to_keys, to_regions, to_gates, to_hidden, to_cell, *to_weights


def _product(rows: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return W x + b of every row x, multiplied in the precision of W."""
    return F.linear(rows.to(matrix.dtype), matrix, bias).to(rows.dtype)


def _outer(to_rows: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gradient of W, sum_k dy_k x_k^T of all rows y = W x."""
    return (to_rows.T.to(dtype) @ rows.to(dtype)).to(rows.dtype)


def _shift(first: Tensor, values: Tensor, packing: Packing) -> Tensor:
    """Return the values before each step (N, n): `first` (B, n), then `values` (N, n) of the previous step."""
    later = zip(packing.steps(), packing.sizes[1:], strict=False)
    return torch.cat([first[: packing.sizes[0]], *(values[rows.start : rows.start + size] for rows, size in later)])
