"""The captions of a photograph with their attention maps, as users get them: as values, as pictures, and as an HTML
page. Matplotlib is imported when it draws."""

import base64
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from io import BytesIO
from itertools import count
from operator import attrgetter
from pathlib import Path, PurePath
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from showattendtell.errors import UserError
from showattendtell.metrics.attention import CONTENT, word_class
from showattendtell.readers.coco import CATEGORIES, names_of
from showattendtell.runtime.files import atomic_write, expand_home, write_errors
from showattendtell.settings import Dpi, Inches, PictureStyle, PositiveInt, Text, checked
from showattendtell.types import Box, CaptionOutput
from showattendtell.visualization.rendering import DARKEST, UNGATED, fill, scaled

PICTURES = ("png", "svg", "pdf", "gif", "webp")
"""Formats of pictures."""

ARTICLES = ("a", "an", "the")

LONGEST_SIDE = 640
QUALITY = 72
"""Of WebP; a photograph of LONGEST_SIDE pixels takes some 50 kB."""

LEVELS = 255
"""Level of the peak of a stored map, which has one byte per region."""

UNSURE = "this photograph is unlike those that the model was trained on"
"""What the mark of doubt means."""

EVEN = 1.25
"""A map counts as uniform if its peak is less than this many times its mean."""

FRAME = 'width="100%" height="660" style="border: 0; color-scheme: normal"'
"""Attributes of the frame around a page in a notebook."""

PLACES = (
    ("at the top left", "at the top", "at the top right"),
    ("at the left", "in the middle", "at the right"),
    ("at the bottom left", "at the bottom", "at the bottom right"),
)


@dataclass(frozen=True, eq=False)
class ImageCaptions:
    """The captions that a model generated for a photograph.

    The fields of the best caption are properties of this class.

    Args:
        name: file name of the photograph.
        photograph: upright RGB image.
        seen: the part of the photograph that the encoder sees, in fractions of its width and height.
        captions: best first, with words and with `attention` (T, rows, columns).
    """

    name: str
    photograph: Image.Image
    seen: Box
    captions: tuple[CaptionOutput[np.ndarray], ...]

    @property
    def best(self) -> CaptionOutput[np.ndarray]:
        return self.captions[0]

    caption = property(attrgetter("best.caption"))
    words = property(attrgetter("best.words"))
    tokens = property(attrgetter("best.tokens"))
    log_probs = property(attrgetter("best.log_probs"))
    attention = property(attrgetter("best.attention"))
    gates = property(attrgetter("best.gates"))
    log_prob = property(attrgetter("best.log_prob"))
    confidence = property(attrgetter("best.confidence"))
    not_sure = property(attrgetter("best.not_sure"))

    @property
    def maps(self) -> np.ndarray:
        """Attention maps of the words on the photograph's pixels: (T, height, width), computed at every access.

        The peak of each map is 1. A map is 0 outside the part that the encoder sees.
        """
        from showattendtell.visualization.figures import map_onto_photograph

        width, height = self.photograph.size
        maps = np.zeros((len(self.words), height, width), np.float32)
        for grid, light in zip(self.attention, maps, strict=False):
            light[:] = map_onto_photograph(grid, self.seen.scaled(width, height), width, height)
        return maps

    def save(self, path: str | Path, **style: Any) -> None:
        """Write the caption into a file, which is replaced: a panel for each word as `.png`, `.jpg`, `.tif`, `.pdf` or
        `.svg`, an animation as `.gif` or `.webp`, or a page as `.html`.

        Args:
            style: of a picture, the arguments of `plot`; an animation has no rows.

        Raises:
            UserError: the file cannot be written, its suffix is unknown, or it is a page with a style.
        """
        path = expand_home(path)
        suffix = path.suffix.lower()
        if style and suffix == ".html":
            raise UserError(f"{path} is a page, which has no {' and '.join(style)}; leave them out")
        if suffix == ".html":
            content = render(self._page()).encode()
        else:
            content = self.draw(suffix, checked(PictureStyle)(**style))
        with write_errors(path), atomic_write(path) as stream:
            stream.write(content)

    def draw(self, suffix: str, style: PictureStyle) -> bytes:
        """Return the content of a picture: an animation for `.gif` and `.webp`, otherwise the figure of `plot`."""
        from showattendtell.visualization.figures import animation, encode, heatmap_figure

        drawn = self.photograph, self.best, self.seen, style
        return animation(*drawn, suffix) if suffix in (".gif", ".webp") else encode(heatmap_figure(*drawn), suffix)

    @checked
    def plot(
        self,
        width: Inches | None = None,
        dpi: Dpi | None = None,
        colormap: Text | None = None,
        words: Sequence[Text] | None = None,
        rows: PositiveInt | None = None,
    ) -> Any:
        """Return a matplotlib figure with the photograph, then a panel for each word with its map and beta.

        Args:
            width: of the figure in inches, to which the letters are scaled; by default a panel has 2 inches.
            dpi: dots per inch; by default 160.
            colormap: of matplotlib, in which maps are laid over the photograph; by default it is darkened.
            words: those of the caption that get a panel; by default all.
            rows: of panels.
        """
        from showattendtell.visualization.figures import heatmap_figure

        return heatmap_figure(self.photograph, self.best, self.seen, PictureStyle(width, dpi, colormap, words, rows))

    def _page(self) -> "Page":
        return Page("1 photograph", ["model"], [make_entry(self.name, [self])])

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the photograph, with the map of each word under the pointer."""
        page = render(self._page(), "notebook.html")
        title = escape(f"Attention maps of {self.name}")
        return f'<iframe srcdoc="{escape(page)}" title="{title}" {FRAME}></iframe>'

    def _repr_png_(self) -> bytes:
        """Return the figure that viewers of notebooks without HTML show: a panel for each word with its map."""
        from showattendtell.visualization.figures import encode

        return encode(self.plot())

    def __str__(self) -> str:
        return self.caption

    def __repr__(self) -> str:
        return f"<{self.name}: {self.best.marked}>"


def picture_names(images: Sequence[str], models: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the names of the pictures of each image without suffixes, one per model: `rome/photo` for
    `rome/photo.jpg`, and `MODEL/rome/photo` if there are several models. A repeated name becomes `photo-2`, or gets the
    next free number."""
    folders = [""]
    if len(models) > 1:
        folders = [re.sub(r"[^\w+-]+", "-", model.removesuffix(".ckpt")).strip("-") or "model" for model in models]
    names = [_different([str(PurePath(folder, image)) for image in images]) for folder in _different(folders)]
    return list(zip(*names, strict=True))


