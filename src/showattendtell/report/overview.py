"""What a table of results holds: rows of figures in blocks."""

from collections.abc import Mapping
from typing import NamedTuple

from showattendtell.report.result_files import Result

HEADINGS = {
    **{f"bleu{n}": f"B-{n}" for n in range(1, 5)},
    **{f"bleu{n}_with_penalty": f"B-{n} with penalty" for n in range(1, 5)},
    "meteor": "METEOR",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr",
    "spice": "SPICE",
    "clip_score": "CLIPScore",
    "pointing_game": "pointing game",
    "attention_correctness": "correctness",
    "attention_entropy": "entropy",
    "attention_movement": "movement",
    "distinct_captions": "distinct captions",
    "training_minutes": "minutes of training",
}
"""The figures that can be columns, and what stands above them."""

DIGITS = {"meteor": 2, "attention_entropy": 2, "attention_movement": 2, "distinct_captions": 0}
"""Behind the point, where that is not one."""


class Figure(NamedTuple):
    """A figure, or the mean of several with their standard deviation (n - 1)."""

    mean: float
    deviation: float | None = None
    digits: int = 1

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:.{self.digits}f}"
        return f"{self.mean:.{self.digits}f}{spread}"


class Interval(NamedTuple):
    """By how much a figure is higher than another row's, and the ends of the interval that it may as well be in."""

    difference: float
    low: float
    high: float
    digits: int = 1

    def __str__(self) -> str:
        rounded = (round(value, self.digits) + 0.0 for value in (self.difference, self.low, self.high))  # no -0.0
        difference, low, high = (f"{value:+.{self.digits}f}" for value in rounded)
        return f"{difference} [{low}, {high}]"


class Row(NamedTuple):
    """A model and the figures that it has; `results` are the files behind them, none for a row of the paper."""

    label: str
    figures: Mapping[str, Figure | Interval]
    results: tuple[Result, ...] = ()


class Block(NamedTuple):
    """Rows below a title: those of a data set, the paper's first, or differences."""

    title: str
    rows: tuple[Row, ...]


class Overview(NamedTuple):
    """Blocks with their figures' names, what a reader should know of them, a sentence each, and the page of photographs
    beside it, if there is one."""

    split: str
    columns: tuple[str, ...]
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]
    photographs: str | None = None
