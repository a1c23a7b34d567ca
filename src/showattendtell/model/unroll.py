"""Captions that are given, word for word: what attention and decoder make of every step."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from showattendtell.model.attention import Attention, ScoredAttention, SoftAttention
from showattendtell.model.decoder import Decoder, LSTMDecoder
from showattendtell.model.hard import HardAttention, path_of
from showattendtell.model.loops import Groups
from showattendtell.model.packing import Packing
from showattendtell.model.precision import to_multiply
from showattendtell.model.recurrence import Look, Plan, Weights, recur
from showattendtell.model.scores import AdditiveScore
from showattendtell.model.steps import Course, Memory, State
from showattendtell.records import Sample


def step_by_step(
    attention: Attention,
    decoder: Decoder,
    packing: Packing,
    memory: Memory,
    state: State,
    word_gates: Tensor,
    locations: Tensor | None,
) -> Course:
    """Any attention with any decoder.

    Args:
        memory: of the captions, B rows.
        state: before their first words.
        word_gates: (N, ...), as `Decoder.take_in` gives them.
        locations: (B, T, H) where hard attention is to look; it draws where they are negative.
    """
    hidden, glimpses = [], []
    for step, gates in enumerate(packing.pad(word_gates).unbind(dim=1)):
        given = {} if locations is None else {"locations": locations[:, step]}
        glimpse = attention(memory, state, **given)
        state = decoder.advance(gates, glimpse.context, state)
        hidden.append(state.hidden)
        glimpses.append(glimpse)
    contexts, weights, betas, samples = zip(*glimpses, strict=True)

    def of_words(steps: tuple[Tensor, ...]) -> Tensor:
        return packing.pack(torch.stack(steps, dim=1))

    drawn = None if samples[0] is None else Sample(*map(of_words, zip(*samples, strict=True)))
    return Course(of_words(tuple(hidden)), of_words(contexts), of_words(weights), of_words(betas), drawn)


def in_one_go(attention: Attention, decoder: Decoder) -> bool:
    """Whether `all_steps` may take the place of `step_by_step`: soft or hard attention by the additive score, and the
    LSTM. A subclass may do anything at its steps."""
    return (
        type(attention) in (SoftAttention, HardAttention)
        and type(attention.score) is AdditiveScore
        and type(decoder) is LSTMDecoder
        and not (attention.training and getattr(attention, "estimator", None) == "gumbel_st")
    )


def all_steps(
    attention: Attention,
    decoder: Decoder,
    packing: Packing,
    memory: Memory,
    state: State,
    word_gates: Tensor,
    owners: Tensor,
    locations: Tensor | None,
) -> Course:
    """The same as `step_by_step`, from the memory and the states of the images.

    Args:
        owners: (B,) the image of each caption.
    """
    assert isinstance(attention, ScoredAttention)
    assert isinstance(decoder, LSTMDecoder)
    owners = owners[packing.order]
    keys, state = memory.keys, state.select(owners)
    plan = Plan(packing, Groups(owners, len(keys.values)))
    if isinstance(attention, HardAttention):
        expected = _expected(memory)[owners]
        chosen = None if locations is None else packing.pack(locations)
        plan = plan._replace(look=partial(_draw, attention, expected, chosen), expected=expected)
    first = (state.hidden.to(keys.values.dtype), state.cell.to(keys.values.dtype))
    passed = recur(plan, keys.values, memory.regions, word_gates, *first, weights_of(attention, decoder))
    log_weights = passed.scores.log_softmax(dim=1)
    gates = passed.gates.mean(dim=1) if passed.gates.shape[1] else log_weights.new_ones(len(log_weights))
    course = Course(passed.hidden, passed.context, log_weights.exp(), gates)
    if passed.drawn is None or plan.expected is None:
        return course
    of_words = torch.cat([plan.expected[:size] for size in packing.sizes])
    return course._replace(sample=path_of(log_weights.unsqueeze(1), passed.drawn, of_words))


def _expected(memory: Memory) -> Tensor:
    """Of which images hard attention sees the expectation, (I,)."""
    if memory.expected is None:
        return torch.zeros(len(memory.regions), dtype=torch.bool, device=memory.regions.device)
    return memory.expected


def _draw(attention: HardAttention, expected: Tensor, locations: Tensor | None, alpha: Tensor, rows: slice) -> Look:
    """One step's draws, from alpha (b, L) and the rows of the step among the N words."""
    drawn = attention.draw(alpha.unsqueeze(1), None if locations is None else locations[rows])  # (b, 1)
    maps = F.one_hot(drawn.squeeze(1), alpha.shape[1]).to(alpha.dtype)
    return Look(torch.where(expected[: len(alpha)].unsqueeze(1), alpha, maps), drawn)


def weights_of(attention: ScoredAttention, decoder: LSTMDecoder) -> Weights:
    """The matrices that read h as one; in the precision of an autocast."""
    score, gate = attention.score, attention.gate
    assert isinstance(score, AdditiveScore)
    temperature = attention.temperature if isinstance(attention, HardAttention) else 1.0
    readers = [decoder.hidden_gates.weight, score.query.weight, *([] if gate is None else [gate.weight])]
    biases = [score.query.bias, *([] if gate is None else [gate.bias])]
    no_bias = biases[0].new_zeros(len(readers[0]))  # the words' part of the gates has one
    whole, bias = torch.cat(readers), torch.cat([no_bias, *biases])
    state, bias, context = to_multiply(whole, bias, decoder.context_gates.weight)
    return Weights(state, bias, context, temperature * score.score.weight.squeeze(0))
