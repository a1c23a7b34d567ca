"""The table of a reproduction: its rows, next to the paper's, and their differences with confidence intervals."""

from collections.abc import Iterator, Sequence
from math import fsum
from pathlib import Path

import numpy as np

from showattendtell.data.formats import read_all
from showattendtell.extensions.reproduction.tables import PaperTableConfig, TableRun, title_of
from showattendtell.inference.matching import in_words, match
from showattendtell.metrics.bootstrap import Resampled, compare, draw_copies, resample
from showattendtell.runtime.files import atomic_write, write_errors
from showattendtell.visualization.comparison import COLUMNS as PAPER
from showattendtell.visualization.comparison import DATASETS, ORIGIN, find_notes, mean_row, paper_rows
from showattendtell.visualization.result_files import Result
from showattendtell.visualization.tables import (
    DIGITS,
    FORMATS,
    ResultsTable,
    TableBlock,
    TableInterval,
    TableRow,
    format_table,
    print_overview,
)

TIME = "training_minutes"
COLUMNS = (
    *("bleu1", "bleu2", "bleu3", "bleu4", "meteor", "bleu4_with_penalty", "rouge_l", "cider", "distinct_captions"),
    *("pointing_game", "attention_correctness", "attention_entropy", "attention_movement", TIME),
)
METRICS = ("bleu", "meteor", "rouge_l", "cider")
"""Metrics whose differences get confidence intervals."""

RESAMPLES, SEED = 1000, 1


def make_table(table: PaperTableConfig, runs: Sequence[TableRun], notes: Sequence[str]) -> ResultsTable | None:
    """Return the figures of finished runs and ensembles next to the paper's rows; None without runs."""
    series = {}
    for name in (*table.recipes, *table.ensembles):
        finished = [run for run in runs if run.recipe == name]
        for decoding in table.decodings if finished else ():
            of_seeds = tuple(_read(run, decoding) for run in finished)
            series[name, decoding] = mean_row(f"{name}, {title_of(decoding)}", of_seeds, COLUMNS)
    if not series:
        return None
    rows = list(series.values())
    results = [result for row in rows for result in row.results]
    dataset = results[0].dataset
    published = paper_rows(dataset)
    blocks = [TableBlock(DATASETS.get(dataset, dataset), (*published, *rows))]
    nodes = [model.config["encoder"] for result in results for model in result.models]
    encoders = dict.fromkeys(f"{node['network']} at {node.get('size', 224)} pixels" for node in nodes)
    remarks = [
        *([ORIGIN] if published else []),
        *find_notes(rows, COLUMNS),
        f"encoder: {' and '.join(encoders)}{'; the paper has VGG-19' if published else ''}",
    ]
    for result in results:
        for metric, reason in result.missing.items():
            remarks.append(f"{result.path} has no {metric}: {reason}; delete it, and the next run writes it")
    remarks += notes
    base = series.pop((table.base, table.decoding), None)
    others = [row for (recipe, decoding), row in series.items() if recipe == table.base or decoding == table.decoding]
    if base and others:
        blocks.append(TableBlock(f"differences to {base.label}", tuple(_differences(base, others))))
        remarks.append(
            f"differences: of the means over seeds, and the interval of 95 % of {RESAMPLES:,} resamples of the images "
            "(paired bootstrap); what another seed would give is shown by the standard deviations alone"
        )
    columns = tuple(column for column in COLUMNS if any(column in row.figures for row in rows))
    return ResultsTable("test", columns, tuple(blocks), tuple(remarks))


def _read(run: TableRun, decoding: int | str) -> Result:
    """Return a run's result; its training time includes the earlier stages. Averaging takes none, and that of an
    ensemble is left out."""
    result = run.result(decoding)
    assert result
    minutes = result.figures.get(TIME) if run.config else 0.0
    if run.seed is None or minutes is None:
        return result
    minutes += fsum(second for part in run.runs_before() for second in part.seconds) / 60
    return result._replace(figures={**result.figures, TIME: minutes})


def _differences(base: TableRow, others: Sequence[TableRow]) -> Iterator[TableRow]:
    """Yield a row of differences to the base for each of the others, of means over seeds on the same resamples of the
    images; only of metrics that could be computed."""
    from showattendtell.metrics.modular import measure  # torchmetrics takes seconds to import

    paths = [Path(result.path) for row in (base, *others) for result in row.results]
    corpus = in_words(match(read_all(paths), {}, None, partial=False), base.results[0].tokenizer)
    copies = draw_copies(len(corpus.images), RESAMPLES, SEED)

    def resample_row(row: TableRow) -> Resampled:
        panels = [measure(corpus.hypotheses[Path(result.path)], corpus.references, METRICS) for result in row.results]
        return average([resample(panel.measured, copies) for panel in panels])

    first = resample_row(base)
    for row in others:
        differences = compare(first, resample_row(row))
        intervals = {name: TableInterval(*each[:3], DIGITS.get(name, 1)) for name, each in differences.items()}
        yield TableRow(row.label, intervals, row.results)


def average(systems: Sequence[Resampled]) -> Resampled:
    """Return the mean scores of one model with several seeds; only scores that all have."""
    shared = [name for name in systems[0] if all(name in system for system in systems)]
    return {name: np.mean([system[name] for system in systems], axis=0) for name in shared}


def write(overview: ResultsTable, folder: Path, name: str) -> None:
    """Print the paper's columns, and write all columns in every format."""
    print_overview(overview._replace(columns=tuple(name for name in overview.columns if name in PAPER)))
    for suffix in FORMATS:
        path = folder / f"{name}{suffix}"
        with write_errors(path), atomic_write(path) as stream:
            stream.write(format_table(overview, path).encode())
    print(f"the table is in {folder}, as {', '.join(name + suffix for suffix in FORMATS)}")
    if overview.photographs:
        print(f"where the models looked: {folder / overview.photographs}")
