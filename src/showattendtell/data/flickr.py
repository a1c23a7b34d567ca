"""Flickr8k and Flickr30k as distributed, or with Karpathy's splits."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from showattendtell.data.entities import mark_entities
from showattendtell.data.files import check_images, find, look_in, open_folder, read_list, without_garbage_collection
from showattendtell.data.formats import CaptionFile, read_karpathy, read_token_file
from showattendtell.data.splits import assemble
from showattendtell.errors import UserError
from showattendtell.settings import PositiveInt
from showattendtell.types import Dataset

IMAGE_FOLDERS = ("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset")
TEXT_FOLDERS = (".", "Flickr8k_text")
SPLIT_LISTS = {
    "train": "Flickr_8k.trainImages.txt",
    "val": "Flickr_8k.devImages.txt",
    "test": "Flickr_8k.testImages.txt",
}
IMAGE_FOLDERS_30K = ("images", "flickr30k-images", "flickr30k_images", "Images")
SPLIT_LISTS_30K = {"train": "train.txt", "val": "val.txt", "test": "test.txt"}


@without_garbage_collection()
def read_flickr8k(
    root: str,
    captions: str = "Flickr8k.token.txt",
    absent: Sequence[str] = (),
    captions_per_image: PositiveInt = 5,
    skip_unreadable: bool = False,
    entities: str | None = None,
) -> Dataset:
    """Read Flickr8k (Hodosh et al. 2013).

    Args:
        root: folder of the distribution: images in `images` (or a name they were published under), texts in the same
            folder or in `Flickr8k_text`.
        captions: `Flickr8k.token.txt` with the three official split lists, or Karpathy's `dataset_flickr8k.json`.
        absent: images in the lists that the distribution lacks; they are skipped with a note.
        captions_per_image: captions beyond this number are dropped.
        skip_unreadable: skip images that are missing or (found when they are read) broken.
        entities: Flickr30k Entities, a zip or folder, for annotated boxes; searched in `root` first.
    """
    folder = open_folder(root, "Flickr8k")
    images = find(folder, IMAGE_FOLDERS, "the image folder")
    texts = find(folder, [f"{place}/{captions}" for place in TEXT_FOLDERS], "the caption file")
    file = _read_texts(texts, SPLIT_LISTS)
    dataset = check_images(assemble("flickr8k", file, images, captions_per_image), skip_unreadable, absent)
    return mark_entities(dataset, look_in([folder], entities)) if entities else dataset


@without_garbage_collection()
def read_flickr30k(
    root: str,
    captions: str = "results_20130124.token",
    captions_per_image: PositiveInt = 5,
    skip_unreadable: bool = False,
    entities: str | None = None,
) -> Dataset:
    """Read Flickr30k (Young et al. 2014).

    Args:
        root: folder of the distribution: images in `flickr30k-images` (or `images`), texts in the same folder or in
            `flickr30k`.
        captions: `results_20130124.token` with the lists train.txt, val.txt and test.txt of Flickr30k Entities, or
            Karpathy's `dataset_flickr30k.json`.
        captions_per_image: captions beyond this number are dropped.
        skip_unreadable: skip images that are missing or (found when they are read) broken.
        entities: Flickr30k Entities, a zip or folder, for annotated boxes; searched in `root` first.
    """
    folder = open_folder(root, "Flickr30k")
    images = find(folder, IMAGE_FOLDERS_30K, "the image folder")
    texts = find(folder, [captions, f"flickr30k/{captions}"], "the caption file")
    file = _read_texts(texts, SPLIT_LISTS_30K)
    dataset = check_images(assemble("flickr30k", file, images, captions_per_image), skip_unreadable)
    return mark_entities(dataset, look_in([folder], entities)) if entities else dataset


def _read_texts(path: Path, lists: Mapping[str, str]) -> CaptionFile:
    """Read Karpathy's JSON, or a token file with the split lists in the same folder; Flickr30k's lists omit `.jpg`."""
    if path.suffix == ".json":
        return read_karpathy(path)
    missing = next((place for file in lists.values() if not (place := path.with_name(file)).exists()), None)
    if missing:
        raise UserError(f"{missing} does not exist; add the lists, or give Karpathy's JSON as dataset.captions=...")
    listed = {split: read_list(path.with_name(file)) for split, file in lists.items()}
    named = {split: [image if "." in image else f"{image}.jpg" for image in images] for split, images in listed.items()}
    return read_token_file(path)._replace(splits=named)
