"""Compare results: rows of tables, the paper's Table 1, baselines, and notes on what cannot be compared."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from showattendtell.errors import UserError
from showattendtell.settings import leaves, may_differ
from showattendtell.visualization.result_files import Result, is_current, run_name
from showattendtell.visualization.tables import DIGITS, HEADINGS, ResultsTable, TableBlock, TableRow, TableValue

COLUMNS = ("bleu1", "bleu2", "bleu3", "bleu4", "meteor")

PAPER_TABLE = Path(__file__).with_name("paper.csv")
"""The paper's Table 1 as printed (x 100, BLEU without brevity penalty), with the content of its footnotes."""

DATASETS = {"flickr8k": "Flickr8k", "flickr30k": "Flickr30k", "coco": "COCO"}
"""The data sets of the paper, and their names there."""

PAPER_IMAGES = {"flickr8k": 1000, "flickr30k": 1000, "coco": 5000}
"""Number of images in the paper's test splits."""

NOT_COMPARED = ("seed", "dataset.entities", "dataset.instances")
"""Settings of training that may differ between runs of one row, in addition to those that may change on resume."""

IN_LABEL = ("attention", "decoder", "decoding", "dataset", "logger")
"""Config groups whose options are no part of a row's settings: its label or its block has them, or nobody asks."""

ORIGIN = "paper: Table 1 of Xu et al. 2015, whose BLEU is without brevity penalty"

CONSTANT, NEAREST, HUMAN, LEAVE_ONE_OUT = "constant", "nearest", "human", "model_leave_one_out"
BASELINES = {
    CONSTANT: "best constant caption",
    NEAREST: "nearest neighbor's caption",
    HUMAN: "human, one caption against the others",
    LEAVE_ONE_OUT: "the model against the same captions",
}
"""The baselines in result files, and their labels."""

Settings = dict[str, str]
"""Settings in the form of the command line."""


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
        notes += [f"{title}: {note}" for note in find_notes(rows, columns)]
        published = paper_rows(name) if with_paper else ()
        if published:
            notes += [f"{title}: {note}" for note in find_other_splits(rows, PAPER_IMAGES[name])]
        blocks.append(TableBlock(title, (*published, *rows)))
    if with_paper and DATASETS.keys() & datasets:
        notes.insert(0, ORIGIN)
    return ResultsTable(results[0].split, tuple(columns), tuple(blocks), tuple(notes))


def _settings(result: Result) -> tuple[Settings, Settings, Settings]:
    """Return what may distinguish rows of the same label: options of training; settings of training, with the name of
    the checkpoint (best or last); settings of decoding, tokenizer and split."""
    options = _merge(model.choices for model in result.models)
    config = _merge(model.config for model in result.models)
    training = {
        f"validation.{key}" if key.startswith("decoding.") else key: value
        for key, value in config.items()
        if key not in NOT_COMPARED and not may_differ(key)
    }
    if training.get("init_from"):  # each seed of a second stage has a folder of its own
        start = Path(training["init_from"])
        training["init_from"] = str(Path(start.parent.parent.name, start.name))
    if "average_of" in options:  # the settings of an average are those of one of its parts
        training["average_of"] = options["average_of"]
    training["checkpoint"] = "+".join(Path(model.checkpoint).name for model in result.models)
    scoring = _flat({"decoding": result.decoding, "tokenizer": result.tokenizer, "split_sha256": result.split_sha256})
    return {group: option for group, option in options.items() if group not in IN_LABEL}, training, scoring


def _label(results: Sequence[Result]) -> str:
    """Return the folder of the results, if several were searched and all are in one; else the attention, the decoder if
    it is not the paper's, and the size of an ensemble."""
    folder, models = results[0].folder, results[0].models
    if folder and {result.folder for result in results} == {folder}:
        return folder

    def options(group: str, default: str) -> str:
        return "+".join(dict.fromkeys(str(model.choices.get(group, default)) for model in models))

    label, decoders = options("attention", "unknown"), options("decoder", "lstm")
    if decoders != "lstm":
        label += f", decoder={decoders}"
    return f"{label}, ensemble of {len(models)}" if len(models) > 1 else label


