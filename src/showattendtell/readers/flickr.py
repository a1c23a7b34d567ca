"""Flickr8k and Flickr30k, as distributed or in Karpathy's files, and the boxes of Flickr30k Entities."""

import re
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from showattendtell.errors import UserError
from showattendtell.images.names import GET_SPLITS, dataset_folder
from showattendtell.readers.assembly import (
    assemble,
    check_images,
    find_image_folder,
    find_lists,
    look_in,
    with_splits,
)
from showattendtell.readers.custom import caption_files, read_found, read_references
from showattendtell.runtime.files import check_regular, open_regular
from showattendtell.runtime.process import paused_collection
from showattendtell.settings import Place, PositiveInt, Source
from showattendtell.text.parsing import CaptionFile
from showattendtell.text.tokenizers import tokenize
from showattendtell.types import WHOLE, Box, Dataset, Example, Phrase


class Layout(NamedTuple):
    """The names of a data set's files.

    name     of the data set
    images   names under which the folder of the photographs was published
    texts    the folder that may hold the captions and lists
    tokens   the captions
    """

    name: str
    images: Sequence[str]
    texts: str
    tokens: str


FLICKR8K = Layout(
    "flickr8k", ("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset"), "Flickr8k_text", "Flickr8k.token.txt"
)
FLICKR30K = Layout(
    "flickr30k", ("images", "flickr30k-images", "flickr30k_images", "Images"), "flickr30k", "results_20130124.token"
)


@paused_collection()
def read_flickr8k(
    root: Place = "data/flickr8k",
    captions: Source | None = None,
    absent: Sequence[str] = ("3050606344_af711c726c.jpg", "2258277193_586949ec62.jpg.1"),
    captions_per_image: PositiveInt = 5,
    skip_unreadable: bool = False,
    entities: Source | None = None,
    skip_missing: bool = False,
    images: Source | None = None,
) -> Dataset:
    """Read Flickr8k (Hodosh et al. 2013).

    Args:
        root: folder of the distribution: images in `images` (or a name they were published under), texts in the same
            folder or in `Flickr8k_text`.
        captions: `Flickr8k.token.txt` with the three official split lists, Karpathy's `dataset_flickr8k.json`, or
            Kaggle's `captions.txt`, by default the first of them that is there; or a file of other captions, such as
            those of Flickr8k-CN (Li et al. 2016). Files are searched in `root` first.
        absent: images in the lists that the distribution lacks; they are skipped with a note.
        captions_per_image: captions beyond this number are dropped.
        skip_unreadable: skip images that are missing or (found when they are read) broken.
        entities: Flickr30k Entities, a zip or folder, for annotated boxes; searched in `root` first.
        skip_missing: skip images without captions.
        images: folder of the images, searched in `root` first.
    """
    return _read(FLICKR8K, root, captions, images, entities, absent, captions_per_image, skip_unreadable, skip_missing)


@paused_collection()
def read_flickr30k(
    root: Place = "data/flickr30k",
    captions: Source | None = None,
    captions_per_image: PositiveInt = 5,
    skip_unreadable: bool = False,
    entities: Source | None = None,
    skip_missing: bool = False,
    images: Source | None = None,
) -> Dataset:
    """Read Flickr30k (Young et al. 2014).

    Args:
        root: folder of the distribution: images in `flickr30k-images` (or `images`), texts in the same folder or in
            `flickr30k`.
        captions: `results_20130124.token` with the lists train.txt, val.txt and test.txt of Flickr30k Entities,
            Karpathy's `dataset_flickr30k.json`, or Kaggle's `results.csv`, by default the first of them that is there;
            or a file of other captions.
        captions_per_image: captions beyond this number are dropped.
        skip_unreadable: skip images that are missing or (found when they are read) broken.
        entities: Flickr30k Entities, a zip or folder, for annotated boxes; searched in `root` first.
        skip_missing: skip images without captions.
        images: folder of the images, searched in `root` first.
    """
    return _read(FLICKR30K, root, captions, images, entities, (), captions_per_image, skip_unreadable, skip_missing)


