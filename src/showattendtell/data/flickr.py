"""Flickr8k as it is distributed, and with Karpathy's splits."""

from collections.abc import Sequence
from pathlib import Path

from showattendtell.arguments import PositiveInt
from showattendtell.data.caption_forms import read_karpathy, read_token_file
from showattendtell.data.captions import assemble
from showattendtell.data.entities import mark_entities
from showattendtell.data.text_files import read_list
from showattendtell.errors import UserError
from showattendtell.records import Dataset, Example

IMAGE_FOLDERS = ("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset")
TEXT_FOLDERS = (".", "Flickr8k_text")
SPLIT_LISTS = {
    "train": "Flickr_8k.trainImages.txt",
    "val": "Flickr_8k.devImages.txt",
    "test": "Flickr_8k.testImages.txt",
}


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
    folder = Path(root).expanduser()
    if not folder.is_dir():
        fault = "is a file, not a folder" if folder.exists() else "does not exist"
        raise UserError(f"the folder {root} {fault}; set dataset.root to the folder that holds Flickr8k")
    images = _find(folder, IMAGE_FOLDERS, "the image folder")
    texts = _find(folder, [f"{place}/{captions}" for place in TEXT_FOLDERS], "the caption file")
    if texts.suffix == ".json":
        file = read_karpathy(texts)
    else:
        lists = {name: read_list(texts.with_name(file)) for name, file in SPLIT_LISTS.items()}
        file = read_token_file(texts)._replace(splits=lists)
    examples = assemble(file.captions, file.splits, images, captions_per_image)
    dataset = check_images(Dataset("flickr8k", examples), set(absent), skip_unreadable)
    if entities is None:
        return dataset
    inside = folder / entities
    return mark_entities(dataset, inside if inside.exists() else Path(entities).expanduser())


def _find(root: Path, names: Sequence[str], what: str) -> Path:
    for name in names:
        if (root / name).exists():
            return root / name
    raise UserError(f"{what} was not found in {root}; looked for {', '.join(names)}")


def check_images(dataset: Dataset, absent: set[str], skip_unreadable: bool) -> Dataset:
    """The data set less the images that are not on disk; a `UserError` for one that is neither known nor allowed."""
    missing = [example for example in dataset.examples() if not Path(example.path).is_file()]
    unknown = [example for example in missing if example.image not in absent]
    if unknown and not skip_unreadable:
        raise UserError(
            f"{_count(unknown)} in the split lists but not on disk, the first is {unknown[0].path}; "
            "add them, or pass over them with dataset.skip_unreadable=true"
        )
    if not missing:
        return dataset
    note = f"{_count(missing)} in the split lists but not on disk and passed over: {_names(missing)}"
    return dataset.without(example.image for example in missing)._replace(notes=(*dataset.notes, note))


def _count(examples: Sequence[Example]) -> str:
    return "1 image is" if len(examples) == 1 else f"{len(examples)} images are"


def _names(examples: Sequence[Example], shown: int = 5) -> str:
    names = ", ".join(example.image for example in examples[:shown])
    return names if len(examples) <= shown else f"{names}, ..."
