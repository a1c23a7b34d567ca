"""Tables: of data sets and scores for the terminal, and of results as Markdown, LaTeX and HTML; the model card, which
says how a published model was trained, what it scores, and its limitations."""

import csv
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from markupsafe import Markup
from rich.console import Console
from rich.table import Table
from rich.text import Text

from showattendtell.errors import UserError, printable
from showattendtell.metrics.bootstrap import Comparison
from showattendtell.results.files import Result, read_result, run_name
from showattendtell.text.tokenizers import describe_unspaced
from showattendtell.text.vocabulary import Vocabulary
from showattendtell.types import Dataset
from showattendtell.visualization.rendering import fill

Labels = Mapping[str, tuple[str, str]]

FIGURES = list(csv.DictReader(Path(__file__).with_name("labels.csv").read_text(encoding="utf-8").splitlines()))
HEADINGS = {row["name"]: row["heading"] for row in FIGURES if row["heading"]}
"""The figures that can be columns, and their headings."""
DIGITS = {row["name"]: int(row["digits"]) for row in FIGURES if row["digits"]}
"""Digits after the decimal point in columns, where not 1."""


BLEU, BLEU_WITH_PENALTY, METRICS, COUNTS = (
    {row["name"]: (row["label"], row["format"]) for row in FIGURES if row["group"] == group}
    for group in ("bleu", "bleu_with_penalty", "metrics", "counts")
)
"""Labels and number formats of the scores of a group in the terminal."""


