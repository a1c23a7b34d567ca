"""Terminal tables of data sets and scores, and the scores of attention by their names in result files."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from showattendtell.data.vocabulary import Vocabulary
from showattendtell.errors import printable
from showattendtell.metrics.attention import AttentionScores, MapScore, Relations
from showattendtell.metrics.bootstrap import Comparison
from showattendtell.types import Dataset

Labels = Mapping[str, tuple[str, str]]

METRICS = {
    "meteor": ("METEOR", ".1f"),
    "rouge_l": ("ROUGE-L", ".1f"),
    "cider": ("CIDEr", ".1f"),
    "spice": ("SPICE", ".1f"),
    "clip_score": ("CLIPScore", ".1f"),
}
SCORES = (
    {f"bleu{n}": (f"BLEU-{n} without brevity penalty", ".1f") for n in range(1, 5)},
    {
        **{f"bleu{n}_with_penalty": (f"BLEU-{n} with brevity penalty", ".1f") for n in range(1, 5)},
        "brevity_penalty": ("brevity penalty", ".3f"),
    },
    METRICS,
)
"""Labels and number formats of caption scores, the paper's first: BLEU without brevity penalty."""
COUNTS = {
    "words": ("words", ",.0f"),
    "reference_words": ("words of the closest references", ",.0f"),
    "mean_length": ("words per caption", ".1f"),
    "distinct_captions": ("distinct captions", ",.0f"),
    "distinct_words": ("distinct words", ",.0f"),
    "distinct1": ("distinct words, % of all", ".1f"),
    "distinct2": ("distinct pairs of words, % of all", ".1f"),
    "novelty": ("captions not in training, %", ".1f"),
}
"""Labels and number formats of the length and diversity of captions."""


class Terminal(Console):
    """Standard output without the control characters of names from files. It may be closed, as by `... | head`: the
    command then continues without printing, and writes its result files."""

    def on_broken_pipe(self) -> None:
        """Discard what is printed from now on."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def print(self, *shown: Any, **options: Any) -> None:
        lines = ("\n".join(map(printable, one.split("\n"))) if isinstance(one, str) else one for one in shown)
        super().print(*lines, **options)


def print_dataset(dataset: Dataset, vocabulary: Vocabulary) -> None:
    """Print images, captions, lengths and vocabulary coverage of each split, and notes on skipped entries."""
    table = Table(
        "split",
        "images",
        "captions",
        "words per caption",
        "known words",
        title=Text(printable(dataset.name)),
        title_justify="left",
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for name, split in dataset.splits.items():
        captions = [caption.words for example in split for caption in example.captions]
        mean = sum(map(len, captions)) / max(len(captions), 1)
        coverage = f"{100 * vocabulary.coverage(captions):.2f} %"
        table.add_row(name, f"{len(split):,}", f"{len(captions):,}", f"{mean:.1f}", coverage)
    table.caption = f"vocabulary: {len(vocabulary):,} ids"
    Terminal(highlight=False).print(table)
    print_notes(dataset.notes)


def print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        Terminal(highlight=False).print(f"note: {note}", style="yellow", markup=False, soft_wrap=True)


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
    table = Table("", show_header=len(columns) > 1)
    for i in range(1, len(columns) + 1):
        table.add_column(f"({i})", justify="right")
    numbers = (name for figures in columns for name, score in figures.items() if isinstance(score, float))
    for group in (*SCORES, _other_scores(numbers, others), others, COUNTS):
        for name, (label, form) in group.items():
            if name.startswith(tuple(missing)) or any(name in figures for figures in columns):
                table.add_row(label, *(format(figures[name], form) if name in figures else "-" for figures in columns))
        table.add_section()
    print_titled(table, title, missing)


def _other_scores(names: Iterable[str], others: Labels) -> dict[str, tuple[str, str]]:
    """Return labels and number formats of the scores of a user's own metrics."""
    known = {name for group in (*SCORES, others, COUNTS) for name in group}
    return {name: (name, ".1f") for name in names if name not in known}


