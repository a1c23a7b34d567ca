"""Sequence-level knowledge distillation (Kim and Rush 2016): training captions that trained models wrote."""

from showattendtell.errors import UserError, listed
from showattendtell.readers.formats import find_caption_files, read_all
from showattendtell.settings import Places
from showattendtell.text.tokenizers import Tokenizer, tokenize
from showattendtell.types import Caption, Dataset


def with_generated(
    dataset: Dataset, tokenizer: Tokenizer, captions: Places | None = None, keep_references: bool = False
) -> Dataset:
    """Return the data set with generated captions of the training images in place of their reference captions.

    Args:
        tokenizer: of the model that is trained.
        captions: a result file of evaluate split=train, or several, as [a.json,b.json] or a quoted pattern; each has
            one or more captions of every training image. By default the reference captions stay.
        keep_references: train on these captions and on the reference captions.

    Raises:
        UserError: a file lacks a caption of a training image.
    """
    if captions is None:
        return dataset
    train = dataset.split("train")
    texts = {example.image: list(example.captions) if keep_references else [] for example in train}
    for path, file in read_all(find_caption_files(captions)).items():
        missing = dict.fromkeys(texts)
        for image, image_captions in texts.items():
            for sentence in file.captions.get(image, ()):
                if plain := tokenize(sentence):
                    missing.pop(image, None)
                    image_captions.append(Caption(tokenizer.tokenize(sentence), (), sentence.strip(), plain))
        if missing:
            raise UserError(
                f"{path} has no caption or an empty one of {len(missing):,} of {len(texts):,} training images "
                f"({listed([*missing])}); write it by evaluate split=train decoding.min_length=1"
            )
    examples = tuple(example._replace(captions=tuple(texts[example.image])) for example in train)
    return dataset._replace(splits={**dataset.splits, "train": examples})