class Terminal(Console):
    """Standard output without the control characters of names from files. It may be closed, as by `... | head`: the
    command then continues without printing, and writes its result files."""

    def on_broken_pipe(self) -> None:
        """Discard what is printed from now on."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def print(self, *shown: Any, **options: Any) -> None:
        lines = ("\n".join(map(printable, one.split("\n"))) if isinstance(one, str) else one for one in shown)
        super().print(*lines, highlight=False, **options)


def numeric_table(first: str, columns: Iterable[str], **options: Any) -> Table:
    """Return an empty table, whose columns after the first are aligned to the right."""
    table = Table(first, title_justify="left", **options)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def print_dataset(dataset: Dataset, vocabulary: Vocabulary) -> None:
    """Print images, captions, lengths and vocabulary coverage of each split, and notes on skipped entries, captions
    without spaces and small splits."""
    columns = ("images", "captions", "words per caption", "known words")
    table = numeric_table("split", columns, title=Text(printable(dataset.title)))
    for name, split in dataset.splits.items():
        captions = [caption.words for example in split for caption in example.captions]
        mean = sum(map(len, captions)) / max(len(captions), 1)
        coverage = f"{100 * vocabulary.coverage(captions):.2f} %"
        table.add_row(name, f"{len(split):,}", f"{len(captions):,}", f"{mean:.1f}", coverage)
    table.caption = f"vocabulary: {len(vocabulary):,} ids"
    Terminal().print(table)
    sentences = [caption.sentence for example in dataset.examples() for caption in example.captions]
    unspaced = describe_unspaced(sentences, vocabulary.tokenizer)
    print_notes([*dataset.notes, *unspaced, *describe_small_splits(dataset)])


SMALL = 100
"""Number of images below which the scores of a split are said to be uncertain."""

ONE_IMAGE = "CIDEr of one image is 0 by definition: words in the references of all images have no weight"

SPREADS = {"BLEU-4": 47, "CIDEr": 120}
"""Half of the 95 % interval of a score on N images, times the square root of N: measured on photographs of Flickr8k."""


def describe_small_splits(dataset: Dataset) -> list[str]:
    """Return a sentence for each split of few images that is scored: how uncertain its scores are."""
    sentences = []
    for name in ("val", "test"):
        number = len(dataset.splits.get(name, ()))
        if number == 1:
            sentences.append(f"{name} has 1 image: {ONE_IMAGE}")
        elif 0 < number < SMALL:
            limits = " and ".join(f"{score} by {spread / number**0.5:.0f}" for score, spread in SPREADS.items())
            sentences.append(f"{name} has {number} images: scores are uncertain, {limits} points (docs/own_data.md)")
    return sentences


def print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        Terminal().print(f"note: {note}", style="yellow", markup=False, soft_wrap=True)


def print_scores(
    columns: Sequence[Mapping[str, float]],
    missing: Mapping[str, str],
    title: str,
    others: Labels = MappingProxyType({}),
) -> None:
    """Print the scores of sets of captions by their names in result files, and the reasons for missing metrics.

    Several sets are side by side, in numbered columns.

    Args:
        others: labels and number formats of scores that this module does not know.
    """
    headings = [f"({i})" for i in range(1, len(columns) + 1)]
    table = numeric_table("", headings, show_header=len(columns) > 1)
    numbers = [name for figures in columns for name, score in figures.items() if isinstance(score, float)]
    for group in _groups(numbers, others):
        for name, (label, form) in group.items():
            if name.startswith(tuple(missing)) or any(name in figures for figures in columns):
                table.add_row(label, *[format(figures[name], form) if name in figures else "-" for figures in columns])
        table.add_section()
    _print_titled(table, title)
    for metric, reason in missing.items():
        label, _ = METRICS.get(metric, (metric if "." in metric else metric.upper(), ""))
        Terminal(soft_wrap=True).print(f"{label} is missing: {reason}", markup=False)


def _groups(names: Iterable[str], others: Labels) -> list[Labels]:
    """Return groups of labels and number formats, the paper's scores first: BLEU without brevity penalty.

    Args:
        names: of scores, which may be those of a user's own metrics.
        others: labels of scores that this module does not know.
    """
    known = {*BLEU, *BLEU_WITH_PENALTY, *METRICS, *others, *COUNTS}
    own = {name: (name, ".1f") for name in names if name not in known}
    return [BLEU, BLEU_WITH_PENALTY, METRICS, own, others, COUNTS]


FEW = 500
"""Number of images below which the intervals of scores are printed."""


def describe_intervals(intervals: Mapping[str, tuple[float, float]], num_images: int) -> list[str]:
    """Return a sentence with the 95 % intervals of the main scores on few images."""
    if num_images == 1:
        return [ONE_IMAGE] if "cider" in intervals else []
    names = {"bleu4": "BLEU-4", "meteor": "METEOR", "cider": "CIDEr"}
    ends = {name: [f"{end:.1f}" for end in intervals[key]] for key, name in names.items() if key in intervals}
    ranges = [f"{name} {low} to {high}" for name, (low, high) in ends.items() if low != high]
    if num_images >= FEW or not ranges:
        return []
    return [f"{num_images:,} images are few; 95 % intervals over resamples of them: {', '.join(ranges)}"]


def print_comparison(comparison: Comparison, title: str) -> None:
    """Print the differences in score between the second and the first of two sets of captions."""
    table = numeric_table("", ("difference", "95 % interval", "higher in"))
    *groups, _ = _groups(comparison, {})
    for group in groups:
        for name, (label, form) in group.items():
            if name in comparison:
                *values, higher = comparison[name].values()
                difference, low, high = (format(value, f"+{form}") for value in values)
                table.add_row(label, difference, f"[{low}, {high}]", f"{100 * higher:.1f} %")
        table.add_section()
    _print_titled(table, title)


def _print_titled(table: Table, title: str) -> None:
    """Print a table with its title unwrapped, which is longer than the table is wide."""
    console = Terminal(soft_wrap=True)
    console.print(title, style="italic", markup=False)
    console.print(table)


def print_statistics(figures: Mapping[str, float]) -> None:
    """Print the entropy and movement of attention over the words of the reference captions."""
    Terminal(soft_wrap=True).print(
        f"attention at the words of the references: entropy {figures['attention_entropy']:.2f} nats, and "
        f"{100 * figures['attention_movement']:.1f} % of it moves from word to word\n"
    )


def print_attention_scores(figures: Mapping[str, Any], title: str) -> None:
    """Print pointing game and attention correctness in percent, for the model, for maps that ignore the image, and by
    kind of object.

    Args:
        figures: see `score_attention`.
    """
    columns = ("nouns", "pointing game", "correctness")
    table = numeric_table("attention", columns, title=Text(printable(title)))
    others = figures["attention_baselines"]
    rows = {"model": figures, "uniform": others["uniform"], "center prior": others["center"]}
    rows |= {f"model: {kind}": scores for kind, scores in figures["attention_by_kind"].items()}
    for name, scores in rows.items():
        num_words, *rates = (scores[key] for key in ("pointing_game_words", "pointing_game", "attention_correctness"))
        table.add_row(name, f"{num_words:,}", *(f"{rate:.1f}" for rate in rates), end_section=name == "center prior")
    Terminal().print(table)


class TableValue(NamedTuple):
    """A figure, or the mean of several with its standard deviation (n - 1)."""

    mean: float
    deviation: float | None = None
    digits: int = 1

    def __str__(self) -> str:
        mean = f"{self.mean:.{self.digits}f}"
        return mean if self.deviation is None else f"{mean} ± {self.deviation:.{self.digits}f}"


class TableRow(NamedTuple):
    """A model and its figures; `results` are the files behind them, none for a row of the paper."""

    label: str
    figures: Mapping[str, TableValue]
    results: Sequence[Result] = ()


class TableBlock(NamedTuple):
    """The rows of a data set, the paper's first."""

    title: str
    rows: Sequence[TableRow]