def print_comparison(comparison: Comparison, title: str) -> None:
    """Print the differences in score between the second and the first of two sets of captions."""
    table = Table("")
    for column in ("difference", "95 % interval", "higher in"):
        table.add_column(column, justify="right")
    for group in (*SCORES, _other_scores(comparison.differences, {})):
        for name, (label, form) in group.items():
            if name in comparison.differences:
                *values, higher = comparison.differences[name]
                difference, low, high = (format(value, f"+{form}") for value in values)
                table.add_row(label, difference, f"[{low}, {high}]", f"{100 * higher:.1f} %")
        table.add_section()
    print_titled(table, title, comparison.missing)


def print_titled(table: Table, title: str, missing: Mapping[str, str]) -> None:
    """Print a table with its title and reasons unwrapped, since they are longer than the table is wide."""
    console = Terminal(highlight=False, soft_wrap=True)
    console.print(title, style="italic", markup=False)
    console.print(table)
    for metric, reason in missing.items():
        label, _ = METRICS.get(metric, (metric if "." in metric else metric.upper(), ""))
        console.print(f"{label} is missing: {reason}", markup=False)


def print_maps(statistics: Mapping[str, float]) -> None:
    """Print the entropy and movement of attention over the words of the reference captions, as in result files."""
    Terminal(highlight=False).print(
        f"attention at the words of the references: entropy {statistics['attention_entropy']:.2f} nats, and "
        f"{100 * statistics['attention_movement']:.1f} % of it moves from word to word\n",
        soft_wrap=True,
    )


def print_relations(relations: Relations) -> None:
    """Print the accuracy on relation words of the reference captions; nothing if they have none."""
    if not relations.num_words:
        return
    Terminal(highlight=False).print(
        f"relation words (left, above, ...): {100 * relations.accuracy:.1f} % of {relations.num_words:,} correct; "
        f"always the most frequent: {100 * relations.majority:.1f} %\n",
        soft_wrap=True,
    )


def print_attention_scores(scores: AttentionScores, title: str, with_kinds: bool = False) -> None:
    """Print pointing game and attention correctness in percent, for the model and for maps that ignore the image."""
    table = Table("attention", title=title, title_justify="left")
    for column in ("nouns", "pointing game", "correctness"):
        table.add_column(column, justify="right")
    sources = {
        "model": scores.model,
        "uniform": scores.uniform,
        "center prior": scores.center,
    }
    kinds = {f"model: {kind}": score for kind, score in scores.by_kind.items()} if with_kinds else {}
    for name, score in (sources | kinds).items():
        rates = (f"{100 * rate:.1f}" for rate in (score.hit_rate, score.correctness))
        table.add_row(name, f"{score.num_words:,}", *rates, end_section=name == "center prior")
    Terminal(highlight=False).print(table)


def relation_figures(relations: Relations) -> dict[str, Any]:
    """Return the scores of relations by their names in result files; rates in percent."""
    return {
        "relation_accuracy": 100 * relations.accuracy,
        "relation_majority": 100 * relations.majority,
        "relation_words": relations.num_words,
    }


def attention_score_figures(scores: AttentionScores) -> dict[str, Any]:
    """Return the scores of attention maps by their names in result files; rates in percent."""
    by_kind = {
        kind: {**_rates(score), "pointing_game_words": score.num_words} for kind, score in scores.by_kind.items()
    }
    return {
        **_rates(scores.model),
        "pointing_game_words": scores.model.num_words,
        "attention_baselines": {"uniform": _rates(scores.uniform), "center": _rates(scores.center)},
        "attention_by_kind": by_kind,
    }


def _rates(score: MapScore) -> dict[str, float]:
    return {"pointing_game": 100 * score.hit_rate, "attention_correctness": 100 * score.correctness}
