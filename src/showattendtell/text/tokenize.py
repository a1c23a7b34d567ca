"""From a sentence to words, as Karpathy's published splits have them."""

import string

_DROP_PUNCTUATION = str.maketrans("", "", string.punctuation + "\u2018\u2019\u201c\u201d\u2026")  # ‘ ’ “ ” …

TOKENIZER = "plain"
"""The name that result files give to this way of splitting."""


def tokenize(sentence: str) -> tuple[str, ...]:
    """Lower case, punctuation deleted, split at white space.

    >>> tokenize("A dog 's T-shirt , torn .")
    ('a', 'dog', 's', 'tshirt', 'torn')
    """
    return tuple(sentence.lower().translate(_DROP_PUNCTUATION).split())
