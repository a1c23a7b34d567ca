"""Decoding: base class and shared settings of all decoding methods."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import Tensor

from showattendtell.data.tokenizers import tokenize
from showattendtell.data.vocabulary import PAD, START, UNK, Vocabulary
from showattendtell.decoding.constraints import Constraints
from showattendtell.decoding.ensemble import Ensemble
from showattendtell.errors import UserError, did_you_mean
from showattendtell.settings import NonNegativeInt, PositiveInt, Text
from showattendtell.types import CaptionOutput


@dataclass(frozen=True, kw_only=True)
class Decoding(ABC):
    """Decoding method: how captions are generated.

    num_captions: the number of captions per image.
    max_length: the maximum length in words, <eos> included.
    min_length: the minimum number of words before <eos>; a caption without any allowed next word ends earlier.
    allow_unk: whether captions may contain <unk>.
    block_ngrams: no n-gram of this many words occurs twice in a caption; 0 blocks none.
    prefix: the first words of every caption.
    required: words that every caption contains.
    forbidden: words that no caption contains.
    mirrored: also read the mirror image and average the word probabilities of both; takes twice the time. Attention
        weights are those of the original image.
    precision: precision of matrix products. bfloat16 is faster on hardware that supports it, but may swap words of
        nearly equal probability.
    """

    num_captions: PositiveInt = 1
    max_length: PositiveInt = 30
    min_length: NonNegativeInt = 0
    allow_unk: bool = True
    block_ngrams: NonNegativeInt = 0
    prefix: str = ""
    required: Sequence[Text] = ()
    forbidden: Sequence[Text] = ()
    mirrored: bool = False
    precision: Literal["float32", "bfloat16"] = "float32"

    @abstractmethod
    def generate(
        self, ensemble: Ensemble, regions: Sequence[Tensor], vocabulary: Vocabulary
    ) -> list[list[CaptionOutput[Tensor]]]:
        """Return `num_captions` captions of each image, best first.

        Args:
            regions: (I, L, D) for each captioner of the ensemble.

        Raise `UserError` for words that are not in the vocabulary and for contradictory constraints.
        """

    def describe(self) -> dict[str, Any]:
        """Return all settings as they are stored in result files."""
        return {"method": type(self).__name__, **asdict(self)}

    def in_tokens(self, vocabulary: Vocabulary) -> "Constraints":
        """Return the constraints as token ids of the vocabulary."""
        prefix = [_token(word, "prefix", vocabulary) for word in tokenize(self.prefix)]
        required = dict.fromkeys(_token(word, "required", vocabulary) for word in self.required)
        forbidden = [_token(word, "forbidden", vocabulary) for word in self.forbidden]
        for token in {*prefix, *required} & {*forbidden}:
            raise UserError(f"'{vocabulary.words[token]}' is forbidden, and prefix or required ask for it")
        unsaid = [token for token in required if token not in prefix]
        if len(prefix) + len(unsaid) > self.max_length or self.min_length > self.max_length:
            raise UserError(
                f"captions of at most {self.max_length} words have no room for min_length={self.min_length}, "
                f"{len(prefix)} words of prefix and {len(unsaid)} that are required; raise max_length"
            )
        if 0 < self.block_ngrams <= len(prefix) and _repeats(prefix, self.block_ngrams):
            raise UserError(
                f"the prefix '{self.prefix}' itself says {self.block_ngrams} words in a row twice; raise block_ngrams"
            )
        never = (PAD, START, *forbidden, *(() if self.allow_unk else (UNK,)))
        return Constraints(tuple(prefix), tuple(unsaid), never, self.min_length, self.max_length, self.block_ngrams)


def _token(word: str, setting: str, vocabulary: Vocabulary) -> int:
    """Return the token id of a word that the user gives."""
    split = tokenize(word)
    if len(split) != 1:
        raise UserError(f"{setting}: '{word}' is not one word; give words one by one, as [dog,ball]")
    [token, _] = vocabulary.encode(split)
    if token == UNK:
        raise UserError(f"{setting}: the model does not know the word '{split[0]}'{_similar(split[0], vocabulary)}")
    return token


def _similar(word: str, vocabulary: Vocabulary) -> str:
    hint = did_you_mean(word, vocabulary.words)
    return hint if "did you mean" in hint else f"; it knows {len(vocabulary):,} words"


def _repeats(tokens: Sequence[int], size: int) -> bool:
    runs = [tuple(tokens[start : start + size]) for start in range(len(tokens) - size + 1)]
    return len(set(runs)) < len(runs)
