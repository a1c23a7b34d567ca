"""Captions that trained models generated, as captions to train on (Kim and Rush 2016)."""

from collections.abc import Sequence

from showattendtell.data.formats import find_caption_files, read_all
from showattendtell.data.tokenizers import Tokenizer, tokenize
from showattendtell.errors import UserError, listed
from showattendtell.types import Caption, Dataset


def with_generated(
    dataset: Dataset, tokenizer: Tokenizer, files: str | Sequence[str], keep_references: bool = False
) -> Dataset:
    """Return the data set with generated captions of the training images in place of their reference captions, or
    after them.

    Args:
        files: paths or patterns of caption files, such as the results of `evaluate`; each gives every training image
            one or more captions.

    Raises:
        UserError: a file lacks a caption of a training image, or the reference captions are in several languages.
    """
    train = dataset.split("train")
    languages = {caption.language for example in train for caption in example.captions}
    if len(languages) > 1:
        raise UserError(
            f"distillation.captions replaces captions in one language, and {dataset.name} has {len(languages)}; "
            "leave it out"
        )
    [language] = languages

    captions = {example.image: list(example.captions) if keep_references else [] for example in train}
    for path, file in read_all(find_caption_files(files)).items():
        generated = {
            image: [sentence for sentence in file.captions.get(image, ()) if tokenize(sentence)] for image in captions
        }
        if missing := [image for image, sentences in generated.items() if not sentences]:
            raise UserError(
                f"{path} has no caption or an empty one of {len(missing):,} of {len(generated):,} training images "
                f"({listed(missing)}); write it by evaluate split=train decoding.min_length=1"
            )
        for image, sentences in generated.items():
            captions[image] += [
                Caption(tokenizer.tokenize(sentence), (), sentence.strip(), language, tokenize(sentence))
                for sentence in sentences
            ]
    train_examples = tuple(example._replace(captions=tuple(captions[example.image])) for example in train)
    return dataset._replace(splits={**dataset.splits, "train": train_examples})
