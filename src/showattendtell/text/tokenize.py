"""From a sentence to words, as Karpathy's published splits have them."""

import string
from functools import cache

_DROP_PUNCTUATION = str.maketrans("", "", string.punctuation + "\u2018\u2019\u201c\u201d\u2026")  # ‘ ’ “ ” …


def tokenize(sentence: str) -> tuple[str, ...]:
    """Lower case, punctuation deleted, split at white space.

    >>> tokenize("A dog 's T-shirt , torn .")
    ('a', 'dog', 's', 'tshirt', 'torn')
    """
    return tuple(filter(None, map(_word, sentence.lower().split())))


@cache
def _word(token: str) -> str:
    """What stands between white space, less its punctuation; the same object however often it is said."""
    return token.translate(_DROP_PUNCTUATION)
