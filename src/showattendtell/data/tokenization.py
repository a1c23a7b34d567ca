"""Captions of a data set in the tokens of a tokenizer."""

from collections.abc import Sequence

from showattendtell.data.assembly import map_examples
from showattendtell.data.tokenizers import PlainTokenizer, Tokenizer, tokenize
from showattendtell.data.vocabulary import SPECIAL
from showattendtell.types import Caption, Dataset, Phrase


def tokenized(dataset: Dataset, tokenizer: Tokenizer) -> Dataset:
    """Return the data set with captions in the tokens of a tokenizer. A phrase is at the first token of its noun."""
    if isinstance(tokenizer, PlainTokenizer):  # as all readers do
        return dataset

    def change(caption: Caption) -> Caption:
        plain = caption.plain or caption.words
        written = caption.written or " ".join(plain)
        words = tokenizer.tokenize(written)
        phrases = _move_phrases(caption.phrases, written, words, tokenizer) if caption.phrases else ()
        return caption._replace(words=words, plain=plain, phrases=phrases)

    return map_examples(dataset, lambda e: e._replace(captions=tuple(map(change, e.captions))))


def train_tokenizer(tokenizer: Tokenizer, dataset: Dataset, size: int) -> list[tuple[str, ...]]:
    """Train a tokenizer on the training captions, and return their tokens.

    Args:
        size: V, special words included.
    """
    train = dataset._replace(splits={"train": dataset.split("train")})
    sentences = (caption.written for example in train.examples() for caption in example.captions)
    tokenizer.train(sentences, size - len(SPECIAL))
    return [caption.words for example in tokenized(train, tokenizer).examples() for caption in example.captions]


def _move_phrases(
    phrases: Sequence[Phrase], written: str, words: tuple[str, ...], tokenizer: Tokenizer
) -> tuple[Phrase, ...]:
    """Return phrases whose nouns are indices of plain words, with indices of the tokens of the sentence."""
    parts = written.split()
    nouns = [i for i, part in enumerate(parts) if tokenize(part)]  # the part of each plain word
    moved = []
    for phrase in phrases:
        start = len(tokenizer.tokenize(" ".join(parts[: nouns[phrase.noun]])))
        for first in range(start, len(words)):
            if tokenize(tokenizer.detokenize(words[start : first + 1])):  # not punctuation or a space alone
                moved.append(phrase._replace(noun=first))
                break
    return tuple(moved)
