"""Results side by side, in the layout of the paper's Table 1: a row for each way of training and decoding, over its
seeds."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple, TypeVar

from showattendtell.report import paper
from showattendtell.report.overview import DIGITS, HEADINGS, Block, Figure, Overview, Row
from showattendtell.report.result_files import Model, Result
from showattendtell.same_training import may_differ

DATASETS = {"flickr8k": "Flickr8k", "flickr30k": "Flickr30k", "coco": "COCO"}
"""The data sets of the paper in its order, and how it writes them."""

NOT_COMPARED = ("seed", "dataset.entities", "dataset.instances")
"""Settings of training in which runs of one row may differ, besides those in which a run may that goes on."""

INCOMPARABLE = {
    "tokenizer": "words were split in different ways",
    "split_sha256": "the images or captions are not the same",
}
"""What keeps rows from being compared where it differs, and what to say of it."""

ORIGIN = "paper: Table 1 of Xu et al. 2015, whose BLEU is without brevity penalty"

Item = TypeVar("Item")
Settings = dict[str, str]
"""Settings as the command line has them."""


class Entry(NamedTuple):
    """A result and all that tells it from others; of one key are those that differ in nothing but the seed.

    choices   options of training
    training  settings of training, and which of its checkpoints this is
    scoring   how the captions were written, and what they were held against
    """

    result: Result
    label: str
    choices: Settings
    training: Settings
    scoring: Settings

    @property
    def key(self) -> str:
        return json.dumps([self.training, self.scoring], sort_keys=True)


def compare(results: Sequence[Result], columns: Sequence[str], with_paper: bool) -> Overview:
    """The results in blocks by data set: the paper's in its order, then others.

    Results of the same checkpoint and decoding are counted once.
    """
    blocks, notes = [], []
    ranks = {name: rank for rank, name in enumerate(DATASETS)}
    for name in sorted({result.dataset for result in results}, key=lambda name: (ranks.get(name, len(ranks)), name)):
        rows = _rows([describe(result) for result in results if result.dataset == name], columns)
        shown = DATASETS.get(name, name)
        notes += [f"{shown}: {note}" for note in find_notes(rows, columns)]
        blocks.append(Block(shown, (*(paper_rows(name).values() if with_paper else ()), *rows)))
    if any(not row.results for block in blocks for row in block.rows):
        notes.insert(0, ORIGIN)
    return Overview(results[0].split, tuple(columns), tuple(blocks), tuple(notes))


def describe(result: Result) -> Entry:
    """A result with its row's label, and what may tell it from other rows of that label."""
    choices = _common([_flat(model.choices) for model in result.models])
    for group in ("attention", "decoder", "decoding", "dataset", "logger"):
        choices.pop(group, None)
    training = {
        ("validation." if key.startswith("decoding.") else "") + key: value
        for key, value in _common([_flat(model.config) for model in result.models]).items()
        if key not in NOT_COMPARED and not may_differ(key)
    }
    if "initial_weights" in training:  # each seed of a second stage has a folder of its own
        training["initial_weights"] = Path(training["initial_weights"]).name
    if "mean_of" in choices:  # settings and name are those of one of the models that it is made of
        training["mean_of"] = choices["mean_of"]
    training["checkpoint"] = "+".join(Path(model.checkpoint).name for model in result.models)
    scoring = {
        **_flat({"mirrored": False, **result.decoding}, "decoding."),  # results of before it do not tell it
        "tokenizer": result.tokenizer,
        "split_sha256": result.split_sha256[:8],
    }
    return Entry(result, _label(result.models), choices, training, scoring)


def _label(models: Sequence[Model]) -> str:
    """The attention, the decoder where it is not the paper's, and how many models write as one."""
    attentions = dict.fromkeys(str(model.choices.get("attention", "unknown")) for model in models)
    decoders = dict.fromkeys(str(model.choices.get("decoder", "lstm")) for model in models)
    parts = ["+".join(attentions)]
    if list(decoders) != ["lstm"]:
        parts.append(f"decoder={'+'.join(decoders)}")
    if len(models) > 1:
        parts.append(f"ensemble of {len(models)}")
    return ", ".join(parts)


