"""Human judgments of captions: Flickr8k-Expert, Flickr8k-CrowdFlower and Composite."""

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from showattendtell.data.formats import Sentences, read_text
from showattendtell.errors import UserError, listed

EXPERT, CROWDFLOWER, COMPOSITE = "Flickr8k-Expert", "Flickr8k-CrowdFlower", "Composite"


class Judgment(NamedTuple):
    """Ratings of one caption for one image.

    origin     file and line
    image      name of the image
    candidate  the caption, or where `by_id` is true its id, `image#n` for the n-th caption of an image, from 0
    ratings    one for each rater, or their mean; higher is better
    """

    origin: str
    image: str
    candidate: str
    ratings: tuple[float, ...]
    by_id: bool = True


class JudgmentFile(NamedTuple):
    """Content of a judgment file: the name of its layout, and its entries in order."""

    layout: str
    judgments: tuple[Judgment, ...]


class RatedCaptions(NamedTuple):
    """Rated captions with the reference captions of their images; M candidates.

    images      M names
    candidates  M captions
    references  M lists of captions
    ratings     M tuples
    left_out    number of candidates that are a reference of their own image
    """

    images: list[str]
    candidates: list[str]
    references: list[list[str]]
    ratings: list[tuple[float, ...]]
    left_out: int


