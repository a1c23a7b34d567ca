"""An overview on the screen, and as Markdown, LaTeX, JSON or HTML."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tabulate import LATEX_ESCAPE_RULES, SEPARATING_LINE, tabulate

from showattendtell.errors import UserError
from showattendtell.report.filling import fill
from showattendtell.report.overview import HEADINGS, Block, Figure, Interval, Overview, Row

LATEX = str.maketrans(LATEX_ESCAPE_RULES)


def print_overview(overview: Overview) -> None:
    """A section a data set; deviations stand below their means, which a terminal of 80 columns has room for."""
    _, model, *others = _headings(overview)
    table = Table(model, title=f"results on the split {overview.split}", title_justify="left")
    for name in others:
        table.add_column(name, justify="right")
    for block in overview.blocks:
        table.add_row(Text(block.title, style="bold"))
        for _, *cells in _cells(block, overview.columns):
            table.add_row(*(Text(cell.replace(" ± ", "\n±")) for cell in cells))
        table.add_section()
    console = Console(highlight=False)
    console.print(table)
    for note in overview.notes:
        console.print(f"note: {note}", style="yellow", markup=False, soft_wrap=True)


def markdown(overview: Overview) -> str:
    rows = [
        [_markdown(cell) for cell in cells] for block in overview.blocks for cells in _cells(block, overview.columns)
    ]
    notes = [f"- {_markdown(note)}" for note in overview.notes]
    return "\n".join([_tabulated(overview, rows, "pipe"), "", *notes]).rstrip() + "\n"


def _markdown(text: str) -> str:
    r"""The text with a `\` before what Markdown would take for its own; an underscore within a word is none."""
    return re.sub(r"[\\`*<|]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text)


def latex(overview: Overview) -> str:
    """A `tabular` with the rules of booktabs, one between data sets, and the notes below it."""
    rows: list[Any] = []
    for block in overview.blocks:
        rows += [SEPARATING_LINE, *_cells(block, overview.columns)]
    table = _tabulated(overview, rows[1:], "latex_booktabs")
    notes = [f"\\par{{\\footnotesize {note.translate(LATEX)}\\par}}" for note in overview.notes]
    return "\n".join(["% needs \\usepackage{booktabs}", table, *notes, ""]).replace("±", r"$\pm$")


def as_json(overview: Overview) -> str:
    """Every figure in full, with the result files behind it."""
    blocks = [{"title": block.title, "rows": [_content(row) for row in block.rows]} for block in overview.blocks]
    return json.dumps({"split": overview.split, "blocks": blocks, "notes": overview.notes}, indent=1)


def _content(row: Row) -> dict[str, Any]:
    return {
        "model": row.label,
        "figures": {name: _without_digits(figure) for name, figure in row.figures.items()},
        "results": [{"file": result.path, "seeds": [model.seed for model in result.models]} for result in row.results],
    }


def _without_digits(figure: Figure | Interval) -> dict[str, float | None]:
    return {name: value for name, value in figure._asdict().items() if name != "digits"}


def html(overview: Overview) -> str:
    """A page that needs nothing but itself, light or dark as the reader has it."""
    blocks = [_own_columns(block, overview) for block in overview.blocks]
    return fill("table.html", overview=overview, blocks=blocks)


def _own_columns(block: Block, overview: Overview) -> tuple[str, list[str], list[tuple[Row, list[str]]]]:
    """A block's name, the headings of the columns that it has figures in, and its rows with their cells."""
    columns = tuple(column for column in overview.columns if any(column in row.figures for row in block.rows))
    headings = _headings(overview._replace(columns=columns))[1:]
    return block.title, headings, list(zip(block.rows, _cells(block, columns), strict=True))


FORMATS: dict[str, Callable[[Overview], str]] = {".md": markdown, ".tex": latex, ".json": as_json, ".html": html}
"""How an overview is written, by the suffix of the file."""


def find_format(path: str) -> Callable[[Overview], str]:
    """The format of a file, by its suffix; a `UserError` where there is none."""
    suffix = Path(path).suffix
    if suffix not in FORMATS:
        raise UserError(f"a table is not written as {path}; give output a file with the suffix {' or '.join(FORMATS)}")
    return FORMATS[suffix]


def _headings(overview: Overview) -> list[str]:
    return ["data", "model", *(HEADINGS[column] for column in overview.columns), "seeds"]


def _cells(block: Block, columns: Sequence[str]) -> list[list[str]]:
    """The rows of a block as text, its name in the first; `-` where there is no figure."""
    rows: list[list[str]] = []
    for row in block.rows:
        name = "" if rows else block.title
        figures = (str(row.figures.get(column, "-")) for column in columns)
        rows.append([name, row.label, *figures, str(_num_seeds(row) or "")])
    return rows


def _num_seeds(row: Row) -> int:
    """Of the runs behind a row; of a single ensemble those of its models."""
    if len(row.results) == 1:
        return len({model.seed for model in row.results[0].models})
    return len(row.results)


def _tabulated(overview: Overview, rows: Sequence[Any], layout: str) -> str:
    headings = _headings(overview)
    alignment = ["left", "left", *("right" for _ in headings[2:])]
    return tabulate(rows, headings, layout, disable_numparse=True, colalign=alignment)
