"""Tables of results: blocks of rows of figures."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text
from tabulate import LATEX_ESCAPE_RULES, SEPARATING_LINE, tabulate

from showattendtell.errors import UserError
from showattendtell.visualization.rendering import escape_markdown, fill
from showattendtell.visualization.result_files import Result, run_name
from showattendtell.visualization.tables import Terminal, print_notes

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
    "attention_rank_correlation": "rank correlation",
    "attention_magnitude_correlation": "rank correlation, absolute",
    "attention_top_tenth": "top tenth",
    "attention_magnitude_top_tenth": "top tenth, absolute",
    "attention_deletion": "deletion",
    "attention_insertion": "insertion",
    "chair_i": "CHAIR-i",
    "chair_s": "CHAIR-s",
    "grounding_f1_all": "F1-all",
    "grounding_f1_loc": "F1-loc",
    "distinct_captions": "distinct captions",
    "training_minutes": "minutes of training",
}
"""The figures that can be columns, and their headings."""

DIGITS = {"distinct_captions": 0}
DIGITS |= dict.fromkeys(("meteor", "attention_entropy", "attention_movement"), 2)
DIGITS |= dict.fromkeys(("attention_rank_correlation", "attention_magnitude_correlation"), 3)
DIGITS |= dict.fromkeys(("attention_deletion", "attention_insertion"), 3)
"""Digits after the decimal point, where not 1."""


class TableValue(NamedTuple):
    """A figure, or the mean of several with its standard deviation (n - 1)."""

    mean: float
    deviation: float | None = None
    digits: int = 1

    def __str__(self) -> str:
        mean = f"{self.mean:.{self.digits}f}"
        return mean if self.deviation is None else f"{mean} ± {self.deviation:.{self.digits}f}"


class TableInterval(NamedTuple):
    """The difference of a figure to that of another row, and the ends of its confidence interval."""

    difference: float
    low: float
    high: float
    digits: int = 1

    def __str__(self) -> str:
        rounded = (round(value, self.digits) + 0.0 for value in (self.difference, self.low, self.high))  # no -0.0
        difference, low, high = (f"{value:+.{self.digits}f}" for value in rounded)
        return f"{difference} [{low}, {high}]"


class TableRow(NamedTuple):
    """A model and its figures; `results` are the files behind them, none for a row of the paper."""

    label: str
    figures: Mapping[str, TableValue | TableInterval]
    results: tuple[Result, ...] = ()


class TableBlock(NamedTuple):
    """Titled rows: those of a data set, the paper's first, or differences."""

    title: str
    rows: tuple[TableRow, ...]


class ResultsTable(NamedTuple):
    """Blocks, the names of their figures, notes of one sentence each, and the page of photographs, if there is one."""

    split: str
    columns: tuple[str, ...]
    blocks: tuple[TableBlock, ...]
    notes: tuple[str, ...]
    photographs: str | None = None


def print_overview(overview: ResultsTable) -> None:
    """Print a section for each data set; deviations are printed below their means to fit a terminal of 80 columns."""
    _, model, *others = _headings(overview.columns)
    table = Table(model, title=f"results on the {overview.split} split", title_justify="left")
    for name in others:
        table.add_column(name, justify="right")
    for block in overview.blocks:
        table.add_row(Text(block.title, style="bold"))
        for _, *cells in _cells(block, overview.columns):
            table.add_row(*(Text(cell.replace(" ± ", "\n±")) for cell in cells))
        table.add_section()
    Terminal(highlight=False).print(table)
    print_notes(overview.notes)


def markdown(overview: ResultsTable) -> str:
    rows = [cells for block in overview.blocks for cells in _cells(block, overview.columns)]
    table = _tabulate(overview, [list(map(escape_markdown, cells)) for cells in rows], "pipe")
    notes = [f"- {escape_markdown(note)}" for note in overview.notes]
    return "\n".join([table, "", *notes]).rstrip() + "\n"


def latex(overview: ResultsTable) -> str:
    """Return a `tabular` with the rules of booktabs, one between data sets, and the notes below it."""
    rows: list[Any] = []
    for block in overview.blocks:
        rows += [SEPARATING_LINE, *_cells(block, overview.columns)]
    table = _tabulate(overview, rows[1:], "latex_booktabs")
    escapes = str.maketrans(LATEX_ESCAPE_RULES)
    notes = [f"\\par{{\\footnotesize {note.translate(escapes)}\\par}}" for note in overview.notes]
    return "\n".join(["% needs \\usepackage{booktabs}", table, *notes, ""]).replace("±", r"$\pm$")


def as_json(overview: ResultsTable) -> str:
    """Return every figure at full precision, with the result files behind it."""
    blocks = []
    for block in overview.blocks:
        rows = []
        for row in block.rows:
            figures = {name: figure._asdict() for name, figure in row.figures.items()}
            for figure in figures.values():
                del figure["digits"]
            files = [{"file": one.path, "seeds": [model.seed for model in one.models]} for one in row.results]
            rows.append({"model": row.label, "figures": figures, "results": files})
        blocks.append({"title": block.title, "rows": rows})
    return json.dumps({"split": overview.split, "blocks": blocks, "notes": overview.notes}, indent=1)


def html(overview: ResultsTable, folder: Path = Path()) -> str:
    """Return a self-contained page; empty columns of a block are left out.

    Args:
        folder: the page's folder, which its links to the folders of the runs start from.
    """
    blocks = []
    for block in overview.blocks:
        columns = [column for column in overview.columns if any(column in row.figures for row in block.rows)]
        rows = list(zip(block.rows, _cells(block, columns), strict=True))
        blocks.append((block.title, _headings(columns)[1:], rows))

    def link(result: Result) -> str:
        return os.path.relpath(Path(result.path).parent, folder)

    return fill("table.html", overview=overview, blocks=blocks, link=link, run_name=run_name)


FORMATS: dict[str, Callable[[ResultsTable], str]] = {".md": markdown, ".tex": latex, ".json": as_json, ".html": html}
"""Functions that format a table, by the suffix of the file."""


def find_format(path: Path) -> Callable[[ResultsTable], str]:
    """Return the format of a file by its suffix; raise `UserError` for an unknown suffix."""
    if path.suffix not in FORMATS:
        suffixes = " or ".join(FORMATS)
        raise UserError(f"a table cannot be written as {path}; give output a file with the suffix {suffixes}")
    return FORMATS[path.suffix]


def format_table(overview: ResultsTable, path: Path) -> bytes:
    """Return the content of a file with a table, in the format of its suffix; raise `UserError` for an unknown one."""
    form = find_format(path)
    return (html(overview, path.parent) if form is html else form(overview)).encode()


def _headings(columns: Sequence[str]) -> list[str]:
    return ["data", "model", *(HEADINGS[column] for column in columns), "seeds"]


def _cells(block: TableBlock, columns: Sequence[str]) -> list[list[str]]:
    """Return the rows of a block as text, its title in the first; `-` for a missing figure."""
    rows: list[list[str]] = []
    for row in block.rows:
        seeds = len(row.results)
        if seeds == 1:  # a single run, or a single ensemble, whose models have seeds
            seeds = len({model.seed for model in row.results[0].models})
        figures = [str(row.figures.get(column, "-")) for column in columns]
        rows.append(["" if rows else block.title, row.label, *figures, str(seeds or "")])
    return rows


def _tabulate(overview: ResultsTable, rows: Sequence[Any], layout: str) -> str:
    alignment = ["left", "left", *["right"] * (len(overview.columns) + 1)]
    return tabulate(rows, _headings(overview.columns), layout, disable_numparse=True, colalign=alignment)
