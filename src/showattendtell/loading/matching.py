"""Matching of generated captions in files with the reference captions of the same images."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from showattendtell.errors import MetricError, UserError, did_you_mean, listed
from showattendtell.images.names import Names
from showattendtell.metrics.tokenizers import SCORING, split_sentences
from showattendtell.readers.formats import PLAIN
from showattendtell.runtime.files import sha256
from showattendtell.text.parsing import CaptionFile, Sentences
from showattendtell.text.tokenizers import describe_unspaced

Files = Mapping[Path, CaptionFile]
CaptionT = TypeVar("CaptionT", str, list[str])


class MatchedCaptions(NamedTuple, Generic[CaptionT]):
    """Hypotheses and reference captions of N images, as sentences or as lists of words.

    images      N names
    references  N lists of reference captions
    hypotheses  by file, N generated captions
    notes       a sentence for each kind of skipped entry
    """

    images: list[str]
    references: list[list[CaptionT]]
    hypotheses: dict[Path, list[CaptionT]]
    notes: tuple[str, ...] = ()

    @property
    def num_references(self) -> int:
        """The number of reference captions."""
        return sum(map(len, self.references))

    def title(self) -> str:
        """Return the hypothesis files, numbered if there are several, and the size of the corpus."""
        size = f"{len(self.images):,} images with {self.num_references:,} references"
        if len(self.hypotheses) == 1:
            return f"{next(iter(self.hypotheses))}: {size}"
        return "\n".join([size, *(f"({i}) {path}" for i, path in enumerate(self.hypotheses, start=1))])


def match(hypotheses: Files, references: Files, split: str | None, partial: bool) -> MatchedCaptions[str]:
    """Match the captions of every hypothesis file with the reference captions of the same images.

    Different names of an image are unified: its number in COCO, and its path, as `caption` writes it.

    Args:
        references: reference files. Without any, the hypotheses are results of `evaluate`, which have the references.
        split: the split to score, of references that have splits.
        partial: leave out images that a file does not caption; otherwise they are an error.

    Raises:
        UserError: files do not match; the message lists all mismatches.
    """
    files = {**references, **hypotheses}
    sizes = {path: len(file.captions) for path, file in files.items() if file.form == PLAIN}
    if len(set(sizes.values())) > 1:
        listed_sizes = ", ".join(f"{path} has {size:,}" for path, size in sizes.items())
        raise UserError(
            f"line i must be image i in all plain files, but they differ in their number of lines: {listed_sizes}"
        )
    aliases = {alias: image for file in files.values() for alias, image in file.aliases.items()}
    captioned = _of_split(references, split) if references else _of_results(hypotheses, split)
    reference_captions = _named(captioned, aliases)
    known, generated, errors = Names(reference_captions), dict[Path, Sentences](), list[str]()
    for path, file in hypotheses.items():
        # a path, a name without suffix or a number stands for the image it fits
        names = [image if image in file.aliases else known.find_name(image) for image in file.captions]
        generated[path] = _named(zip(names, file.captions.values(), strict=True), aliases)
        errors += _find_errors(path, generated[path], reference_captions, partial)
    if errors:
        raise UserError("; ".join(errors))
    images = [image for image in reference_captions if all(captions.get(image) for captions in generated.values())]
    if not images:
        raise UserError(f"the references have no image that is captioned in {' and in '.join(map(str, hypotheses))}")
    total, notes = len(reference_captions), []
    if len(images) < total:
        notes.append(f"{total - len(images):,} of {total:,} images are left out: not every file captions them")
    chosen = {path: [captions[image][0] for image in images] for path, captions in generated.items()}
    return MatchedCaptions(images, [reference_captions[image] for image in images], chosen, tuple(notes))


def _of_split(references: Files, split: str | None) -> Iterator[tuple[str, list[str]]]:
    """Yield each image of the split with its captions, file by file."""
    splits = {name for file in references.values() for name in file.split_of.values()}
    if split is not None and split not in splits:
        hint = did_you_mean(split, splits) if splits else "; no reference file has splits"
        raise UserError(f"the references have no split '{split}'{hint}")
    for file in references.values():
        captions = file.references or file.captions
        for image in captions:
            if split is None or file.split_of.get(image) == split:
                yield image, captions[image]


def _of_results(hypotheses: Files, split: str | None) -> Iterator[tuple[str, list[str]]]:
    """Yield each image with the reference captions in the hypothesis files, which must be equal in all of them."""
    if split is not None:
        raise UserError(f"split={split} chooses among the images of references=...; give those too")
    first, first_file = next(iter(hypotheses.items()))
    for path, file in hypotheses.items():
        if not file.references:
            raise UserError(f"{path} holds no references, as results of evaluate do; give them as references=...")
        if file.references != first_file.references:
            raise UserError(f"{first} and {path} hold different references; give those to be taken as references=...")
    yield from first_file.references.items()


def _named(captions_by_image: Iterable[tuple[str, list[str]]], aliases: Mapping[str, str]) -> Sentences:
    """Collect captions by the name of the image, which replaces its aliases."""
    sentences: Sentences = {}
    for image, captions in captions_by_image:
        sentences.setdefault(aliases.get(image, image), []).extend(captions)
    return sentences


def _find_errors(path: Path, captions: Sentences, references: Sentences, partial: bool) -> Iterator[str]:
    duplicates = [image for image, image_captions in captions.items() if len(image_captions) > 1]
    unknown = [image for image in captions if image not in references]
    missing = [image for image in references if not captions.get(image)]
    if duplicates:
        yield f"{path} has more than one caption for {some(duplicates)}; only one caption per image is scored"
    if unknown:
        yield f"{path} captions {some(unknown)} that the references do not have"
    if missing and not partial:
        hint = "partial=true scores the captioned images alone"
        yield f"{path} has no caption for {some(missing)} of the references; {hint}"


def some(images: Sequence[str]) -> str:
    """Return the number of images and their first names: `4 images (a.jpg, b.jpg, c.jpg, ...)`."""
    return f"{len(images):,} image{'s' if len(images) > 1 else ''} ({listed(images)})"


def in_words(corpus: MatchedCaptions[str], tokenizer: str) -> MatchedCaptions[list[str]]:
    """Tokenize a corpus. References without words are skipped, with a note.

    Raises:
        UserError: an image has no reference with words, or the tokenizer cannot be run.
    """
    sentences = [*chain.from_iterable(corpus.references), *chain.from_iterable(corpus.hypotheses.values())]
    try:
        words, notes = iter(split_sentences(sentences, tokenizer)), list(corpus.notes)
    except MetricError as error:
        raise UserError(f"tokenizer={tokenizer} cannot be run: {error}; choose another") from None
    all_references = [list(islice(words, len(captions))) for captions in corpus.references]
    hypotheses = {path: list(islice(words, len(corpus.images))) for path in corpus.hypotheses}
    references = [[caption for caption in captions if caption] for captions in all_references]
    if without_words := [image for image, captions in zip(corpus.images, references, strict=True) if not captions]:
        raise UserError(f"{some(without_words)} without a reference that has words; add one or leave the images out")
    notes += describe_unspaced(sentences, SCORING[tokenizer])
    if skipped := [image for image, captions in zip(corpus.images, all_references, strict=True) if [] in captions]:
        notes.append(f"references without words are skipped, of {some(skipped)}")
    for path, generated in hypotheses.items():
        if empty := [image for image, caption in zip(corpus.images, generated, strict=True) if not caption]:
            notes.append(f"{path}: captions without words score 0, of {some(empty)}")
    return MatchedCaptions(corpus.images, references, hypotheses, tuple(notes))


def describe(files: Files) -> dict[str, dict[str, str]]:
    """Return the format and the SHA-256 of each file, by its path."""
    return {str(path): {"form": file.form, "sha256": sha256(path)} for path, file in files.items()}