def _read(
    layout: Layout,
    root: str,
    captions: str | None,
    images: str | None,
    entities: str | None,
    absent: Sequence[str],
    captions_per_image: int,
    skip_unreadable: bool,
    skip_missing: bool,
) -> Dataset:
    folder = dataset_folder(root, layout.name)
    image_folder = find_image_folder(folder, images, layout.images)
    file = _read_texts(layout, folder, captions, skip_missing)
    dataset = assemble(layout.name, file, image_folder, captions_per_image, skip_missing)
    dataset = check_images(dataset, skip_unreadable, folder, absent)
    return mark_entities(dataset, look_in([folder], entities)) if entities else dataset


def _read_texts(layout: Layout, folder: Path, captions: str | None, skip_missing: bool) -> CaptionFile:
    """Read a caption file and its splits: its own, those of the lists, or else those of a hash, with a note."""
    folders = [folder, folder / layout.texts]
    path, karpathy = look_in(folders, captions or layout.tokens), look_in(folders, f"dataset_{layout.name}.json")
    places = [path.parent, *folders]
    has_lists = any(map(find_lists, places))
    if not captions and karpathy.exists() and not (path.exists() and has_lists):
        path = karpathy
    file = read_references(path) if captions or path.exists() else read_found(folder, caption_files(folder))
    if file is None:
        raise UserError(
            f"the captions were not found in {folder}: {layout.tokens} is neither there nor in {layout.texts}; "
            "give a file as dataset.captions=..."
        )
    shares = {"val": 0.0}
    if not file.split_of and not has_lists:
        note = (
            "scores are not comparable with published ones, and models of the public splits were trained on some of "
            f"the test images; put the public splits, dataset_{layout.name}.json, into {folder}: {GET_SPLITS}"
        )
        file, shares = file._replace(notes=(*file.notes, note)), {"val": 0.1, "test": 0.1}
    # the keys of Flickr8k-CN omit the suffix
    file = file.renamed(lambda image: image if "." in image else f"{image}.jpg")
    return with_splits(file, places, shares, skip_missing)


MARKUP = re.compile(r"\[/EN#(?P<chain>\d+)/(?P<kinds>[^\s\[]+) (?P<words>[^\[\]]*)\]")
"""An annotated phrase, as in `[/EN#18/people A child] climbs [/EN#20/other a set of stairs] .`"""


LARGEST = 2**20
"""The largest number of bytes in a file of Flickr30k Entities; a zip may unpack to any size."""

