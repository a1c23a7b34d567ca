"""Compare results: rows of tables, the paper's Table 1, and notes on what cannot be compared."""

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from showattendtell.errors import UserError
from showattendtell.results.files import Result, is_current, run_name
from showattendtell.results.tables import DIGITS, HEADINGS, ResultsTable, TableBlock, TableRow, TableValue
from showattendtell.settings import leaves, may_differ

COLUMNS = ("bleu1", "bleu2", "bleu3", "bleu4", "meteor")

PAPER_TABLE = Path(__file__).with_name("paper.csv")
"""The paper's Table 1 as printed (x 100, BLEU without brevity penalty), with the content of its footnotes."""

DATASETS = {"flickr8k": "Flickr8k", "flickr30k": "Flickr30k", "coco": "COCO"}
"""The data sets of the paper, and their names there."""

PAPER_IMAGES = {"flickr8k": 1000, "flickr30k": 1000, "coco": 5000}
"""Number of images in the paper's test splits."""

NOT_COMPARED = ("seed", "dataset.entities", "dataset.instances")
"""Settings of training that may differ between runs of one row, in addition to those that may change on resume."""

ORIGIN = "paper: Table 1 of Xu et al. 2015, whose BLEU is without brevity penalty"


def compare(results: Sequence[Result], columns: Sequence[str], with_paper: bool) -> ResultsTable:
    """Return the results in blocks by data set, with the paper's rows first.

    Results of the same checkpoint and decoding are counted once. Those of a checkpoint that has changed are left out.

    Raises:
        UserError: all are left out.
    """
    current = [result for result in results if is_current(result)]
    stale = [result.path for result in results if result not in current]
    notes = [f"{path} is left out: its checkpoint has changed since; evaluate it again" for path in stale]
    if not current:
        raise UserError(notes[0])
    blocks, datasets = [], sorted({result.dataset for result in current})
    for name in datasets:
        rows = _rows([result for result in current if result.dataset == name], columns)
        title = DATASETS.get(name, name)
        published = paper_rows(name) if with_paper else []
        others = find_other_splits(rows, PAPER_IMAGES[name]) if published else ()
        notes += [f"{title}: {note}" for note in (*find_notes(rows, columns), *others)]
        blocks.append(TableBlock(title, [*published, *rows]))
    if with_paper and DATASETS.keys() & datasets:
        notes.insert(0, ORIGIN)
    return ResultsTable(results[0].split, columns, blocks, notes)


def _rows(results: Sequence[Result], columns: Sequence[str]) -> list[TableRow]:
    """Return a row for each group of results that differ only in the seed, by the names of their folders, and by the
    settings of decoding and tokenizer in which results differ."""
    groups, scorings = _group(results, _training), list(map(_scoring, results))
    rows = []
    for name, runs in zip(_folder_names(groups), groups, strict=True):
        for group in _group(runs, _scoring):
            own = _scoring(group[0])
            differing = [f"{key}={own[key]}" for key in own if any(other.get(key) != own[key] for other in scorings)]
            by_weights = {tuple(model.sha256 for model in result.models): result for result in reversed(group)}
            rows.append(mean_row(", ".join([name, *differing]), [*by_weights.values()][::-1], columns))
    return rows


def _group(results: Iterable[Result], key: Callable[[Result], Any]) -> list[list[Result]]:
    """Return the results in groups of the same key, in the order of their first ones."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(json.dumps(key(result), sort_keys=True), []).append(result)
    return list(groups.values())


def _training(result: Result) -> list[Any]:
    """Return what runs of one row have in common: images, checkpoint (best or last), and settings without the seed."""
    models: list[Any] = [result.split_sha256]
    for model in result.models:
        config = {key: x for key, x in leaves("", model.config) if key not in NOT_COMPARED and not may_differ(key)}
        if config.get("init_from"):  # each seed of a second stage has a folder of its own
            start = Path(str(config["init_from"]))
            config["init_from"] = [start.parent.parent.name, start.name]
        # the settings of an average are those of one of its parts
        models.append([config, model.choices.get("average_of"), Path(model.checkpoint).name])
    return models


def _scoring(result: Result) -> dict[str, str]:
    """Return the settings of decoding and tokenizer in the form of the command line."""
    settings = leaves("", {"decoding": result.decoding, "tokenizer": result.tokenizer})
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings}


def _folder_names(groups: Sequence[Sequence[Result]]) -> list[str]:
    """Return the folder of each group below the folder of all, or the first file of groups in the same folder."""
    folders = [os.path.commonpath([Path(result.path).absolute().parent for result in group]) for group in groups]
    top, names = os.path.commonpath(folders), []
    for folder, group in zip(folders, groups, strict=True):
        path = folder if folders.count(folder) == 1 else os.path.abspath(group[0].path)
        names.append(os.path.basename(path) if path == top else os.path.relpath(path, top))
    return names


def mean_row(label: str, results: Sequence[Result], columns: Sequence[str]) -> TableRow:
    """Return a row with the mean of each figure that all results have."""
    figures = {}
    for column in columns:
        values = [result.figures[column] for result in results if column in result.figures]
        if len(values) == len(results):
            deviation = stdev(values) if len(values) > 1 else None
            figures[column] = TableValue(mean(values), deviation, DIGITS.get(column, 1))
    return TableRow(label, figures, results)


def paper_rows(dataset: str) -> list[TableRow]:
    """Return the rows of the paper's Table 1 for a data set."""
    rows = []
    for row in csv.DictReader(PAPER_TABLE.read_text(encoding="utf-8").splitlines()):
        if row["dataset"] == dataset:
            remark = f" ({row['remark']})" if row["remark"] else ""
            figures = {column: row[column] for column in COLUMNS if row[column]}
            scores = {name: TableValue(float(x), digits=len(x.partition(".")[2])) for name, x in figures.items()}
            rows.append(TableRow(f"paper: {row['model']}{remark}", scores))
    return rows


def find_other_splits(rows: Sequence[TableRow], num_images: int) -> Iterator[str]:
    """Yield a note on each row of another number of images than the paper's split, as a split by hash has."""
    for row in rows:
        count = row.results[0].figures.get("images", num_images)
        if count != num_images:
            yield f"{row.label}: {count:,.0f} images, not the {num_images:,} of the paper's split; do not compare them"


def find_notes(rows: Sequence[TableRow], columns: Sequence[str]) -> Iterator[str]:
    """Yield notes on rows that cannot be compared, and on missing figures."""
    first = [row.results[0] for row in rows]
    tokenizers = dict.fromkeys(result.tokenizer for result in first)
    runs = {result.split_sha256: run_name(result) for result in reversed(first)}.values()
    advice = "only rows with the same can be compared"
    if len(tokenizers) > 1:
        yield f"words were split in different ways (tokenizer is {', '.join(tokenizers)}); {advice}"
    if len(runs) > 1:
        yield f"the images or captions are not the same (in {', '.join(reversed(runs))}); {advice}"
    for row in rows:
        for column in columns:
            missing = [result for result in row.results if column not in result.figures]
            if 0 < len(missing) < len(row.results):
                yield f"{row.label}: {HEADINGS[column]} is missing in {missing[0].path}; evaluate it again"
        seeds = {tuple(model.seed for model in result.models) for result in row.results}
        if len(seeds) < len(row.results):
            yield f"{row.label}: {len(row.results)} runs share {len(seeds)} seeds"
