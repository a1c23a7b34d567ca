"""Decoding: the base class of all decoding methods, ensembles of captioners, and constraints on captions.

R is the number of captions that are extended together. The other sizes are those of `showattendtell.types`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, get_type_hints

import torch
from torch import Tensor

from showattendtell.errors import UserError, did_you_mean
from showattendtell.models.captioner import Captioner, IncrementalDecoder, StepOutput
from showattendtell.models.interfaces import DecoderState
from showattendtell.settings import Count, NonNegativeInt, Text, check_values
from showattendtell.text.vocabulary import EOS, PAD, START, UNK, Vocabulary
from showattendtell.types import CaptionOutput

Precision = Literal["float32", "bfloat16"]

Captions = list[list[CaptionOutput[Tensor]]]
"""The captions of each image, best first."""


class EnsembleState(NamedTuple):
    """The decoder states of every captioner, (P, n) each, and the images (P,) of the P captions, ascending."""

    states: tuple[DecoderState, ...]
    images: Tensor

    def index_select(self, captions: Tensor) -> "EnsembleState":
        return EnsembleState(tuple(state.select(captions) for state in self.states), self.images[captions])


class EnsembleDecoder:
    """Decode images with an ensemble: p of a word is the mean over the captioners; alpha, beta and locations are those
    of the first captioner."""

    def __init__(self, decoders: Sequence[IncrementalDecoder], precision: Precision):
        self._decoders, self._precision = tuple(decoders), precision

    def init_state(self) -> EnsembleState:
        """Return the states before the first word, one per image."""
        states = tuple(decoder.initial_state for decoder in self._decoders)
        return EnsembleState(states, torch.arange(len(states[0].hidden), device=states[0].hidden.device))

    def step(self, prefixes: EnsembleState, prefix_index: Tensor, tokens: Tensor) -> tuple[StepOutput, EnsembleState]:
        """Decode one word; return the first captioner's output with the mean p, and the states of all captioners.

        Args:
            prefixes: the states of P prefixes, see `models.captioner`.
            prefix_index: (B,) the prefix that each caption continues.
            tokens: (B,) the last word of each caption.
        """
        pairs = zip(self._decoders, prefixes.states, strict=True)
        with autocast_to(self._precision, tokens.device):
            steps = [decoder.step(state, prefixes.images, prefix_index, tokens) for decoder, state in pairs]
        states = EnsembleState(tuple(step.state for step in steps), prefixes.images[prefix_index])
        if len(steps) == 1:
            return steps[0], states
        # log of the mean p over K captioners: log sum_k p_k - log K, with p_k normalized first
        scores = torch.stack([step.scores - step.normalizers.unsqueeze(1) for step in steps]).logsumexp(dim=0)
        normalizers = torch.full_like(steps[0].normalizers, math.log(len(steps)))
        return steps[0]._replace(scores=scores, normalizers=normalizers), states


class Ensemble:
    """An ensemble of one or more captioners; valid until their weights change.

    A captioner that is listed twice gets double weight; its matrices are prepared once.

    Args:
        precision: precision of the matrix products.
    """

    def __init__(self, captioners: Sequence[Captioner], precision: Precision = "float32"):
        self._precision = precision
        device = next(captioners[0].parameters()).device
        with autocast_to(precision, device):
            prepared = {captioner: captioner.decoder.incremental(captioner) for captioner in dict.fromkeys(captioners)}
        self._prepared = [prepared[captioner] for captioner in captioners]

    def make_decoder(self, regions: Sequence[Tensor]) -> EnsembleDecoder:
        """Return a decoder for images, given their regions (I, L, D) for each captioner."""
        with autocast_to(self._precision, regions[0].device):
            decoders = [prepare(given) for prepare, given in zip(self._prepared, regions, strict=True)]
        return EnsembleDecoder(decoders, self._precision)


def autocast_to(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return an autocast to bfloat16, or a context that does nothing for float32."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()


class Constraints(NamedTuple):
    """Decoding constraints in tokens; see `Decoding` for the settings.

    prefix      the first tokens of every caption
    suppressed  tokens that no caption contains
    """

    prefix: tuple[int, ...] = ()
    suppressed: tuple[int, ...] = ()
    min_length: int = 0
    no_repeat_ngram_size: int = 0

    def apply(self, scores: Tensor, tokens: Tensor) -> Tensor:
        """Set the scores (R, V) of the next word of captions (R, t) to -inf, in place, where it is forbidden.

        `<eos>` is forbidden before the minimum length. A caption without any allowed word ends.

        Returns:
            The scores; in the prefix a new tensor.
        """
        length = tokens.shape[1]
        if length < len(self.prefix):
            forced = torch.full_like(scores, -torch.inf)
            forced[:, self.prefix[length]] = scores[:, self.prefix[length]]
            return forced
        eos_scores = scores[:, EOS].clone()
        scores[:, list(self.suppressed)] = -torch.inf
        if length < self.min_length:
            scores[:, EOS] = -torch.inf
        if 0 < self.no_repeat_ngram_size <= length:
            # a word is blocked if it follows, in an n-gram of the caption, the last n - 1 words of the caption
            ngrams = tokens.unfold(1, self.no_repeat_ngram_size, 1)  # (R, t - n + 1, n)
            last_words = tokens[:, tokens.shape[1] - self.no_repeat_ngram_size + 1 :].unsqueeze(1)  # (R, 1, n - 1)
            repeats = (ngrams[:, :, :-1] == last_words).all(dim=2)
            counts = torch.zeros_like(scores).scatter_add_(1, ngrams[:, :, -1], repeats.to(scores))  # (R, V)
            scores.masked_fill_(counts > 0, -torch.inf)
        if length < self.min_length or self.no_repeat_ngram_size:
            all_blocked = scores.isneginf().all(dim=1)
            scores[:, EOS] = torch.where(all_blocked, eos_scores, scores[:, EOS])
        return scores


@dataclass(frozen=True, kw_only=True)
class Decoding(ABC):
    """Decoding method: how captions are generated.

    Args:
        num_captions: the number of captions per image.
        max_length: the maximum length in words, <eos> included.
        min_length: the minimum number of words before <eos>; a caption without any allowed next word ends earlier.
        allow_unk: whether captions may contain <unk>.
        no_repeat_ngram_size: no n-gram of this many words occurs twice in a caption; 0 blocks none.
        prefix: the first words of every caption.
        forbidden: words that no caption contains.
        precision: precision of matrix products. bfloat16 is faster on hardware that supports it, but may swap words of
            nearly equal probability.
    """

    num_captions: Count = 1
    max_length: Count = 30
    min_length: NonNegativeInt = 0
    allow_unk: bool = True
    no_repeat_ngram_size: NonNegativeInt = 0
    prefix: str = ""
    forbidden: Sequence[Text] = ()
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        check_values(vars(self), get_type_hints(type(self), include_extras=True))

    @abstractmethod
    def generate(self, ensemble: Ensemble, regions: Sequence[Tensor], vocabulary: Vocabulary) -> Captions:
        """Return `num_captions` captions of each image, best first.

        Args:
            regions: the regions (I, L, D) of the same images for each captioner of the ensemble.

        Raises:
            UserError: a word of the constraints is not in the vocabulary, or constraints contradict each other.
        """

    def describe(self) -> dict[str, Any]:
        """Return all settings as they are stored in result files."""
        return {"method": type(self).__name__, **asdict(self)}

    def in_tokens(self, vocabulary: Vocabulary) -> Constraints:
        """Return the constraints as token ids of the vocabulary. Raise `UserError` as `generate` does."""
        prefix = [_known_token(word, "prefix", vocabulary) for word in vocabulary.tokenizer.tokenize(self.prefix)]
        forbidden = [_forbidden_token(word, vocabulary) for word in self.forbidden]
        for token in {*prefix} & {*forbidden}:
            raise UserError(f"'{vocabulary.words[token]}' is forbidden, but prefix contains it")
        if max(len(prefix), self.min_length) > self.max_length:
            raise UserError(
                f"captions of at most {self.max_length} words have no room for min_length={self.min_length} and "
                f"{len(prefix)} words of prefix; raise max_length"
            )
        suppressed = [PAD, START, *forbidden]
        if not self.allow_unk:
            suppressed.append(UNK)
        return Constraints(tuple(prefix), tuple(suppressed), self.min_length, self.no_repeat_ngram_size)


def _forbidden_token(word: str, vocabulary: Vocabulary) -> int:
    """Return the token id of a forbidden word. Raise `UserError` if it is not one token of the vocabulary."""
    tokens = vocabulary.tokenizer.tokenize(word)
    if len(tokens) != 1:
        raise UserError(f"forbidden: '{word}' is {len(tokens)} tokens, and must be one; give words as [dog,ball]")
    return _known_token(tokens[0], "forbidden", vocabulary)


def _known_token(word: str, setting: str, vocabulary: Vocabulary) -> int:
    """Return the id of a token. Raise `UserError` if the vocabulary does not have it."""
    token = vocabulary.ids.get(word, UNK)
    if token == UNK:
        hint = did_you_mean(word, vocabulary.words)
        known = hint if "did you mean" in hint else f"; it knows {len(vocabulary):,} words"
        raise UserError(f"{setting}: the model does not know the word '{word}'{known}")
    return token