DAMAGES = (OSError, KeyError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What zipfile raises for damaged, encrypted and unknown content."""


def open_entities(path: Path) -> Path | zipfile.Path:
    """Open a folder or zip with the annotations of Flickr30k Entities: `Annotations/ID.xml` and `Sentences/ID.txt`.

    Raises:
        UserError: it is neither, or lacks a folder.
    """
    root: Path | zipfile.Path = path
    if not path.is_dir():
        try:
            check_regular(path)
            root = zipfile.Path(path)
        except DAMAGES:
            raise UserError(
                f"{path} is neither a folder nor a zip; set dataset.entities to that of Flickr30k Entities"
            ) from None
        if {member.compress_type for member in root.root.infolist()} - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise UserError(
                f"{path} is packed by another method than deflate, which unpacks to any size; pack it again"
            )
    for folder in ("Annotations", "Sentences"):
        if not (root / folder).is_dir():
            raise UserError(f"{path} has no folder {folder}; give the zip or folder that holds it at its top")
    return root


def read_phrases(root: Path | zipfile.Path, image: str) -> dict[tuple[str, ...], tuple[Phrase, ...]]:
    """Return the phrases of an image that have boxes, by the words of their sentence; empty without annotations.

    Raises:
        UserError: a file is damaged.
    """
    number = Path(image).stem.partition("_")[0]  # of NUMBER_HASH.jpg in Flickr8k, NUMBER.jpg in Flickr30k
    annotation = root / f"Annotations/{number}.xml"
    if not annotation.is_file():
        return {}
    boxes = read_boxes(_read_member(annotation), str(annotation))
    sentences = map(read_sentence, _read_member(root / f"Sentences/{number}.txt").split("\n"))
    return {
        words: tuple(Phrase(noun, boxes[chain], kind) for noun, chain, kind in nouns if chain in boxes)
        for words, nouns in sentences
    }


def _read_member(file: Path | zipfile.Path) -> str:
    try:
        with open_regular(file) if isinstance(file, Path) else file.open("rb") as stream:
            content = stream.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ValueError(f"it is larger than {LARGEST:,} bytes")
        return content.decode("utf-8-sig")
    except DAMAGES as error:
        raise UserError(f"{file} cannot be read ({error}); get Flickr30k Entities again") from None


def read_sentence(line: str) -> tuple[tuple[str, ...], list[tuple[int, str, str]]]:
    """Parse an annotated sentence.

    Returns:
        Its words, and for each phrase the index of its last word, the number of its coreference chain, and its kind
        (the first, if it has several).
    """
    nouns = []
    words, rest, end = list[str](), "", 0  # `rest` ends with a word that may go on
    for phrase in MARKUP.finditer(line):
        counts = []
        for piece in (line[end : phrase.start()], phrase["words"]):
            before, _, rest = (rest + piece).rpartition(" ")
            words += tokenize(before)
            counts.append(len(words) + len(tokenize(rest)))
        end = phrase.end()
        if counts[1] > counts[0]:
            nouns.append((counts[1] - 1, phrase["chain"], phrase["kinds"].partition("/")[0]))
    return (*words, *tokenize(rest + line[end:])), nouns


def read_boxes(xml: str, name: str) -> dict[str, tuple[Box, ...]]:
    """Return the boxes in an annotation by the number of their coreference chain, in fractions of the image's size.

    Boxes are clipped to the image; those without area inside it are left out.

    Args:
        xml: content of the file.
        name: its name in error messages.

    Raises:
        UserError: the file is damaged.
    """
    boxes: defaultdict[str, list[Box]] = defaultdict(list)
    try:
        root = ElementTree.fromstring(xml)
        width, height = (float(root.findtext(f"size/{side}", "")) for side in ("width", "height"))
        for element in root.iter("object"):
            for node in element.iter("bndbox"):
                left, top, right, bottom = (float(node.findtext(side, "")) for side in ("xmin", "ymin", "xmax", "ymax"))
                # pixels are counted from 1, and a box includes its last row and column
                box = Box(left - 1, top - 1, right, bottom).scaled(1 / width, 1 / height).clipped(WHOLE)
                for chain in element.iter("name"):
                    boxes[chain.text or ""] += [box] if box.area > 0 else []
    except (ElementTree.ParseError, ValueError, ZeroDivisionError) as error:
        raise UserError(f"{name} is damaged ({error}); download Flickr30k Entities again") from None
    return {chain: tuple(chain_boxes) for chain, chain_boxes in boxes.items() if chain_boxes}


def mark_entities(dataset: Dataset, path: Path) -> Dataset:
    """Add the phrases of Flickr30k Entities (Plummer et al. 2015) to the captions with the same words.

    If only some captions have annotations, a note reports how many.

    Args:
        path: the folder or zip of the annotations.

    Raises:
        UserError: no caption has annotations, or a file is damaged.
    """
    root, is_known = open_entities(path), list[bool]()

    def mark(example: Example) -> Example:
        phrases = read_phrases(root, example.image)
        is_known.extend(caption.words in phrases for caption in example.captions)
        captions = tuple(caption._replace(phrases=phrases.get(caption.words, ())) for caption in example.captions)
        return example._replace(captions=captions)

    marked = dataset.map(mark)
    if not any(is_known):
        raise UserError(f"{path} has none of the {len(is_known):,} captions of {dataset.name}; it is for other images")
    note = f"{sum(is_known):,} of {len(is_known):,} captions are in {path.name}; the others have no boxes"
    notes = () if all(is_known) else (note,)
    return marked._replace(notes=(*dataset.notes, *notes))