def read_judgments(path: Path) -> JudgmentFile:
    """Read a judgment file. Its first line decides between Composite and Flickr8k's two layouts.

    - Flickr8k-Expert (Hodosh et al. 2013, `ExpertAnnotations.txt`): image, caption id, three ratings from 1 to 4.
    - Flickr8k-CrowdFlower (`CrowdFlowerAnnotations.txt`): image, caption id, fraction of yes, number of yes, of no.
    - Composite (Aditya et al. 2015, `8k_correctness.csv` and similar files): a table with semicolons and the columns
      `Input.image_url`, `Input.text1` to `Input.text4` and `Answer.Q1Answer` to `Answer.Q4Answer`, ratings from 1 to 5.

    Raises:
        UserError: the file is missing or empty, or a line is damaged or has a rating out of range.
    """
    text = read_text(path)
    if not text.strip():
        raise UserError(f"{path} is empty")
    if IMAGE_URL in text.partition("\n")[0]:
        try:
            return JudgmentFile(COMPOSITE, tuple(_read_composite(text, path)))
        except csv.Error as error:
            raise UserError(f"{path} is not a table ({error}); download it again") from None
    lines = [(f"{path}, line {n}", line) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    rows = [(origin, *_split(line, origin)) for origin, line in lines]
    # the fraction of yes follows from the counts, which never holds for three ratings from 1 to 4
    is_crowd = 2 * sum(_is_fraction(*numbers) for *_, numbers in rows) > len(rows)
    layout, rate = (CROWDFLOWER, _crowd_rating) if is_crowd else (EXPERT, _expert_ratings)
    judgments = (Judgment(origin, image, caption, rate(numbers, origin)) for origin, image, caption, numbers in rows)
    return JudgmentFile(layout, tuple(judgments))


def _split(line: str, origin: str) -> tuple[str, str, list[float]]:
    """Return image, caption id and three numbers of a line."""
    image, caption, *cells = [*(cell.strip() for cell in line.split("\t")), "", ""]
    try:
        numbers = [float(cell) for cell in cells[:-2]]
    except ValueError:
        numbers = []
    if (
        len(numbers) != 3
        or not image
        or not re.fullmatch(r".+#\d{1,9}", caption)
        or not all(map(math.isfinite, numbers))
    ):
        raise UserError(
            f"{origin}: expected an image, a caption id such as 'name.jpg#0' and three numbers between tabs, "
            f"got '{line[:60]}'"
        )
    return image, caption, numbers


def _is_fraction(fraction: float, yes: float, no: float) -> bool:
    return yes >= 0 and no >= 0 and yes + no > 0 and abs(fraction - yes / (yes + no)) < 0.01  # 2 digits or more


def _expert_ratings(numbers: Sequence[float], origin: str) -> tuple[float, ...]:
    wrong = next((rating for rating in numbers if rating not in (1, 2, 3, 4)), None)
    if wrong is not None:
        raise UserError(f"{origin}: ratings are 1, 2, 3 or 4, got {wrong:g}; correct or remove the line")
    return tuple(numbers)


def _crowd_rating(numbers: Sequence[float], origin: str) -> tuple[float, ...]:
    fraction, yes, no = numbers
    if not _is_fraction(fraction, yes, no):
        raise UserError(
            f"{origin}: the fraction of yes, {fraction:g}, does not fit {yes:g} yes and {no:g} no; correct or remove "
            "the line"
        )
    return (fraction,)


IMAGE_URL = "Input.image_url"


def _read_composite(text: str, path: Path) -> Iterator[Judgment]:
    """Yield the captions of each row of a Composite file; rows without an image and unrated captions are skipped."""
    rows = csv.DictReader(StringIO(text), delimiter=";", skipinitialspace=True)
    header = set(rows.fieldnames or ())
    pairs = [(f"Input.text{i}", f"Answer.Q{i}Answer") for i in range(1, 10)]
    columns = [pair for pair in pairs if header.issuperset((IMAGE_URL, *pair))]
    if not columns:
        raise UserError(
            f"{path}, line 1: expected the columns {IMAGE_URL}, Input.text1 and Answer.Q1Answer between semicolons"
        )
    for row in rows:
        origin, url = f"{path}, line {rows.line_num}", (row[IMAGE_URL] or "").strip()
        for name, answer in columns if url else ():
            caption, rating = ((row[column] or "").strip() for column in (name, answer))
            if caption and rating:
                if rating.removesuffix(".0") not in {"1", "2", "3", "4", "5"}:
                    raise UserError(
                        f"{origin}: ratings are 1, 2, 3, 4 or 5, got {rating[:60]}; correct or remove the line"
                    )
                yield Judgment(origin, url.rpartition("/")[2], caption, (float(rating),), by_id=False)


def find_rated(file: JudgmentFile, path: Path, references: Sentences, aliases: Mapping[str, str]) -> RatedCaptions:
    """Look up the candidates and the reference captions of their images.

    Candidates that are a reference of their own image are left out (Hessel et al. 2021).

    Args:
        references: captions by image; those that the caption ids name are among them.
        aliases: second names of images.

    Raises:
        UserError: an image or a caption is unknown, or no candidate is left.
    """
    captions_by_image = {
        **references,
        **{alias: references[name] for alias, name in aliases.items() if name in references},
    }
    unknown = list(
        dict.fromkeys(judgment.image for judgment in file.judgments if judgment.image not in captions_by_image)
    )
    if unknown:
        raise UserError(
            f"{path} judges captions of {len(unknown):,} images ({listed(unknown)}) that the references do not have; "
            "give the caption file of these images as references=..."
        )
    rated = RatedCaptions([], [], [], [], 0)
    left_out = 0
    for judgment in file.judgments:
        caption = _find_caption(judgment, captions_by_image) if judgment.by_id else judgment.candidate
        if caption in map(str.strip, captions_by_image[judgment.image]):
            left_out += 1
            continue
        rated.images.append(judgment.image)
        rated.candidates.append(caption)
        rated.references.append(captions_by_image[judgment.image])
        rated.ratings.append(judgment.ratings)
    if not rated.images:
        raise UserError(f"{path} has no caption that is not a reference of its own image")
    return rated._replace(left_out=left_out)


def _find_caption(judgment: Judgment, captions_by_image: Mapping[str, list[str]]) -> str:
    image, _, number = judgment.candidate.rpartition("#")
    captions = captions_by_image.get(image, [])
    if int(number) >= len(captions):
        raise UserError(
            f"{judgment.origin}: the references have no caption {judgment.candidate}; give the caption file that the "
            "ids are from"
        )
    return captions[int(number)].strip()
