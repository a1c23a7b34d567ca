"""A trace by hand."""

import torch
from torch import Tensor

from showattendtell.records import Answers, Trace


def trace_of(logits: Tensor, weights: Tensor, gates: Tensor) -> Trace:
    """From logits (B, T, V) of all steps."""
    captions, steps, words = logits.shape
    answers = Answers(logits.flatten(0, 1), torch.eye(words).to(logits), logits.new_zeros(words))
    return Trace(answers, torch.arange(captions * steps), weights, gates)
