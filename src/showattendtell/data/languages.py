"""Captions in other languages than English, in several of them, and of other tokenizers than the plain one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from showattendtell.data.assembly import map_examples
from showattendtell.data.tokenizers import PlainTokenizer, Tokenizer, tokenize
from showattendtell.data.vocabulary import SPECIAL
from showattendtell.errors import UserError, did_you_mean
from showattendtell.settings import Text
from showattendtell.types import Caption, Dataset, Example, Phrase

Language = Annotated[str, Field(pattern=r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*$")]
"""The code of a language, such as `en`, `zh` or `pt-BR`."""

CaptionFiles = Text | Annotated[Mapping[Language, Text], Field(min_length=1)]
"""A caption file, or the caption file of each language by its code."""


def read_languages(captions: CaptionFiles | None, read: Callable[[Any], Dataset]) -> Dataset:
    """Read a data set with captions in one or several languages.

    Args:
        captions: a caption file, one per language, or None for the reader's default.
        read: returns the data set with the captions of a file.

    Returns:
        The data set. Each image has the captions of all languages, and a note counts the images that lack one.

    Raises:
        UserError: an image is in different splits of two languages.
    """
    if captions is None or isinstance(captions, str):
        return read(captions)
    parts = {language: read(file) for language, file in captions.items()}
    notes = [f"{language}: {note}" for language, dataset in parts.items() for note in dataset.notes]
    merged: dict[str, tuple[str, Example]] = {}  # split and example of each image
    for language, dataset in parts.items():
        for split, examples in dataset.splits.items():
            for example in examples:
                image = example.image
                first_split, known = merged.get(image, (split, example._replace(captions=())))
                if split != first_split:
                    raise UserError(f"image {image} is in {first_split}, and in {language} in {split}; give it one")
                spoken = (caption._replace(language=language) for caption in example.captions)
                merged[image] = split, known._replace(captions=(*known.captions, *spoken))
    splits: dict[str, list[Example]] = {}
    for split, example in merged.values():
        splits.setdefault(split, []).append(example)
    for language, dataset in parts.items():
        if lacking := len(merged) - len(dataset.examples()):
            notes.append(f"{language}: images with captions in other languages only: {lacking:,}")
    return Dataset(dataset.name, {split: tuple(examples) for split, examples in splits.items()}, tuple(notes))


def languages_of(examples: Iterable[Example]) -> tuple[str, ...]:
    """Return the different languages of captions; one is empty if the data set does not say it."""
    return tuple(dict.fromkeys(caption.language for example in examples for caption in example.captions))


def in_language(dataset: Dataset, language: str) -> Dataset:
    """Return the data set with the captions of one language, and without the images that have none.

    Raises:
        UserError: no image has captions in the language.
    """
    languages = languages_of(dataset.examples())
    if language not in languages:
        hint = did_you_mean(language, filter(None, languages)) if any(languages) else "; it does not name the language"
        raise UserError(f"{dataset.name} has no captions in the language '{language}'{hint}")

    spoken = map_examples(
        dataset, lambda e: e._replace(captions=tuple(caption for caption in e.captions if caption.language == language))
    )
    return spoken.without(example.image for example in spoken.examples() if not example.captions)


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


def train_tokenizer(tokenizer: Tokenizer, dataset: Dataset, size: int) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Train a tokenizer on the training captions. Return their tokens and their languages, if there are several, for
    `Vocabulary.build`.

    Args:
        size: V, special words included.
    """
    train = dataset._replace(splits={"train": dataset.split("train")})
    languages = languages_of(train.examples())
    if len(languages) == 1:
        languages = ()
    sentences = (caption.written for example in train.examples() for caption in example.captions)
    tokenizer.train(sentences, size - len(SPECIAL) - len(languages))
    captions = [caption.words for example in tokenized(train, tokenizer).examples() for caption in example.captions]
    return captions, languages


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
