"""Flickr8k and Flickr30k, made small here and as they are, and the boxes of Entities."""

import os
import zipfile
from pathlib import Path

import pytest
from repository import SHARED

from showattendtell.errors import UserError
from showattendtell.readers.flickr import (
    mark_entities,
    open_entities,
    read_boxes,
    read_flickr8k,
    read_flickr30k,
    read_sentence,
)
from showattendtell.text.tokenizers import tokenize
from showattendtell.types import Box, Caption, Dataset, Example, Phrase

FOLDER = SHARED / "flickr8k"
SPLIT_LISTS = {
    split: f"Flickr_8k.{name}Images.txt" for split, name in {"train": "train", "val": "dev", "test": "test"}.items()
}
SPLITS = {"train": ["1_a.jpg", "2_b.jpg", "3_c.jpg"], "val": ["4_d.jpg"], "test": ["5_e.jpg"]}
SENTENCES = {
    image: [f"Image {image} , sentence {number} ." for number in range(5)]
    for names in SPLITS.values()
    for image in names
}


def put_images(folder: Path) -> None:
    folder.mkdir(parents=True)
    for image in SENTENCES:
        (folder / image).touch()


def write_texts(folder: Path) -> None:
    """The texts of the distribution: all captions in a file, and a list of image names for each split."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{image}#{n}\t{text}\n" for image, texts in SENTENCES.items() for n, text in enumerate(texts)]
    (folder / "Flickr8k.token.txt").write_text("".join(lines))
    for split, file in SPLIT_LISTS.items():
        (folder / file).write_text("".join(f"{image}\n" for image in SPLITS[split]))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put_images(tmp_path / "images")
    write_texts(tmp_path)
    return tmp_path


def names(dataset: Dataset) -> dict[str, list[str]]:
    return {split: [example.image for example in examples] for split, examples in dataset.splits.items()}


@pytest.mark.parametrize("images", ["images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset"])
@pytest.mark.parametrize("texts", [".", "Flickr8k_text"])
def test_every_published_layout_is_found(tmp_path: Path, images: str, texts: str):
    put_images(tmp_path / images)
    write_texts(tmp_path / texts)
    assert names(read_flickr8k(str(tmp_path))) == SPLITS


@pytest.mark.parametrize("allowed", [{"absent": ["2_b.jpg"]}, {"skip_unreadable": True}])
def test_an_absent_image_is_passed_over_with_a_note_where_that_is_allowed(root: Path, allowed: dict):
    (root / "images" / "2_b.jpg").unlink()
    dataset = read_flickr8k(str(root), **allowed)
    assert names(dataset) == {**SPLITS, "train": ["1_a.jpg", "3_c.jpg"]}
    [note] = dataset.notes
    assert note == "images captioned but not on disk, which are skipped: 1 (2_b.jpg)"


@pytest.mark.skipif(not FOLDER.is_dir(), reason="needs SHOWATTENDTELL_SHARED")
def test_the_real_distribution_lacks_one_image_and_has_five_captions_each():
    dataset = read_flickr8k(str(FOLDER))
    lists = {split: set((FOLDER / file).read_text().split()) for split, file in SPLIT_LISTS.items()}
    assert {split: len(images) for split, images in lists.items()} == {"train": 6000, "val": 1000, "test": 1000}
    for split, images in lists.items():
        assert {example.image for example in dataset.split(split)} == images - {"3050606344_af711c726c.jpg"}
    assert all(len(example.captions) == 5 for example in dataset.examples())
    assert len(dataset.examples()) == 7999


def write_flickr30k(root: Path, images: str = "flickr30k-images", texts: str = ".") -> Path:
    """As Flickr30k and its Entities are published: the lists have numbers, the captions and images `NUMBER.jpg`."""
    (root / images).mkdir(parents=True)
    (root / texts).mkdir(exist_ok=True)
    lines = [f"{number}.jpg#{n}\tSentence {n} of {number} .\n" for number in (11, 12, 13, 14) for n in range(5)]
    (root / texts / "results_20130124.token").write_text("".join(lines))
    for split, numbers in {"train": [13, 11], "val": [12], "test": [14]}.items():
        (root / texts / f"{split}.txt").write_text("".join(f"{number}\n" for number in numbers))
        for number in numbers:
            (root / images / f"{number}.jpg").touch()
    return root


@pytest.mark.parametrize("images", ["images", "flickr30k-images", "flickr30k_images", "Images"])
@pytest.mark.parametrize("texts", [".", "flickr30k"])
def test_flickr30k_has_numbers_in_its_lists_and_files_of_their_name(tmp_path: Path, images: str, texts: str):
    dataset = read_flickr30k(str(write_flickr30k(tmp_path, images, texts)))
    assert names(dataset) == {"train": ["13.jpg", "11.jpg"], "val": ["12.jpg"], "test": ["14.jpg"]}
    assert dataset.name == "flickr30k"
    example = dataset.split("val")[0]
    assert (example.path, len(example.captions)) == (str(tmp_path / images / "12.jpg"), 5)
    assert example.captions[4].words == ("sentence", "4", "of", "12")


SHARED_30K = FOLDER.with_name("flickr30k")


@pytest.mark.slow
@pytest.mark.skipif(not SHARED_30K.is_dir(), reason="needs SHOWATTENDTELL_SHARED")
def test_the_real_flickr30k_has_its_splits_and_five_captions_each(tmp_path: Path):
    """Of its images only those are here that are Flickr8k's, which are `NUMBER_HASH.jpg` there."""
    (tmp_path / "images").mkdir()
    for file in (FOLDER / "images").iterdir():
        (tmp_path / "images" / f"{file.stem.partition('_')[0]}.jpg").symlink_to(file)
    for file in SHARED_30K.iterdir():
        (tmp_path / file.name).symlink_to(file)
    dataset = read_flickr30k(str(tmp_path), skip_unreadable=True, entities=str(FOLDER / "entities.zip"))
    counts = {split: len(examples) for split, examples in dataset.splits.items()}
    assert counts == {"train": 7559, "val": 247, "test": 284}
    [missing] = dataset.notes  # none of captions that Entities lacks
    assert missing.startswith("images captioned but not on disk, which are skipped: 23,693 ")
    assert {len(example.captions) for example in dataset.examples()} == {5}
    flickr8k = {example.image.partition("_")[0]: example for example in read_flickr8k(str(FOLDER)).examples()}
    numbers = ((example, Path(example.image).stem) for example in dataset.examples())
    shared = [(example, flickr8k[number]) for example, number in numbers if number in flickr8k]
    alike = [{c.words for c in ours.captions} & {c.words for c in theirs.captions} for ours, theirs in shared]
    assert len(list(filter(None, alike))) > 0.95 * 7999
    with pytest.raises(UserError, match=r"captioned but not on disk: 23,693"):
        read_flickr30k(str(tmp_path))


