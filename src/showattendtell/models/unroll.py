"""Teacher forcing: run attention and decoder over all steps of given captions."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from showattendtell.models.attention import Attention, ScoredAttention, SoftAttention
from showattendtell.models.decoder import Decoder, LSTMDecoder
from showattendtell.models.hard_attention import HardAttention, path_of
from showattendtell.models.kernels.packing import Packing
from showattendtell.models.kernels.parallel import CaptionGroups
from showattendtell.models.kernels.precision import to_multiply
from showattendtell.models.kernels.recurrence import AttentionLookup, RecurrenceLayout, RecurrenceWeights, recur
from showattendtell.models.outputs import AttentionCache, DecoderOutput, DecoderState
from showattendtell.models.scores import AdditiveScore
from showattendtell.types import SampledLocations


def unroll_steps(
    attention: Attention,
    decoder: Decoder,
    packing: Packing,
    memory: AttentionCache,
    state: DecoderState,
    word_gates: Tensor,
    locations: Tensor | None,
) -> DecoderOutput:
    """Unroll any attention with any decoder, step by step.

    Args:
        memory: one row per caption, B rows.
        state: the states before the first words.
        word_gates: (N, ...), from `Decoder.embed_words`.
        locations: (B, T, H) region indices for hard attention; negative entries are sampled.
    """
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
    """Return whether `unroll_fused` computes the result of `unroll_steps`.

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
    """Compute the result of `unroll_steps` with the fused recurrence, from the memory and states of the images.

    Args:
        image_index: (B,) the image of each caption.
    """
    assert isinstance(attention, ScoredAttention)
    assert isinstance(decoder, LSTMDecoder)
    image_index = image_index[packing.order]
    keys, state = memory.keys, state.select(image_index)
    plan = RecurrenceLayout(packing, CaptionGroups(image_index, len(keys.values)))
    if isinstance(attention, HardAttention):
        use_expectation = _use_expectation(memory)[image_index]
        chosen = None if locations is None else packing.pack(locations)
        plan = plan._replace(look=partial(_draw, attention, use_expectation, chosen), use_expectation=use_expectation)
    first = (state.hidden.to(keys.values.dtype), state.cell.to(keys.values.dtype))
    passed = recur(plan, keys.values, memory.regions, word_gates, *first, weights_of(attention, decoder))
    log_weights = passed.scores.log_softmax(dim=1)
    gates = passed.gates.mean(dim=1) if passed.gates.shape[1] else log_weights.new_ones(len(log_weights))
    course = DecoderOutput(passed.hidden, passed.context, log_weights.exp(), gates)
    if passed.drawn is None or plan.use_expectation is None:
        return course
    of_words = torch.cat([plan.use_expectation[:size] for size in packing.sizes])
    return course._replace(sample=path_of(log_weights.unsqueeze(1), passed.drawn, of_words))


def _use_expectation(memory: AttentionCache) -> Tensor:
    """Return the images (I,) for which hard attention uses the expectation."""
    if memory.use_expectation is None:
        return torch.zeros(len(memory.regions), dtype=torch.bool, device=memory.regions.device)
    return memory.use_expectation


def _draw(
    attention: HardAttention, use_expectation: Tensor, locations: Tensor | None, alpha: Tensor, rows: slice
) -> AttentionLookup:
    """Sample the locations of one step from alpha (b, L); `rows` are the step's rows among the N words."""
    drawn = attention.draw(alpha.unsqueeze(1), None if locations is None else locations[rows])  # (b, 1)
    maps = F.one_hot(drawn.squeeze(1), alpha.shape[1]).to(alpha.dtype)
    return AttentionLookup(torch.where(use_expectation[: len(alpha)].unsqueeze(1), alpha, maps), drawn)


def weights_of(attention: ScoredAttention, decoder: LSTMDecoder) -> RecurrenceWeights:
    """Concatenate the matrices that read h; convert them to the autocast's precision."""
    score, gate = attention.score, attention.gate
    assert isinstance(score, AdditiveScore)
    temperature = attention.temperature if isinstance(attention, HardAttention) else 1.0
    readers = [decoder.hidden_gates.weight, score.query.weight, *([] if gate is None else [gate.weight])]
    biases = [score.query.bias, *([] if gate is None else [gate.bias])]
    no_bias = biases[0].new_zeros(len(readers[0]))  # the bias of the gates is in the words' part
    whole, bias = torch.cat(readers), torch.cat([no_bias, *biases])
    state, bias, context = to_multiply(whole, bias, decoder.context_gates.weight)
    return RecurrenceWeights(state, bias, context, temperature * score.score.weight.squeeze(0))