class ResultsTable(NamedTuple):
    """Blocks, the names of their figures, and notes of one sentence each."""

    split: str
    columns: Sequence[str]
    blocks: Sequence[TableBlock]
    notes: Sequence[str]


def print_overview(overview: ResultsTable) -> None:
    """Print a section for each data set; deviations are printed below their means to fit a terminal of 80 columns."""
    headings = [*map(HEADINGS.__getitem__, overview.columns), "seeds"]
    table = numeric_table("model", headings, title=f"results on the {overview.split} split")
    for block in overview.blocks:
        table.add_row(Text(block.title, style="bold"))
        for row in block.rows:
            cells = [row.label, *_cells(row, overview.columns)]
            table.add_row(*(Text(cell.replace(" ± ", "\n±")) for cell in cells))
        table.add_section()
    Terminal().print(table)
    print_notes(overview.notes)


FORMATS = (".md", ".tex", ".html")
"""Suffixes of files with a table."""


def check_format(path: Path) -> None:
    """Raise `UserError` for a file whose suffix is not one of a table."""
    if path.suffix not in FORMATS:
        suffixes = " or ".join(FORMATS)
        raise UserError(f"a table cannot be written as {path}; give output a file with the suffix {suffixes}")


def format_table(overview: ResultsTable, path: Path) -> str:
    """Return the content of a file with a table, in the format of its suffix.

    A page leaves out empty columns of a block, and its links to the folders of the runs start from its own folder.
    """
    blocks = []
    for block in overview.blocks:
        columns = overview.columns
        if path.suffix == ".html":
            columns = tuple(column for column in columns if any(column in row.figures for row in block.rows))
        blocks.append((block.title, columns, [(row, _cells(row, columns)) for row in block.rows]))

    def link(result: Result) -> str:
        return os.path.relpath(Path(result.path).parent, path.parent)

    heading = HEADINGS.__getitem__
    return fill(f"table{path.suffix}", overview=overview, blocks=blocks, heading=heading, link=link, run_name=run_name)


def _cells(row: TableRow, columns: Sequence[str]) -> list[str]:
    """Return the figures of a row as text, `-` for a missing one, and the number of its seeds."""
    seeds = len(row.results)
    if seeds == 1:  # a single run, or a single ensemble, whose models have seeds
        seeds = len({model.seed for model in row.results[0].models})
    return [*(str(row.figures.get(column, "-")) for column in columns), str(seeds or "")]


def model_card(
    card: Mapping[str, Any],
    name: str = "",
    license: str = "",
    results: str | Path | Sequence[str | Path] = (),
    data: str = "",
    limitations: Sequence[str] = (),
    note: str = "",
) -> str:
    """Return the model card of a model as Markdown. Texts of the checkpoint and of result files are escaped.

    Args:
        card: metadata of the model's checkpoint.
        name: of the model; by default the data set that it was trained on and its attention.
        license: of the weights, by its name on the hub.
        results: result files of `evaluate`, whose scores are shown.
        data: a sentence on who made the data, and under which terms.
        limitations: of this model, in addition to those of all models of its kind.
        note: what users should know, as the rest of a sentence about the model ("was trained on drawn shapes"). The
            commands that caption photographs print it.
    """
    files = [results] if isinstance(results, str | Path) else results
    choices = card["choices"]
    default_name = f"{choices.get('dataset', 'own data')}, {choices.get('attention', 'own')} attention"
    return fill(
        "model_card.md",
        card=card,
        name=Markup(name) or default_name,
        license=Markup(license or "unknown"),
        data=Markup(data),
        limitations=map(Markup, limitations),
        note=Markup(note),
        note_as_yaml=Markup(json.dumps(note)),
        results=[read_result(Path(file)) for file in files],
    )