FOLDER = SHARED / "flickr8k"
XML = """<annotation>
  <filename>12.jpg</filename>
  <size><width>200</width><height>100</height><depth>3</depth></size>
  <object><name>1</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>100</xmax><ymax>100</ymax></bndbox></object>
  <object><name>1</name><name>2</name><bndbox><xmin>151</xmin><ymin>26</ymin><xmax>200</xmax><ymax>75</ymax></bndbox></object>
  <object><name>3</name><scene>1</scene><nobndbox>1</nobndbox></object>
</annotation>"""
LEFT_HALF, ON_THE_RIGHT = Box(0, 0, 0.5, 1), Box(0.75, 0.25, 1, 0.75)
MARKED = """[/EN#1/people Two men] in [/EN#3/scene a field] , one with [/EN#2/clothing/other a T-shirt] .
[/EN#0/notvisual There] [/EN#1/people they] go .
"""


def people(noun: int) -> Phrase:
    return Phrase(noun, (LEFT_HALF, ON_THE_RIGHT), "people")


def write_folder(folder: Path, xml: str = XML) -> Path:
    for part, text in (("Annotations/12.xml", xml), ("Sentences/12.txt", MARKED)):
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        (folder / part).write_text(text, encoding="utf-8")
    return folder


def zipped(folder: Path, method: int = zipfile.ZIP_DEFLATED) -> Path:
    """A zip of the folder, next to it. Like the published one it also has entries for folders."""
    place = folder.with_suffix(".zip")
    with zipfile.ZipFile(place, "w", method) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))
    return place


def dataset(*sentences: str) -> Dataset:
    captions = tuple(Caption(tokenize(sentence)) for sentence in sentences)
    return Dataset("photographs", {"test": (Example("12_ab.jpg", "12_ab.jpg", captions),)}, ("a note",))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "entities")


@pytest.mark.parametrize("packed", [False, True])
def test_captions_are_marked_with_the_boxes_of_their_phrases(folder: Path, packed: bool):
    place = zipped(folder) if packed else folder
    marked = mark_entities(dataset("There they go!", "Two men in a field, one with a T-shirt."), place)
    [first, second] = marked.split("test")[0].captions
    assert first == Caption(("there", "they", "go"), (people(1),))
    assert second.phrases == (people(1), Phrase(8, (ON_THE_RIGHT,), "clothing"))
    assert [second.words[phrase.noun] for phrase in second.phrases] == ["men", "tshirt"]
    assert marked.notes == ("a note",)


def test_entities_of_other_images_are_reported(folder: Path):
    with pytest.raises(UserError, match="entities has none of the 1 captions of photographs"):
        mark_entities(dataset("Nobody wrote this"), folder)


