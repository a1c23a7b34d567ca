"""The likeliest words of many captions."""

import numpy as np
import torch
from torch import Tensor

from showattendtell.model.loops import compilable, share_out

LANES = 128
"""The words whose scores are compared at once."""

NEVER = np.float32(-np.inf)


def likeliest(scores: Tensor, number: int) -> Tensor:
    """The words of the `number` largest scores (B, V), best first, (B, number)."""
    if not compilable(scores):
        return scores.topk(number, dim=-1).indices
    words = torch.empty(len(scores), number, dtype=torch.long)
    share_out(rank, len(scores), scores.contiguous(), words)
    return words


def rank(first, last, scores, words):  # type: ignore[no-untyped-def]
    """words (B, n), best first. A lane is the words v of one v modulo LANES: the n best are in the n best lanes."""
    num_words, number = scores.shape[1], words.shape[1]
    whole = num_words - num_words % LANES
    best, held = np.empty(LANES, np.float32), np.empty(number, np.float32)
    for row in range(first, last):
        best[:] = NEVER
        for start in range(0, whole, LANES):
            for lane in range(LANES):
                score = scores[row, start + lane]
                best[lane] = score if score > best[lane] else best[lane]
        for word in range(whole, num_words):
            best[word - whole] = max(best[word - whole], scores[row, word])
        held[:] = NEVER
        for lane in range(LANES):
            place = number - 1
            if best[lane] > held[place]:
                while place > 0 and best[lane] > held[place - 1]:
                    held[place] = held[place - 1]
                    place -= 1
                held[place] = best[lane]
        least = held[-1]
        held[:] = NEVER
        found = 0
        for lane in range(LANES):
            if best[lane] < least or best[lane] == NEVER:
                continue
            for word in range(lane, num_words, LANES):
                score = scores[row, word]
                place = min(found, number - 1)
                if score > held[place]:
                    while place > 0 and score > held[place - 1]:
                        held[place], words[row, place] = held[place - 1], words[row, place - 1]
                        place -= 1
                    held[place], words[row, place] = score, word
                    found += 1
        for word in range(num_words):
            if found >= number:
                break
            if not scores[row, word] > NEVER:
                words[row, found] = word
                found += 1
