"""Data sets and scores as tables on the screen."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from showattendtell.metrics.bootstrap import Comparison
from showattendtell.metrics.gaze import Gaze
from showattendtell.metrics.relations import Relations
from showattendtell.records import Dataset
from showattendtell.text.vocabulary import Vocabulary


class Shown(NamedTuple):
    """What stands before a figure, and how the figure is written."""

    label: str
    form: str = ".1f"


METRICS = {
    "meteor": Shown("METEOR"),
    "rouge_l": Shown("ROUGE-L"),
    "cider": Shown("CIDEr"),
    "spice": Shown("SPICE"),
    "clip_score": Shown("CLIPScore"),
}
SCORES = (
    {f"bleu{n}": Shown(f"BLEU-{n} without brevity penalty") for n in range(1, 5)},
    {
        **{f"bleu{n}_with_penalty": Shown(f"BLEU-{n} with brevity penalty") for n in range(1, 5)},
        "brevity_penalty": Shown("brevity penalty", ".3f"),
    },
    METRICS,
)
"""The figures that say how good captions are, the paper's first: BLEU without brevity penalty."""
COUNTS = {
    "words": Shown("words", ",.0f"),
    "reference_words": Shown("words of the closest references", ",.0f"),
    "words_a_caption": Shown("words a caption"),
    "distinct_captions": Shown("distinct captions", ",.0f"),
    "vocabulary_used": Shown("distinct words", ",.0f"),
    "distinct1": Shown("distinct words, % of all"),
    "distinct2": Shown("distinct pairs of words, % of all"),
    "novel": Shown("captions not in training, %"),
}
"""The figures that say how long and how different captions are."""


def print_dataset(dataset: Dataset, vocabulary: Vocabulary) -> None:
    """Images, captions, lengths and vocabulary coverage of each split, and what the reader passed over."""
    table = Table(
        "split", "images", "captions", "words a caption", "known words", title=dataset.name, title_justify="left"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for name, split in dataset.splits.items():
        captions = [caption.words for example in split for caption in example.captions]
        mean = sum(map(len, captions)) / max(len(captions), 1)
        known = f"{100 * vocabulary.coverage(captions):.2f} %"
        table.add_row(name, f"{len(split):,}", f"{len(captions):,}", f"{mean:.1f}", known)
    table.caption = f"vocabulary: {len(vocabulary):,} ids"
    Console(highlight=False).print(table)
    print_notes(dataset.notes)


def print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        Console(highlight=False).print(f"note: {note}", style="yellow", markup=False, soft_wrap=True)


def print_scores(figures: Mapping[str, float], missing: Mapping[str, str], title: str) -> None:
    """Captions' scores by their names in result files; below them, why metrics are missing."""
    print_columns([figures], missing, title)


def print_columns(columns: Sequence[Mapping[str, float]], missing: Mapping[str, str], title: str) -> None:
    """The scores of several sets of captions side by side, under their numbers."""
    table = Table("", show_header=len(columns) > 1)
    for number in range(1, len(columns) + 1):
        table.add_column(f"({number})", justify="right")
    for group in (*SCORES, COUNTS):
        for name, shown in group.items():
            if name.startswith(tuple(missing)) or any(name in figures for figures in columns):
                cells = (format(figures[name], shown.form) if name in figures else "-" for figures in columns)
                table.add_row(shown.label, *cells)
        table.add_section()
    _print_titled(table, title, missing)


def print_comparison(comparison: Comparison, title: str) -> None:
    """By how much the second of two sets of captions scores higher."""
    table = Table("")
    for column in ("difference", "95 % interval", "higher in"):
        table.add_column(column, justify="right")
    for group in SCORES:
        for name, shown in group.items():
            if name in comparison.differences:
                *values, higher = comparison.differences[name]
                difference, low, high = (format(value, f"+{shown.form}") for value in values)
                table.add_row(shown.label, difference, f"[{low}, {high}]", f"{100 * higher:.1f} %")
        table.add_section()
    _print_titled(table, title, comparison.missing)


def _print_titled(table: Table, title: str, missing: Mapping[str, str]) -> None:
    """Title and reasons are longer than the table is wide."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(title, style="italic", markup=False)
    console.print(table)
    for metric, reason in missing.items():
        label = METRICS[metric].label if metric in METRICS else metric.upper()
        console.print(f"{label} is missing: {reason}", markup=False)


def print_maps(figures: Mapping[str, float]) -> None:
    """How sharp attention is and how much of it moves, over people's words, as result files have it."""
    Console(highlight=False).print(
        f"attention over people's words: entropy {figures['attention_entropy']:.2f} nats, and "
        f"{100 * figures['attention_movement']:.1f} % of it moves from word to word\n",
        soft_wrap=True,
    )


def print_relations(relations: Relations) -> None:
    """How often the model chooses relations as people do; nothing where people's captions have none."""
    if not relations.num_words:
        return
    right = f"{100 * relations.accuracy:.1f} % of {relations.num_words:,}"
    Console(highlight=False).print(
        f"relations (left, above, near, ...) that it chooses as people do: {right}; always saying the commonest: "
        f"{100 * relations.commonest:.1f} %\n",
        soft_wrap=True,
    )


def print_gaze(gaze: Gaze, title: str, with_kinds: bool = False) -> None:
    """Pointing game and attention correctness in percent: the model beside maps that know nothing of the image."""
    table = Table("attention", title=title, title_justify="left")
    for column in ("nouns", "pointing game", "correctness"):
        table.add_column(column, justify="right")
    sources = {"model": gaze.model, "uniform": gaze.uniform, "centre prior": gaze.centre}
    kinds = {f"model: {kind}": score for kind, score in gaze.by_kind.items()} if with_kinds else {}
    for name, score in (sources | kinds).items():
        rates = (f"{100 * rate:.1f}" for rate in (score.hit_rate, score.correctness))
        table.add_row(name, f"{score.num_words:,}", *rates, end_section=name == "centre prior")
    Console(highlight=False).print(table)