@pytest.mark.parametrize(
    ("line", "words", "nouns"),
    [
        ("[/EN#1/people A man] runs .", "a man runs", ["man"]),
        ("[/EN#1/people A man]'s [/EN#2/other ball] .", "a mans ball", ["mans", "ball"]),
        ('[/EN#1/people Two men , " Bo " and Al ,] run', "two men bo and al run", ["al"]),
        ("He is [/EN#1/other ...] gone with [/EN#2/other it]", "he is gone with it", ["it"]),
        ("No phrase here .", "no phrase here", []),
        ("", "", []),
    ],
)
def test_the_noun_is_the_last_word_of_a_phrase_that_is_left_by_tokenizing(line: str, words: str, nouns: list[str]):
    found, marks = read_sentence(line)
    assert found == tuple(words.split())
    assert [found[noun] for noun, _, _ in marks] == nouns


def annotation(left: int, top: int, right: int, bottom: int) -> str:
    """One box on an image of 200 x 100."""
    edges = f"<xmin>{left}</xmin><ymin>{top}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax>"
    size = "<size><width>200</width><height>100</height></size>"
    return f"<annotation>{size}<object><name>5</name><bndbox>{edges}</bndbox></object></annotation>"


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ((1, 1, 200, 100), Box(0, 0, 1, 1)),
        ((1, 1, 1, 1), Box(0, 0, 1 / 200, 1 / 100)),
        ((101, 51, 150, 100), Box(0.5, 0.5, 0.75, 1)),
        ((-50, 51, 260, 300), Box(0, 0.5, 1, 1)),
        ((0, 0, 100, 50), Box(0, 0, 0.5, 0.5)),
    ],
)
def test_pixels_count_from_1_and_boxes_are_clipped_to_the_image(edges: tuple[int, ...], expected: Box):
    [box] = read_boxes(annotation(*edges), "12.xml")["5"]
    assert box == pytest.approx(expected)


@pytest.mark.parametrize("xml", [XML[:200], "no xml", XML.replace(">200<", ">0<"), XML.replace(">26<", ">top<")])
def test_a_damaged_annotation_is_reported_by_name(tmp_path: Path, xml: str):
    folder = write_folder(tmp_path / "entities", xml=xml)
    with pytest.raises(UserError, match=r"entities.*/Annotations/12.xml is damaged"):
        mark_entities(dataset("There they go"), folder)


def test_a_damaged_member_of_a_zip_is_reported(folder: Path):
    place = zipped(folder)
    with zipfile.ZipFile(place) as archive:
        member = archive.getinfo("Sentences/12.txt")
    content = bytearray(place.read_bytes())
    start = member.header_offset + 30 + len(member.filename)
    content[start : start + 20] = bytes(20)
    place.write_bytes(content)
    with pytest.raises(UserError, match=r"entities.zip/Sentences/12.txt cannot be read"):
        mark_entities(dataset("There they go"), place)


def test_a_place_that_holds_no_entities_is_reported(folder: Path, tmp_path: Path):
    (tmp_path / "text.zip").write_text("no zip")
    (tmp_path / "other").mkdir()
    os.mkfifo(tmp_path / "pipe.zip")
    for name in ("nowhere.zip", "pipe.zip", "text.zip"):
        with pytest.raises(UserError, match=rf"{name} is neither a folder nor a zip; set dataset.entities"):
            open_entities(tmp_path / name)
    (tmp_path / "pipe.zip").unlink()
    with pytest.raises(UserError, match=r"other has no folder Annotations"):
        open_entities(tmp_path / "other")
    with pytest.raises(UserError, match=r"zip has no folder Annotations"):
        open_entities(zipped(tmp_path))


@pytest.mark.slow
@pytest.mark.skipif(not (FOLDER / "entities.zip").is_file(), reason="needs SHOWATTENDTELL_SHARED")
def test_the_real_entities_mark_nearly_all_of_flickr8k():
    data = read_flickr8k(str(FOLDER), entities="entities.zip")
    assert data.notes[-1] == "38,884 of 39,995 captions are in entities.zip; the others have no boxes"
    phrases = [(caption, phrase) for e in data.examples() for caption in e.captions for phrase in caption.phrases]
    kinds = {"people", "clothing", "bodyparts", "animals", "vehicles", "instruments", "scene", "other"}
    assert {phrase.kind for _, phrase in phrases} == kinds
    for _, phrase in phrases:
        assert phrase.boxes
        assert all(0 <= b.left < b.right <= 1 and 0 <= b.top < b.bottom <= 1 for b in phrase.boxes)
    animals = [caption.words[phrase.noun] for caption, phrase in phrases if phrase.kind == "animals"]
    assert sum(noun in ("dog", "dogs") for noun in animals) > 0.7 * len(animals)
    [example] = [e for e in data.split("train") if e.image.startswith("1000268201_")]
    dress = example.captions[0].phrases[1]
    assert (example.captions[0].words[dress.noun], dress.kind) == ("dress", "clothing")
    assert dress.boxes == (pytest.approx((7 / 375, 190 / 500, 86 / 375, 299 / 500)),)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_that_may_unpack_to_any_size_is_refused(folder: Path, method: int):
    with pytest.raises(UserError, match="packed by another method than deflate"):
        open_entities(zipped(folder, method))