def _flat(node: Mapping[str, Any]) -> Settings:
    """Flatten `{"a": {"b": 1}}` to `{"a.b": "1"}`."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in leaves("", node)}


def _merge(nodes: Iterable[Mapping[str, Any]]) -> Settings:
    """Flatten and merge the settings of several models; values that differ are joined by `+`."""
    flat = list(map(_flat, nodes))
    values = {key: [own.get(key, "-") for own in flat] for key in chain.from_iterable(flat)}
    return {key: "+".join(each if len(set(each)) > 1 else each[:1]) for key, each in values.items()}


def _rows(results: Sequence[Result], columns: Sequence[str]) -> list[TableRow]:
    """Return a row for each group of results that differ only in the seed, in the order of their first results."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(json.dumps(_settings(result)[1:], sort_keys=True), []).append(result)
    first = [group[0] for group in groups.values()]
    choices, training, scoring = zip(*map(_settings, first), strict=True)
    labels = [_label(group) for group in groups.values()]
    labels = _disambiguate(labels, labels, choices)
    labels = _disambiguate(labels, labels, training)
    labels = _disambiguate(labels, [""] * len(labels), scoring)
    for sha256, run in _runs_by_split(first).items():
        labels = [label.replace(f"split_sha256={sha256}", f"images of {run}") for label in labels]
    rows = []
    for label, group in zip(labels, groups.values(), strict=True):
        by_weights: dict[tuple[str, ...], Result] = {}
        for result in group:
            by_weights.setdefault(tuple(model.sha256 for model in result.models), result)
        rows.append(mean_row(label, tuple(by_weights.values()), columns))
    return rows


def _disambiguate(labels: Sequence[str], groups: Sequence[str], settings: Sequence[Settings]) -> list[str]:
    """Append to the label of each row the settings, as `key=value`, in which rows of its group differ."""
    longer = []
    for label, group, own in zip(labels, groups, settings, strict=True):
        others = [other for name, other in zip(groups, settings, strict=True) if name == group]
        differing = [f", {key}={own[key]}" for key in own if any(other.get(key) != own[key] for other in others)]
        longer.append(label + "".join(differing))
    return longer


def _runs_by_split(results: Iterable[Result]) -> dict[str, str]:
    """Return the checksum of each split, and the first run on it."""
    runs: dict[str, str] = {}
    for result in results:
        runs.setdefault(result.split_sha256, run_name(result))
    return runs


def mean_row(label: str, results: tuple[Result, ...], columns: Sequence[str]) -> TableRow:
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


def find_unbeaten(figures: Mapping[str, float], baselines: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a phrase for each baseline that knows less than a model, if the model does not beat it in every score:
    `does not beat the best constant caption in METEOR, CIDEr`."""
    for name in (CONSTANT, NEAREST):
        scores = baselines.get(name, {})
        compared = [key for key in ("bleu4", "meteor", "rouge_l", "cider") if key in figures and key in scores]
        if lower := [HEADINGS[key] for key in compared if figures[key] <= scores[key]]:
            yield f"does not beat the {BASELINES[name]} in {', '.join(lower).replace('B-', 'BLEU-')}"


def find_notes(rows: Sequence[TableRow], columns: Sequence[str]) -> Iterator[str]:
    """Yield notes on rows that cannot be compared, and on missing figures."""
    first = [row.results[0] for row in rows]
    tokenizers = dict.fromkeys(result.tokenizer for result in first)
    runs = _runs_by_split(first).values()
    advice = "only rows with the same can be compared"
    if len(tokenizers) > 1:
        yield f"words were split in different ways (tokenizer is {', '.join(tokenizers)}); {advice}"
    if len(runs) > 1:
        yield f"the images or captions are not the same (in {', '.join(runs)}); {advice}"
    for row in rows:
        for column in columns:
            missing = [result for result in row.results if column not in result.figures]
            if 0 < len(missing) < len(row.results):
                yield f"{row.label}: {HEADINGS[column]} is missing in {missing[0].path}; evaluate it again"
        seeds = {tuple(model.seed for model in result.models) for result in row.results}
        if len(seeds) < len(row.results):
            yield f"{row.label}: {len(row.results)} runs share {len(seeds)} seeds"
