"""How captions are written: the settings that every way of writing has, in words."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import Tensor

from showattendtell.arguments import NonNegativeInt, PositiveInt, Text
from showattendtell.decode.rules import Rules
from showattendtell.decode.speaker import Speaker
from showattendtell.errors import UserError, did_you_mean
from showattendtell.records import Generated
from showattendtell.text.tokenize import tokenize
from showattendtell.text.vocabulary import PAD, START, UNK, Vocabulary


@dataclass(frozen=True, kw_only=True)
class Decoding(ABC):
    """How captions are written.

    num_captions: how many captions of each image are written.
    max_length: the longest caption in words, <eos> included.
    min_length: the fewest words before <eos>; a caption that no word may continue ends all the same.
    say_unknown: whether <unk> may be said.
    block_ngrams: no run of this many words stands twice in a caption; 0 blocks none.
    prefix: how every caption begins.
    required: words that every caption says.
    forbidden: words that no caption says.
    mirrored: read each photograph's mirror image as well, and let p of a word be the mean of both, in twice the time;
        attention is shown for the photograph as it is.
    precision: in which matrices are multiplied. bfloat16 is faster where the machine has a unit for it; words that are
        nearly as likely may then change places.
    """

    num_captions: PositiveInt = 1
    max_length: PositiveInt = 30
    min_length: NonNegativeInt = 0
    say_unknown: bool = True
    block_ngrams: NonNegativeInt = 0
    prefix: str = ""
    required: Sequence[Text] = ()
    forbidden: Sequence[Text] = ()
    mirrored: bool = False
    precision: Literal["float32", "bfloat16"] = "float32"

    @abstractmethod
    def write(self, speaker: Speaker, regions: Sequence[Tensor], vocabulary: Vocabulary) -> list[list[Generated]]:
        """`num_captions` captions of each image, best first.

        Args:
            regions: for each of the speaker's captioners (I, L, D).

        Raises `UserError` for words that the vocabulary lacks and for rules that contradict each other.
        """

    def describe(self) -> dict[str, Any]:
        """All settings, as result files hold them."""
        return {"method": type(self).__name__, **asdict(self)}

    def in_tokens(self, vocabulary: Vocabulary) -> "Rules":
        """The rules in the vocabulary's ids."""
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
        never = (PAD, START, *forbidden, *(() if self.say_unknown else (UNK,)))
        return Rules(tuple(prefix), tuple(unsaid), never, self.min_length, self.max_length, self.block_ngrams)


def _token(word: str, setting: str, vocabulary: Vocabulary) -> int:
    """The id of a word that the user names."""
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
