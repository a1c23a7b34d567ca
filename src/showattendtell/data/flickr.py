"""Flickr8k and Flickr30k as they are distributed, and with Karpathy's splits."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from showattendtell.arguments import PositiveInt
from showattendtell.data.bulk import uncollected
from showattendtell.data.caption_forms import CaptionFile, read_karpathy, read_token_file
from showattendtell.data.captions import assemble
from showattendtell.data.entities import mark_entities
from showattendtell.data.folders import check_images, find, look_in, open_folder
from showattendtell.data.text_files import read_list
from showattendtell.errors import UserError
from showattendtell.records import Dataset

IMAGE_FOLDERS = ("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset")
TEXT_FOLDERS = (".", "Flickr8k_text")
SPLIT_LISTS = {
    "train": "Flickr_8k.trainImages.txt",
    "val": "Flickr_8k.devImages.txt",
    "test": "Flickr_8k.testImages.txt",
}
IMAGE_FOLDERS_30K = ("images", "flickr30k-images", "flickr30k_images", "Images")
SPLIT_LISTS_30K = {"train": "train.txt", "val": "val.txt", "test": "test.txt"}


@uncollected()
def read_flickr8k(
    root: str,
    captions: str = "Flickr8k.token.txt",
    absent: Sequence[str] = (),
    captions_per_image: PositiveInt = 5,
    skip_unreadable: bool = False,
    entities: str | None = None,
) -> Dataset:
    """Flickr8k (Hodosh et al. 2013).

    Args:
        root: the folder of the distribution: images in `images` (or a name they were published under), texts beside
            them or in `Flickr8k_text`.
        captions: `Flickr8k.token.txt` with the three official split lists, or Karpathy's `dataset_flickr8k.json`.
        absent: images that the lists name and the distribution lacks; they are passed over with a note.
        captions_per_image: captions beyond this number are dropped.
        skip_unreadable: pass over every image that is not on disk, and (when they are read) those that are broken.
        entities: Flickr30k Entities, a zip or folder, for the boxes that people drew; looked for in `root` first.
    """
    folder = open_folder(root, "Flickr8k")
    images = find(folder, IMAGE_FOLDERS, "the image folder")
    texts = find(folder, [f"{place}/{captions}" for place in TEXT_FOLDERS], "the caption file")
    file = _read_texts(texts, SPLIT_LISTS)
    dataset = check_images(assemble("flickr8k", file, images, captions_per_image), skip_unreadable, absent)
    return mark_entities(dataset, look_in([folder], entities)) if entities else dataset


@uncollected()
def read_flickr30k(
    root: str,
    captions: str = "results_20130124.token",
    captions_per_image: PositiveInt = 5,
    skip_unreadable: bool = False,
    entities: str | None = None,
) -> Dataset:
    """Flickr30k (Young et al. 2014).

    Args:
        root: the folder of the distribution: images in `flickr30k-images` (or `images`), texts beside them or in
            `flickr30k`.
        captions: `results_20130124.token` with the lists train.txt, val.txt and test.txt of Flickr30k Entities, or
            Karpathy's `dataset_flickr30k.json`.
        captions_per_image: captions beyond this number are dropped.
        skip_unreadable: pass over every image that is not on disk, and (when they are read) those that are broken.
        entities: Flickr30k Entities, a zip or folder, for the boxes that people drew; looked for in `root` first.
    """
    folder = open_folder(root, "Flickr30k")
    images = find(folder, IMAGE_FOLDERS_30K, "the image folder")
    texts = find(folder, [captions, f"flickr30k/{captions}"], "the caption file")
    file = _read_texts(texts, SPLIT_LISTS_30K)
    dataset = check_images(assemble("flickr30k", file, images, captions_per_image), skip_unreadable)
    return mark_entities(dataset, look_in([folder], entities)) if entities else dataset


def _read_texts(path: Path, lists: Mapping[str, str]) -> CaptionFile:
    """Karpathy's JSON, or a token file with the split lists beside it; Flickr30k's lists leave `.jpg` out."""
    if path.suffix == ".json":
        return read_karpathy(path)
    missing = next((place for file in lists.values() if not (place := path.with_name(file)).exists()), None)
    if missing:
        raise UserError(f"{missing} does not exist; add the lists, or give Karpathy's JSON as dataset.captions=...")
    listed = {split: read_list(path.with_name(file)) for split, file in lists.items()}
    named = {split: [image if "." in image else f"{image}.jpg" for image in images] for split, images in listed.items()}
    return read_token_file(path)._replace(splits=named)
