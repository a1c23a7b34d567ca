"""Words and their ids."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from showattendtell.errors import UserError

SPECIAL = ("<pad>", "<start>", "<eos>", "<unk>")
PAD, START, EOS, UNK = range(4)


class Vocabulary:
    """The words of a model and their ids, which are their positions. `len(vocabulary)` is V.

    Args:
        words: different words; the first four are `<pad> <start> <eos> <unk>`.

    Raises:
        ValueError: a word is repeated, or the first four are others.
    """

    def __init__(self, words: Sequence[str]):
        if tuple(words[: len(SPECIAL)]) != SPECIAL:
            raise ValueError(f"a vocabulary begins with {SPECIAL}, got {tuple(words[: len(SPECIAL)])}")
        self.words = tuple(words)
        self._ids = {word: token for token, word in enumerate(self.words)}
        if len(self._ids) != len(self.words):
            raise ValueError("a vocabulary holds each word once")

    @classmethod
    def build(cls, captions: Iterable[Sequence[str]], size: Annotated[int, Field(gt=4)]) -> "Vocabulary":
        """Build a vocabulary of the most frequent words of captions; of equally frequent ones in alphabetical order.

        Args:
            captions: the words of each training caption.
            size: V, special words included.

        Raises:
            UserError: `size` has no room for a word.
        """
        if size <= len(SPECIAL):
            raise UserError(f"vocabulary.size must be above {len(SPECIAL)}, got {size}")
        counts = Counter(word for caption in captions for word in caption)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(SPECIAL + tuple(ranked[: size - len(SPECIAL)]))

    def extended(self, words: Iterable[str]) -> "Vocabulary":
        """Return a vocabulary of these words after those of this one, whose ids stay the same."""
        return Vocabulary([*dict.fromkeys([*self.words, *words])])

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Sequence[str]) -> list[int]:
        """Return the ids of a caption's words, `<unk>` for unknown ones, followed by `<eos>`."""
        return [self._ids.get(word, UNK) for word in words] + [EOS]

    def decode(self, tokens: Iterable[int]) -> list[str]:
        """Return the words of a caption's ids, up to `<eos>`."""
        words = []
        for token in tokens:
            if token == EOS:
                break
            words.append(self.words[token])
        return words

    def coverage(self, captions: Iterable[Sequence[str]]) -> float:
        """Return the fraction of the words of captions that are in the vocabulary, 0 to 1."""
        known = [word in self._ids for caption in captions for word in caption]
        return sum(known) / max(len(known), 1)
