"""A tokenizer of captions."""

from showattendtell.text.tokenizers import Tokenizer, tokenize


class HyphenTokenizer(Tokenizer):
    """Lower-case words without punctuation; the parts of a hyphenated word are words: a t-shirt is two."""

    def tokenize(self, sentence: str) -> tuple[str, ...]:
        return tokenize(sentence.replace("-", " "))
