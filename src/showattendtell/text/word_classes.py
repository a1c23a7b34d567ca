"""The classes of words between which a captioner's use of the image is compared: the closed classes by list."""

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
"""Every class; whatever stands in no list, nouns and verbs and adjectives, is content."""


def word_class(word: str) -> str:
    """One of `WORD_CLASSES`.

    >>> word_class("on"), word_class("dog"), word_class("<eos>")
    ('preposition', 'content', 'end')
    """
    return _CLASS.get(word, CONTENT)
