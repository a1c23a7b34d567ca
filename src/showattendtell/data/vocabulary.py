"""Tokens and their ids."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from showattendtell.data.tokenizers import PlainTokenizer, Tokenizer
from showattendtell.errors import UserError, did_you_mean
from showattendtell.types import Caption

SPECIAL = ("<pad>", "<start>", "<eos>", "<unk>")
PAD, START, EOS, UNK = range(4)


def language_word(language: str) -> str:
    """Return the word of a language, with which its captions begin."""
    return f"<{language}>"


class Vocabulary:
    """The words of a model and their ids, which are their positions. `len(vocabulary)` is V.

    A word is a token of any tokenizer. In a vocabulary of several languages a caption begins with the word of its
    language, such as `<de>`.

    Args:
        words: different words; the first four are `<pad> <start> <eos> <unk>`, followed by those of the languages.
        tokenizer: splits sentences into words, and joins words; by default `PlainTokenizer`.
        languages: the codes of the languages; empty for a vocabulary of one language.

    Attributes:
        offset: number of tokens before the words of a caption: 1, its language, if there are several.

    Raises:
        ValueError: a word is repeated, or the first ones are others.
    """

    def __init__(self, words: Sequence[str], tokenizer: Tokenizer | None = None, languages: Sequence[str] = ()):
        first = (*SPECIAL, *map(language_word, languages))
        if tuple(words[: len(first)]) != first:
            raise ValueError(f"a vocabulary begins with {first}, got {tuple(words[: len(first)])}")
        self.words = tuple(words)
        self.tokenizer, self.languages = tokenizer or PlainTokenizer(), tuple(languages)
        self.offset = int(bool(self.languages))
        self.ids = {word: token for token, word in enumerate(self.words)}
        if len(self.ids) != len(self.words):
            raise ValueError("a vocabulary holds each word once")

    @classmethod
    def build(
        cls,
        captions: Iterable[Sequence[str]],
        size: Annotated[int, Field(gt=4)],
        tokenizer: Tokenizer | None = None,
        languages: Sequence[str] = (),
    ) -> "Vocabulary":
        """Build a vocabulary of the most frequent words of captions; of equally frequent ones in alphabetical order.

        Args:
            captions: the words of each training caption.
            size: V, special words included.
            tokenizer: the tokenizer of the captions. If it decides on its tokens itself, those are the words.
            languages: the codes of the captions' languages, if there are several.

        Raises:
            UserError: `size` has no room for a word.
        """
        first = (*SPECIAL, *map(language_word, languages))
        if size <= len(first):
            raise UserError(f"vocabulary.size must be above {len(first)}, got {size}")
        if tokenizer is not None and tokenizer.tokens is not None:
            return cls([*first, *tokenizer.tokens], tokenizer, languages)
        counts = Counter(word for caption in captions for word in caption)
        by_frequency = sorted(counts.keys() - {*first}, key=lambda word: (-counts[word], word))
        return cls(first + tuple(by_frequency[: size - len(first)]), tokenizer, languages)

    def extended(self, words: Iterable[str]) -> "Vocabulary":
        """Return a vocabulary of these words after those of this one, whose ids stay the same."""
        return Vocabulary([*dict.fromkeys([*self.words, *words])], self.tokenizer, self.languages)

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Sequence[str], language: str = "") -> list[int]:
        """Return the ids of a caption's words, `<unk>` for unknown and special ones, followed by `<eos>`.

        With several languages the first id is that of the language.

        Raises:
            UserError: as `language_token`.
        """
        prefix = [self.language_token(language)] if self.languages else []
        first = len(SPECIAL) + len(self.languages)
        tokens = (self.ids.get(word, UNK) for word in words)
        return prefix + [token if token >= first else UNK for token in tokens] + [EOS]

    def with_language(self, caption: Caption) -> tuple[str, ...]:
        """Return the words of a caption, with several languages after the word of its language."""
        return (language_word(caption.language), *caption.words) if self.languages else caption.words

    def decode(self, tokens: Iterable[int]) -> list[str]:
        """Return the words of a caption's ids, up to `<eos>` and without that of the language."""
        words = []
        for token in tokens:
            if token == EOS:
                break
            if not len(SPECIAL) <= token < len(SPECIAL) + len(self.languages):
                words.append(self.words[token])
        return words

    def text(self, tokens: Iterable[int]) -> str:
        """Return a caption's ids as a sentence."""
        return self.tokenizer.detokenize(self.decode(tokens))

    def language_token(self, language: str) -> int:
        """Return the id of a language. Raise `UserError` if it is none of the vocabulary's."""
        if language not in self.languages:
            hint = did_you_mean(language, self.languages) if self.languages else ", it has one language; leave it out"
            raise UserError(f"the model does not write '{language}'{hint}")
        return len(SPECIAL) + self.languages.index(language)

    def coverage(self, captions: Iterable[Sequence[str]]) -> float:
        """Return the fraction of the words of captions that are in the vocabulary, 0 to 1."""
        is_known = [word in self.ids and word != SPECIAL[UNK] for caption in captions for word in caption]
        return sum(is_known) / max(len(is_known), 1)
