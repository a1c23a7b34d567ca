"""One captioner, or several with one vocabulary that speak as one."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from showattendtell.model.captioner import Captioner
from showattendtell.model.steps import Memory, State


class Thoughts(NamedTuple):
    """What each captioner remembers of R images, and its state after the words of R * K captions."""

    memories: tuple[Memory, ...]
    states: tuple[State, ...]

    def select(self, images: Tensor, captions: Tensor) -> "Thoughts":
        memories = tuple(memory.select(images) for memory in self.memories)
        return Thoughts(memories, _select(self.states, captions))

    def follow(self, captions: Tensor) -> "Thoughts":
        """The same images, other captions of them."""
        return self._replace(states=_select(self.states, captions))


def _select(states: tuple[State, ...], captions: Tensor) -> tuple[State, ...]:
    return tuple(state.select(captions) for state in states)


class Utterance(NamedTuple):
    """log p of the next word (R * K, V), the thoughts now, and where they looked: alpha (R * K, L), beta (R * K,)."""

    log_probabilities: Tensor
    thoughts: Thoughts
    weights: Tensor
    gate: Tensor


class Speaker:
    """p of a word is the mean of the captioners' p; alpha and beta are the first captioner's."""

    def __init__(self, captioners: Sequence[Captioner]):
        self.captioners = tuple(captioners)

    def begin(self, regions: Sequence[Tensor], captions_per_image: int) -> Thoughts:
        """Before the first word of each image's captions; each captioner sees the images its own way, (I, L, D)."""
        pairs = zip(self.captioners, regions, strict=True)
        memories, states = zip(*(captioner.begin(seen) for captioner, seen in pairs), strict=True)
        images = torch.arange(len(regions[0]), device=regions[0].device)
        return Thoughts(memories, _select(states, images.repeat_interleave(captions_per_image)))

    def step(self, thoughts: Thoughts, tokens: Tensor) -> Utterance:
        """One word further: the last words (R * K,) give log p of the next."""
        seen = zip(self.captioners, thoughts.memories, thoughts.states, strict=True)
        steps = [captioner.step(memory, state, tokens) for captioner, memory, state in seen]
        log_probabilities = steps[0].log_probabilities
        if len(steps) > 1:
            together = torch.stack([step.log_probabilities for step in steps])
            log_probabilities = together.logsumexp(dim=0) - math.log(len(steps))
        after = thoughts._replace(states=tuple(step.state for step in steps))
        return Utterance(log_probabilities, after, steps[0].weights, steps[0].gate)
