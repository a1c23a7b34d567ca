"""Decoding constraints: caption length, prefix, required and forbidden tokens, blocked n-grams."""

from typing import NamedTuple

import torch
from torch import Tensor

from showattendtell.data.vocabulary import EOS


class Constraints(NamedTuple):
    """Decoding constraints in tokens: `required` excludes tokens of the prefix; `never` are forbidden tokens."""

    prefix: tuple[int, ...]
    required: tuple[int, ...]
    never: tuple[int, ...]
    min_length: int
    max_length: int
    block_ngrams: int

    def unsaid(self, tokens: Tensor) -> Tensor:
        """Return a mask (R, C) of the required words that each caption (R, t) does not contain yet."""
        required = torch.tensor(self.required, dtype=tokens.dtype, device=tokens.device)
        return ~(tokens.unsqueeze(2) == required).any(dim=1)

    def apply(self, scores: Tensor, tokens: Tensor) -> Tensor:
        """Set the scores (R, V) of the next word of captions (R, t) to -inf where the constraints forbid the word.

        `<eos>` is forbidden before all required words and the minimum length. If the remaining length is needed for
        required words, all other words are forbidden. A caption without any allowed word ends.
        """
        said = tokens.shape[1]
        if said < len(self.prefix):
            return _only(scores, self.prefix[said])
        ending = scores[:, EOS].clone()
        scores[:, list(self.never)] = -torch.inf
        if said < self.min_length:
            scores[:, EOS] = -torch.inf
        if 0 < self.block_ngrams <= said:
            scores.masked_fill_(self._repeated(scores, tokens), -torch.inf)
        if self.required:
            self._await(scores, self.unsaid(tokens), places=self.max_length - said)
        if said < self.min_length or self.block_ngrams:
            stuck = scores.isneginf().all(dim=1)
            scores[:, EOS] = torch.where(stuck, ending, scores[:, EOS])
        return scores

    def _repeated(self, scores: Tensor, tokens: Tensor) -> Tensor:
        """Return a mask (R, V) of the words that would repeat an n-gram of `block_ngrams` words."""
        runs = tokens.unfold(1, self.block_ngrams, 1)  # (R, t - n + 1, n)
        begun = tokens[:, tokens.shape[1] - self.block_ngrams + 1 :].unsqueeze(1)
        again = (runs[:, :, :-1] == begun).all(dim=2)
        counts = torch.zeros_like(scores).scatter_add_(1, runs[:, :, -1], again.to(scores))
        return counts > 0

    def _await(self, scores: Tensor, unsaid: Tensor, places: int) -> None:
        """Forbid `<eos>` until all required words are present; force them if only `places` for them are left."""
        missing = unsaid.sum(dim=1)
        scores[:, EOS].masked_fill_(missing > 0, -torch.inf)
        required = list(self.required)
        due = scores[:, required].masked_fill(~unsaid, -torch.inf)
        full = ((missing > 0) & (missing >= places)).unsqueeze(1)
        scores.masked_fill_(full, -torch.inf)
        scores[:, required] = torch.where(full, due, scores[:, required])


def _only(scores: Tensor, token: int) -> Tensor:
    ruled = torch.full_like(scores, -torch.inf)
    ruled[:, token] = scores[:, token]
    return ruled
