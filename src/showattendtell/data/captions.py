"""From captions by image to the examples of each split."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from showattendtell.data.caption_forms import Sentences
from showattendtell.errors import UserError
from showattendtell.records import Caption, Example
from showattendtell.text.tokenize import tokenize


def assemble(
    sentences: Sentences, splits: Mapping[str, Sequence[str]], folder: Path, captions_per_image: int
) -> dict[str, tuple[Example, ...]]:
    """Examples by split. Captions beyond `captions_per_image` are dropped, as the paper does.

    Raises `UserError` for an image without a caption, and for one that is listed twice, in one split or in two.
    """
    listed = Counter(image for images in splits.values() for image in images)
    twice = next((image for image, count in listed.items() if count > 1), None)
    if twice:
        where = ", ".join(split for split, images in splits.items() if twice in images)
        raise UserError(f"image {twice} is listed more than once ({where}); keep one of its entries")

    def example(image: str) -> Example:
        written = (sentence.strip() for sentence in sentences.get(image, [])[:captions_per_image])
        captions = tuple(Caption(words, written=sentence) for sentence in written if (words := tokenize(sentence)))
        if not captions:
            raise UserError(f"image {image} stands in a split list but has no caption; add one or remove it there")
        return Example(image, str(folder / image), captions)

    return {split: tuple(example(image) for image in images) for split, images in splits.items()}
