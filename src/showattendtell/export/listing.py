"""An export on the screen."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table

from showattendtell.export.checking import Row
from showattendtell.report.tables import print_notes


def print_rows(rows: Sequence[Row], pictures: int, of: str) -> None:
    """How many captions are PyTorch's, the largest differences, and what an image takes."""
    columns = ("", "way", "same", "log p", "attention", "ms")
    table = Table(*columns, title=f"{pictures} {of}, one after the other", title_justify="left")
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[2:]:
        column.justify = "right"
    for runner, own in groupby(rows, key=lambda row: row.runner):
        for number, row in enumerate(own):
            figures = ["", "", ""]
            if outcome := row.outcome:
                off = f"{100 * outcome.log_probability:.4f} %"
                figures = [f"{outcome.same} of {pictures}", off, f"{outcome.maps:.0e}"]
            table.add_row("" if number else runner, row.way, *figures, f"{row.milliseconds:,.1f}")
        table.add_section()
    table.caption = "same: captions that are PyTorch's; log p, attention: the largest difference; ms an image"
    Console(highlight=False).print(table)
    print_notes(_notes(rows, pictures))


def _notes(rows: Sequence[Row], pictures: int) -> list[str]:
    return [
        f"{row.runner}, {row.way}: {pictures - row.outcome.same} of {pictures} captions are other ones than PyTorch's, "
        "and as likely; the rounding decides between them"
        for row in rows
        if row.outcome and row.outcome.same < pictures
    ]


def print_files(files: Mapping[str, Any]) -> None:
    table = Table("file", "MB")
    table.columns[1].justify = "right"
    for name, file in files.items():
        table.add_row(name, f"{file['bytes'] / 1e6:,.2f}")
    Console(highlight=False).print(table)
