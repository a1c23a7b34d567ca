"""Tokens, their ids, and captions of a data set in the tokens of a tokenizer."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Annotated

from pydantic import Field

from showattendtell.errors import UserError
from showattendtell.text.tokenizers import PlainTokenizer, Tokenizer, tokenize
from showattendtell.types import Caption, Dataset, Phrase

SPECIAL = ("<pad>", "<start>", "<eos>", "<unk>")
PAD, START, EOS, UNK = range(4)


class Vocabulary:
    """The words of a model and their ids, which are their positions. `len(vocabulary)` is V.

    A word is a token of any tokenizer.

    Args:
        words: different words; the first four are `<pad> <start> <eos> <unk>`.
        tokenizer: splits sentences into words, and joins words; by default `PlainTokenizer`.

    Raises:
        ValueError: a word is repeated, or the first ones are others.
    """

    def __init__(self, words: Sequence[str], tokenizer: Tokenizer | None = None):
        if tuple(words[: len(SPECIAL)]) != SPECIAL:
            raise ValueError(f"a vocabulary begins with {SPECIAL}, got {tuple(words[: len(SPECIAL)])}")
        self.words, self.tokenizer = tuple(words), tokenizer or PlainTokenizer()
        self.ids = {word: token for token, word in enumerate(self.words)}
        if len(self.ids) != len(self.words):
            raise ValueError("a vocabulary holds each word once")

    @classmethod
    def build(
        cls,
        captions: Iterable[Sequence[str]],
        size: Annotated[int, Field(gt=4)],
        tokenizer: Tokenizer | None = None,
    ) -> "Vocabulary":
        """Build a vocabulary of the most frequent words of captions; of equally frequent ones in alphabetical order.

        Args:
            captions: the words of each training caption.
            size: V, special words included.
            tokenizer: the tokenizer of the captions. If it decides on its tokens itself, those are the words.

        Raises:
            UserError: `size` has no room for a word.
        """
        if size <= len(SPECIAL):
            raise UserError(f"vocabulary.size must be above {len(SPECIAL)}, got {size}")
        if tokenizer is not None and tokenizer.tokens is not None:
            return cls([*SPECIAL, *tokenizer.tokens], tokenizer)
        counts = Counter(word for caption in captions for word in caption)
        by_frequency = sorted(counts.keys() - {*SPECIAL}, key=lambda word: (-counts[word], word))
        return cls([*SPECIAL, *by_frequency[: size - len(SPECIAL)]], tokenizer)

    def extended(self, words: Iterable[str]) -> "Vocabulary":
        """Return a vocabulary of these words after those of this one, whose ids stay the same."""
        return Vocabulary([*dict.fromkeys([*self.words, *words])], self.tokenizer)

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Sequence[str]) -> list[int]:
        """Return the ids of a caption's words, `<unk>` for unknown and special ones, followed by `<eos>`."""
        tokens = (self.ids.get(word, UNK) for word in words)
        return [token if token >= len(SPECIAL) else UNK for token in tokens] + [EOS]

    def decode(self, tokens: Iterable[int]) -> list[str]:
        """Return the words of a caption's ids, up to `<eos>`."""
        return [self.words[token] for token in takewhile(lambda token: token != EOS, tokens)]

    def text(self, tokens: Iterable[int]) -> str:
        """Return a caption's ids as a sentence."""
        return self.tokenizer.detokenize(self.decode(tokens))

    def coverage(self, captions: Iterable[Sequence[str]]) -> float:
        """Return the fraction of the words of captions that are in the vocabulary, 0 to 1."""
        is_known = [word in self.ids and word != SPECIAL[UNK] for caption in captions for word in caption]
        return sum(is_known) / max(len(is_known), 1)


def tokenized(dataset: Dataset, tokenizer: Tokenizer) -> Dataset:
    """Return the data set with captions in the tokens of a tokenizer. A phrase is at the first token of its noun."""
    if isinstance(tokenizer, PlainTokenizer):  # as all readers do
        return dataset

    def change(caption: Caption) -> Caption:
        words = tokenizer.tokenize(caption.sentence)
        phrases = _move_phrases(caption.phrases, caption.sentence, words, tokenizer) if caption.phrases else ()
        return caption._replace(words=words, plain=caption.plain_words, phrases=phrases)

    return dataset.map(lambda e: e._replace(captions=tuple(map(change, e.captions))))


def train_tokenizer(tokenizer: Tokenizer, dataset: Dataset, size: int) -> list[tuple[str, ...]]:
    """Train a tokenizer on the training captions, and return their tokens.

    Args:
        size: V, special words included.
    """
    train = dataset._replace(splits={"train": dataset.split("train")})
    sentences = (caption.sentence for example in train.examples() for caption in example.captions)
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