def _different(paths: Sequence[str]) -> list[str]:
    """Return paths without their suffixes, with numbers at the ends of repeated ones."""
    names = dict[str, None]()  # an ordered set
    for path in paths:
        name = base = path.removesuffix(PurePath(path).suffix)
        numbers = count(2)
        while name in names:
            name = f"{base}-{next(numbers)}"
        names[name] = None
    return list(names)


class PageEntry(NamedTuple):
    """A photograph on a page.

    name        shown as it is
    picture     the reduced photograph as a data URI
    outputs     the captions of each model, with the reduced photograph
    references  reference captions
    measures    values by which the page can be sorted
    """

    name: str
    picture: str
    outputs: Sequence[ImageCaptions]
    references: Sequence[str] = ()
    measures: Mapping[str, float] = {}


class Page(NamedTuple):
    """Photographs with captions: a description of them, the names of the models, an entry per photograph, and a
    sentence that readers should know about the models."""

    about: str
    models: Sequence[str]
    entries: Sequence[PageEntry]
    note: str = ""


def make_entry(
    name: str, outputs: Sequence[ImageCaptions], references: Sequence[str] = (), score: float | None = None
) -> PageEntry:
    """Return an entry with a copy of the photograph, whose longest side has LONGEST_SIDE pixels at most.

    The confidence of an entry is the mean over the models; `score` is that of their captions.
    """
    measures = {} if score is None else {"score": score}
    measures["confidence"] = mean(output.confidence for output in outputs)
    if len(outputs) > 1:
        from showattendtell.metrics.diversity import disagreement  # pycocoevalcap takes a while to import

        measures["disagreement"] = disagreement([output.words for output in outputs])
    photograph = outputs[0].photograph
    scale, content = min(1.0, LONGEST_SIDE / max(photograph.size)), BytesIO()
    scaled(photograph, scale).save(content, "WEBP", quality=QUALITY, method=4)
    picture = f"data:image/webp;base64,{base64.b64encode(content.getvalue()).decode()}"
    copy = Image.open(content)  # keeps the compressed bytes only, until its pixels are used
    reduced = [replace(output, photograph=copy) for output in outputs]
    return PageEntry(name, picture, reduced, references, measures)


def render(page: Page, template: str = "page.html") -> str:
    """Return the page as HTML, or its cards alone with the template `cards.html`.

    Names of photographs and models and words are escaped.
    """
    return fill(
        template,
        page=page,
        note=page.note,
        doubts=any(output.not_sure for entry in page.entries for output in entry.outputs),
        gated=[any(_is_gated(entry.outputs[i]) for entry in page.entries) for i in range(len(page.models))],
        darkest=DARKEST,
        not_sure=UNSURE,
        encode_map=encode_map,
        first_noun=first_noun,
        describe_peak=describe_peak,
        zip=zip,
        exp=math.exp,
    )


def _is_gated(output: ImageCaptions) -> bool:
    return any((caption.gates[: len(caption.words)] < UNGATED).any() for caption in output.captions)


@cache
def _nouns() -> set[str]:
    """Return the names of COCO's categories, of several words the last; without the fruit that is mostly a color."""
    return {name[-1] for category in CATEGORIES for name in names_of(category)} - {"orange"}


def first_noun(words: Sequence[str]) -> int:
    """Return the place of a caption's first noun: that of a category of COCO, else the last of the first words after
    an article that are in no list of `word_class`.

    >>> first_noun("a brown dog runs".split()), first_noun("there is an orange star and a circle".split())
    (2, 4)
    """
    named = [place for place, word in enumerate(words) if word in _nouns()]
    content = [word_class(word) == CONTENT for word in [*words, "<eos>"]]
    start = min((words.index(article) for article in ARTICLES if article in words), default=0)
    ends = [place for place in range(start, len(words)) if content[place] and not content[place + 1]]
    return min(named or ends, default=0)


def encode_map(grid: np.ndarray) -> str:
    """Return attention (rows, columns) as base64 of one byte per region, 255 at the peak."""
    levels = np.rint(grid / max(grid.max(), np.finfo(np.float32).tiny) * LEVELS)
    return base64.b64encode(levels.astype(np.uint8).tobytes()).decode()


def describe_peak(grid: np.ndarray, seen: Box) -> str:
    """Return in which third of the photograph, across and down, a map (rows, columns) has its peak, in words."""
    if grid.max() < EVEN * grid.mean():
        return "everywhere alike"
    row, column = np.unravel_index(grid.argmax(), grid.shape)
    x = seen.left + (column + 0.5) / grid.shape[1] * (seen.right - seen.left)
    y = seen.top + (row + 0.5) / grid.shape[0] * (seen.bottom - seen.top)
    return f"mostly {PLACES[min(int(3 * y), 2)][min(int(3 * x), 2)]}"
