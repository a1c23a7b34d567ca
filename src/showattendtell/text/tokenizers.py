"""Tokenizers of captions.

A tokenizer splits a sentence into tokens, which are strings, and joins tokens to a sentence. Ids of tokens are those of
the `Vocabulary`.
"""

import json
import os
import re
import string
import sys
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from inspect import signature
from itertools import pairwise
from typing import Any

import regex  # type: ignore[import-untyped]

from showattendtell.errors import UserError, first_line

_QUOTES = "\u2018\u2019\u201c\u201d\u2026"  # ‘ ’ “ ” …
_CONTROLS = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))
_DROPPED = str.maketrans("", "", string.punctuation + _QUOTES + _CONTROLS)


def tokenize(sentence: str) -> tuple[str, ...]:
    """Convert to lower case, delete punctuation and split at white space.

    >>> tokenize("A dog 's T-shirt , torn .")
    ('a', 'dog', 's', 'tshirt', 'torn')
    """
    return tuple(filter(None, map(_word, sentence.lower().split())))


@lru_cache(maxsize=2**16)
def _word(token: str) -> str:
    """Return a token without punctuation and control characters. Equal words are one object, which saves memory."""
    return sys.intern(token.translate(_DROPPED))


class Tokenizer(ABC):
    """Splits captions into the tokens of a model, and joins generated tokens to a sentence.

    A class of your own defines `tokenize`; `separator` and `replacements` if its tokens are not joined by spaces; and
    `train`, `tokens`, `state` and `load_state` if it learns from the training captions.

    Attributes:
        separator: text between two tokens.
        replacements: pairs of a regular expression and its replacement, applied to the joined text in this order. The
            text of the first tokens must stay the beginning of the text of all.
        needs_spaces: whether it splits a sentence at white space alone.
    """

    separator = " "
    replacements = tuple[tuple[str, str], ...]()
    needs_spaces = False

    @abstractmethod
    def tokenize(self, sentence: str) -> tuple[str, ...]:
        """Split a sentence into tokens."""

    def detokenize(self, tokens: Iterable[str]) -> str:
        """Join tokens to a sentence."""
        text = self.separator.join(tokens)
        for pattern, replacement in self.replacements:
            text = re.sub(pattern, replacement, text)
        return text

    def joining(self) -> dict[str, Any]:
        """Return how `detokenize` joins tokens, as plain data for programs without this package."""
        return {"separator": self.separator, "replacements": [list(pair) for pair in self.replacements]}

    def parts(self, tokens: Sequence[str]) -> tuple[str, ...]:
        """Return the part of the sentence that each token adds, with the space before it; they join to the sentence."""
        ends = [len(self.detokenize(tokens[:i])) for i in range(len(tokens) + 1)]
        text = self.detokenize(tokens)
        return tuple(text[start:end] for start, end in pairwise(ends))

    def settings(self) -> dict[str, Any]:
        """Return the node of a configuration that builds this tokenizer. Attributes have the names of arguments."""
        cls = type(self)
        arguments = {name: getattr(self, name) for name in signature(cls).parameters}
        return {"_target_": f"{cls.__module__}.{cls.__qualname__}", **arguments}

    def train(self, sentences: Iterable[str], size: int) -> None:  # noqa: B027  # most have nothing to learn
        """Learn from the training captions.

        Args:
            size: the largest number of tokens.

        Raises:
            UserError: the size is too small.
        """

    @property
    def tokens(self) -> tuple[str, ...] | None:
        """All tokens, if training decides them; None if the vocabulary keeps the most frequent ones."""
        return None

    def state(self) -> dict[str, Any]:
        """Return what `train` learned as plain data, which checkpoints store."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Restore what `state` returned. The data may come from a stranger.

        Raises:
            UserError: it is not what `state` returns.
        """


class PlainTokenizer(Tokenizer):
    """Lower-case words without punctuation, split at white space; see `tokenize`."""

    needs_spaces = True

    def tokenize(self, sentence: str) -> tuple[str, ...]:
        return tokenize(sentence)


class WhitespaceTokenizer(Tokenizer):
    """Words between white space, with case and punctuation as they were written."""

    needs_spaces = True

    def tokenize(self, sentence: str) -> tuple[str, ...]:
        return tuple(map(sys.intern, sentence.split()))


# scripts without spaces between words: Thai and Lao, Myanmar, Khmer; Japanese kana and Chinese characters
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
    "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_UNSPACED = re.compile(f"[{UNSPACED}]")
SEGMENTED = 3
"""Number of parts between white space from which a sentence counts as segmented into words."""

_BOUNDARY = regex.compile(r"\b", regex.WORD | regex.VERSION1)
_SPACES = str.maketrans(dict.fromkeys(_CONTROLS, " "))


def are_unspaced(sentences: Iterable[str]) -> bool:
    """Return whether most sentences are in a script without spaces between words, such as Chinese or Thai, which has
    spaces between phrases, and are not segmented into words."""
    found = [bool(_UNSPACED.search(sentence)) and len(sentence.split()) < SEGMENTED for sentence in sentences]
    return 2 * sum(found) > len(found)


