"""The yardstick: the same model as tutorials write it, every projection at every step and caption."""

import torch
from torch import Tensor

from showattendtell.model.captioner import Captioner, shift_right
from showattendtell.records import Trace


def textbook_trace(captioner: Captioner, regions: Tensor, owners: Tensor, tokens: Tensor) -> Trace:
    """What `Captioner.forward` gives, step by step: regions copied for every caption, projected anew at every step,
    each word embedded and each vocabulary scored when it comes."""
    attention, decoder = captioner.attention, captioner.decoder
    copied = regions[owners]  # (B, L, D)
    score = attention.score
    hidden, cell = decoder.first_state(decoder.mean_dropout(copied.mean(dim=1)))
    steps = []
    for words in shift_right(tokens).T:
        energy = score.score(torch.tanh(score.key(copied) + score.query(hidden).unsqueeze(1))).squeeze(-1)
        weights = energy.softmax(dim=1)
        gate = torch.sigmoid(attention.gate(hidden))
        context = gate * (weights.unsqueeze(2) * copied).sum(dim=1)
        embedded = decoder.embedding(words)
        gates = decoder.read_word(embedded) + decoder.hidden_gates(hidden) + decoder.context_gates(context)
        admit, forget, output, candidate = gates.chunk(4, dim=1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(admit) * torch.tanh(candidate)
        hidden = torch.sigmoid(output) * torch.tanh(cell)
        summed = embedded + decoder.hidden_output(hidden) + decoder.context_output(context)
        steps.append((decoder.word_scores(decoder.output_dropout(summed)), weights, gate.squeeze(1)))
    return Trace(*(torch.stack(parts, dim=1) for parts in zip(*steps, strict=True)))