def _flat(node: Mapping[str, Any], path: str = "") -> Settings:
    """`{"a": {"b": 1}}` as `{"a.b": "1"}`."""
    settings: Settings = {}
    for key, value in node.items():
        if isinstance(value, Mapping):
            settings |= _flat(value, f"{path}{key}.")
        else:
            settings[f"{path}{key}"] = value if isinstance(value, str) else json.dumps(value)
    return settings


def _common(settings: Sequence[Settings]) -> Settings:
    """The settings of several models as one: where they differ, all of their values."""
    keys = dict.fromkeys(key for own in settings for key in own)
    values = {key: [own.get(key, "-") for own in settings] for key in keys}
    return {key: own[0] if len(set(own)) == 1 else "+".join(own) for key, own in values.items()}


def _rows(entries: Sequence[Entry], columns: Sequence[str]) -> list[Row]:
    """A row for the results of each key, in the order of the first."""
    groups = _group(entries, [entry.key for entry in entries])
    first = [group[0] for group in groups]
    labels = [entry.label for entry in first]
    for settings in ([entry.choices for entry in first], [entry.training for entry in first]):
        for alike in _group(range(len(labels)), labels):
            _tell_apart(alike, settings, labels)
    _tell_apart(range(len(labels)), [entry.scoring for entry in first], labels)
    rows = []
    for label, group in zip(labels, groups, strict=True):
        once = {tuple(model.sha256 for model in entry.result.models): entry.result for entry in reversed(group)}
        results = tuple(reversed(once.values()))
        rows.append(Row(label, mean_figures(results, columns), results))
    return rows


def _tell_apart(alike: Sequence[int], settings: Sequence[Settings], labels: list[str]) -> None:
    """Put behind these labels, as `key=value`, every setting in which they differ."""
    keys = dict.fromkeys(key for number in alike for key in settings[number])
    differing = [key for key in keys if len({settings[number].get(key) for number in alike}) > 1]
    for number in alike:
        own = settings[number]
        labels[number] += "".join(f", {key}={own[key]}" for key in differing if key in own)


def _group(items: Sequence[Item], keys: Iterable[Any]) -> list[list[Item]]:
    """The items of one key together, in the order of the first."""
    groups: dict[Any, list[Item]] = {}
    for item, key in zip(items, keys, strict=True):
        groups.setdefault(key, []).append(item)
    return list(groups.values())


def mean_figures(results: Sequence[Result], columns: Sequence[str]) -> dict[str, Figure]:
    """Those that all of the results have."""
    figures = {}
    for column in columns:
        values = [result.figures[column] for result in results if column in result.figures]
        if len(values) == len(results):
            deviation = stdev(values) if len(values) > 1 else None
            figures[column] = Figure(mean(values), deviation, DIGITS.get(column, 1))
    return figures


def paper_rows(dataset: str) -> dict[str, Row]:
    """The rows of the paper's Table 1 on a data set, by model."""
    rows = {}
    for published in paper.TABLE_1.get(dataset, ()):
        printed = dict(zip(paper.COLUMNS, published.figures.split(), strict=True))
        figures = {
            column: Figure(float(text), digits=len(text.partition(".")[2]))
            for column, text in printed.items()
            if text != "-"
        }
        remark = f" ({published.remark})" if published.remark else ""
        rows[published.model] = Row(f"paper: {published.model}{remark}", figures)
    return rows


def find_notes(rows: Sequence[Row], columns: Sequence[str]) -> Iterator[str]:
    """What keeps figures of these rows from being compared, or from being there."""
    entries = [describe(row.results[0]) for row in rows]
    for key, reason in INCOMPARABLE.items():
        values = dict.fromkeys(entry.scoring[key] for entry in entries)
        if len(values) > 1:
            yield f"{reason} ({key} is {', '.join(values)}); only rows with the same can be compared"
    for row in rows:
        for column in columns:
            lacking = [result for result in row.results if column not in result.figures]
            if 0 < len(lacking) < len(row.results):
                yield f"{row.label}: {HEADINGS[column]} is missing in {lacking[0].path}; evaluate it again"
        seeds = {tuple(model.seed for model in result.models) for result in row.results}
        if len(seeds) < len(row.results):
            yield f"{row.label}: {len(row.results)} runs share {len(seeds)} seeds"
