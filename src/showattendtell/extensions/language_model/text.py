"""Captions without photographs."""

from collections.abc import Sequence

from showattendtell.data.assembly import assemble, look_in, with_splits
from showattendtell.data.custom import read_references
from showattendtell.data.languages import CaptionFiles, read_languages
from showattendtell.data.names import image_number, open_folder
from showattendtell.data.parsing import read_list
from showattendtell.runtime.memory import paused_collection
from showattendtell.settings import Fraction, PositiveInt, Text
from showattendtell.types import Dataset


@paused_collection()
def read_text(
    root: Text,
    captions: CaptionFiles,
    exclude: Sequence[Text] = (),
    val: Fraction = 0.05,
    test: Fraction = 0.0,
    captions_per_image: PositiveInt = 5,
) -> Dataset:
    """Read captions without photographs, for a language model.

    Args:
        root: folder in which files are searched first.
        captions: a caption file in any format, or text with one caption per line; or the file of each language by its
            code.
        exclude: lists of images whose captions are left out, one name per line, such as the validation and test images
            of another data set. Names with the same number, as `NUMBER_HASH.jpg` of Flickr8k and `NUMBER.jpg` of
            Flickr30k, or else with the same stem, are the same image.
        val, test: fractions of the images for validation and test, if the file has no splits; a hash of an image's name
            decides.
        captions_per_image: captions beyond this number are dropped.
    """
    folder = open_folder(root, "the captions")
    excluded = {image_number(image) for name in exclude for image in read_list(look_in([folder], name))}

    def read(file_name: str) -> Dataset:
        texts = look_in([folder], file_name)
        file = read_references(texts)
        kept = {image: said for image, said in file.captions.items() if image_number(image) not in excluded}
        split_of = {image: split for image, split in file.split_of.items() if image in kept}
        notes = (f"images left out by dataset.exclude: {len(file.captions) - len(kept):,}",) if exclude else ()
        file = file._replace(captions=kept, split_of=split_of, notes=notes)
        file = with_splits(file, (), {"val": val, "test": test})
        return assemble(texts.stem, file, None, captions_per_image)

    return read_languages(captions, read)
