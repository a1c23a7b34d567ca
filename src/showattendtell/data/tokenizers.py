"""Tokenization of captions as in Karpathy's files, n-grams, and word classes."""

import string
from collections import Counter
from collections.abc import Hashable, Sequence
from functools import cache
from typing import TypeVar

_QUOTES = "\u2018\u2019\u201c\u201d\u2026"  # ‘ ’ “ ” …
_CONTROLS = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))
_DROPPED = str.maketrans("", "", string.punctuation + _QUOTES + _CONTROLS)


def tokenize(sentence: str) -> tuple[str, ...]:
    """Convert to lower case, delete punctuation and split at white space.

    >>> tokenize("A dog 's T-shirt , torn .")
    ('a', 'dog', 's', 'tshirt', 'torn')
    """
    return tuple(filter(None, map(_word, sentence.lower().split())))


@cache
def _word(token: str) -> str:
    """Return a token without punctuation and control characters. Equal words are one object, which saves memory."""
    return token.translate(_DROPPED)


ORDERS = 4
"""Maximum length of n-grams."""

Item = TypeVar("Item", bound=Hashable)
Counts = list[Counter[tuple[Item, ...]]]
"""Counts of the n-grams of a caption, for lengths from 1 to `ORDERS`."""


def count_ngrams(words: Sequence[Item]) -> Counts[Item]:
    """Count the n-grams of a caption: of its words, or of their ids.

    Raises:
        TypeError: The caption is a string, whose characters would be counted.
    """
    if isinstance(words, str):
        raise TypeError(f"the caption {words[:60]!r} is a string; split it into words")
    return [Counter(zip(*(words[first:] for first in range(n)), strict=False)) for n in range(1, ORDERS + 1)]


_CLOSED = {
    "determiner": "a an the this that these those some any each every another other both all no",
    "preposition": "about above across after against along among around as at before behind below beneath beside "
    "between by down during for from in inside into near next of off on onto out outside over past through to toward "
    "towards under up upon while with without",
    "verb_form": "am are be been being can could did do does doing had has have having is may might was were will "
    "would",
    "conjunction": "and but or nor so than then when where",
    "pronoun": "he her hers him his i it its itself one ones she their theirs them themselves they we who whose "
    "which you",
    "number": "two three four five six seven eight nine ten several many few",
    "end": "<eos>",
}
_CLASS = {word: name for name, words in _CLOSED.items() for word in words.split()}

CONTENT = "content"
WORD_CLASSES = (*_CLOSED, CONTENT)
"""Word classes. Words that are in no list (nouns, verbs, adjectives) are content words."""


def word_class(word: str) -> str:
    """Return the class of a word, one of `WORD_CLASSES`.

    >>> word_class("on"), word_class("dog"), word_class("<eos>")
    ('preposition', 'content', 'end')
    """
    return _CLASS.get(word, CONTENT)