def describe_unspaced(sentences: Iterable[str], tokenizer: Tokenizer | type[Tokenizer]) -> list[str]:
    """Return a note if the tokenizer does not find the words of the sentences."""
    if not tokenizer.needs_spaces or not are_unspaced(sentences):
        return []
    return ["captions in a script without spaces are one word each; set tokenizer=words"]


def _normalized(sentence: str, lowercase: bool) -> str:
    """Return a sentence in Unicode's NFC, without control characters and with single spaces."""
    text = " ".join(unicodedata.normalize("NFC", sentence).translate(_SPACES).split())
    return text.lower() if lowercase else text


class WordTokenizer(Tokenizer):
    """Unicode words (UAX #29) without punctuation, by the package regex.

    In scripts without spaces between words there is no dictionary: each Chinese character is a token, as is each run of
    katakana. Sentences in such a script are joined without spaces.

    Args:
        lowercase: convert to lower case.
    """

    replacements = ((f"(?<=[{UNSPACED}]) | (?=[{UNSPACED}])", ""),)

    def __init__(self, lowercase: bool = True):
        self.lowercase = lowercase

    def tokenize(self, sentence: str) -> tuple[str, ...]:
        parts = _BOUNDARY.split(_normalized(sentence, self.lowercase))
        return tuple(sys.intern(part) for part in parts if any(map(str.isalnum, part)))


SPACE = "\u2581"
"""The character of a space in tokens of parts of words: ▁."""


class CharacterTokenizer(Tokenizer):
    """Characters with their accents (grapheme clusters). Case and punctuation are kept; a space is the token `▁`.

    Args:
        lowercase: convert to lower case.
    """

    separator, replacements = "", ((SPACE, " "), ("^ ", ""))

    def __init__(self, lowercase: bool = False):
        self.lowercase = lowercase

    def tokenize(self, sentence: str) -> tuple[str, ...]:
        clusters = regex.findall(r"\X", _normalized(sentence, self.lowercase).replace(" ", SPACE))
        return tuple(map(sys.intern, clusters))


_UNKNOWN = "<unk>"


class SubwordTokenizer(Tokenizer):
    """Parts of words by byte-pair encoding (Sennrich et al. 2016), learned from the training captions.

    Case and punctuation are kept. `vocabulary.size` limits the number of tokens: frequent words are one token, others
    several. A space before a word is `▁` at the beginning of its first token. The encoding is that of the package
    tokenizers of Hugging Face.

    Args:
        lowercase: convert to lower case.
    """

    separator, replacements = "", ((SPACE, " "), ("^ ", ""))

    def __init__(self, lowercase: bool = False):
        self.lowercase = lowercase
        self._trained: Any = None

    def tokenize(self, sentence: str) -> tuple[str, ...]:
        if self._trained is None:
            raise ValueError("this tokenizer has learned nothing yet; call its method train first")
        return tuple(map(sys.intern, self._trained.encode(_normalized(sentence, self.lowercase)).tokens))

    def train(self, sentences: Iterable[str], size: int) -> None:
        from tokenizers import models, trainers

        self._trained = _byte_pair_encoding(models.BPE(unk_token=_UNKNOWN))
        trainer = trainers.BpeTrainer(
            vocab_size=size + 1, limit_alphabet=size, special_tokens=[_UNKNOWN], show_progress=False
        )
        self._trained.train_from_iterator([_normalized(sentence, self.lowercase) for sentence in sentences], trainer)
        self.load_state(self.state())  # without the special token, which would be found in sentences

    @property
    def tokens(self) -> tuple[str, ...] | None:
        if self._trained is None:
            return None
        ids = self._trained.get_vocab(with_added_tokens=False)
        return tuple(sorted(ids, key=ids.__getitem__)[1:])  # without `<unk>`

    def state(self) -> dict[str, Any]:
        """Return the JSON that `tokenizers.Tokenizer.from_str` reads."""
        return {} if self._trained is None else json.loads(self._trained.to_str())

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the tokens and merges of `state`. The rest is ignored: it could hold costly regular expressions."""
        from tokenizers import models

        try:
            vocab, merges = state["model"]["vocab"], [(first, second) for first, second in state["model"]["merges"]]
            if sorted(vocab.values()) != list(range(len(vocab))) or vocab[_UNKNOWN] != 0:
                raise ValueError(f"its ids are not 0, 1, 2, ..., of which {_UNKNOWN} has the first")
            self._trained = _byte_pair_encoding(models.BPE(vocab, merges, unk_token=_UNKNOWN))
        except Exception as error:  # the package raises no type of its own
            raise UserError(f"the tokenizer was altered ({first_line(error)})") from None


def _byte_pair_encoding(model: Any) -> Any:
    """Return a tokenizer of Hugging Face that splits sentences at spaces and around punctuation first."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # worker processes are forked later
    from tokenizers import Tokenizer as HuggingFaceTokenizer
    from tokenizers import decoders, normalizers, pre_tokenizers

    tokenizer = HuggingFaceTokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="always"), pre_tokenizers.Punctuation("isolated")]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return tokenizer
