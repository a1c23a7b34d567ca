"""Compare results: rows of tables, the paper's Table 1, baselines, and notes on what cannot be compared."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple, TypeVar

from showattendtell.errors import UserError
from showattendtell.settings import may_differ
from showattendtell.visualization.result_files import ModelRecord, Result, is_current, run_name
from showattendtell.visualization.results_table import DIGITS, HEADINGS, ResultsTable, TableBlock, TableRow, TableValue

COLUMNS = ("bleu1", "bleu2", "bleu3", "bleu4", "meteor")


class Published(NamedTuple):
    """A row of Table 1: the model, its figures in the order of `COLUMNS` as printed (x 100, BLEU without brevity
    penalty, `-` where the paper has none), and the content of its footnotes."""

    model: str
    figures: str
    remark: str = ""


TABLE_1 = {
    "flickr8k": (
        Published("Google NIC", "63 41 27 - -", "other split, ensemble"),
        Published("Log Bilinear", "65.6 42.4 27.7 17.7 17.31"),
        Published("Soft-Attention", "67 44.8 29.9 19.5 18.93"),
        Published("Hard-Attention", "67 45.7 31.4 21.3 20.30"),
    ),
    "flickr30k": (
        Published("Google NIC", "66.3 42.3 27.7 18.3 -", "ensemble"),
        Published("Log Bilinear", "60.0 38 25.4 17.1 16.88"),
        Published("Soft-Attention", "66.7 43.4 28.8 19.1 18.49"),
        Published("Hard-Attention", "66.9 43.9 29.6 19.9 18.46"),
    ),
    "coco": (
        Published("CMU/MS Research", "- - - - 20.41", "AlexNet"),
        Published("MS Research", "- - - - 20.71", "AlexNet, other split"),
        Published("BRNN", "64.2 45.1 30.4 20.3 -"),
        Published("Google NIC", "66.6 46.1 32.9 24.6 -", "ensemble"),
        Published("Log Bilinear", "70.8 48.9 34.4 24.3 20.03"),
        Published("Soft-Attention", "70.7 49.2 34.4 24.3 23.90"),
        Published("Hard-Attention", "71.8 50.4 35.7 25.0 23.04"),
    ),
}
"""Its rows by data set."""


DATASETS = {"flickr8k": "Flickr8k", "flickr30k": "Flickr30k", "coco": "COCO"}
"""The data sets of the paper in its order, and their names there."""

NOT_COMPARED = ("seed", "dataset.entities", "dataset.instances")
"""Settings of training that may differ between runs of one row, in addition to those that may change on resume."""

INCOMPARABLE = {
    "tokenizer": "words were split in different ways",
    "split_sha256": "the images or captions are not the same",
}
"""Settings that must be equal for rows to be comparable, and the note to show if they differ."""

ORIGIN = "paper: Table 1 of Xu et al. 2015, whose BLEU is without brevity penalty"

CONSTANT, NEAREST, HUMAN, LEAVE_ONE_OUT = "constant", "nearest", "human", "model_leave_one_out"
BASELINES = {
    CONSTANT: "best constant caption",
    NEAREST: "nearest neighbor's caption",
    HUMAN: "human, one caption against the others",
    LEAVE_ONE_OUT: "the model against the same captions",
}
"""The baselines in result files, and their labels."""
TO_BEAT = (CONSTANT, NEAREST)
"""The baselines that know less than a model: it should score higher."""
COMPARED = ("bleu4", "meteor", "rouge_l", "cider", "spice")
"""The scores that must be higher than those of the baselines."""

Item = TypeVar("Item")
Settings = dict[str, str]
"""Settings in the form of the command line."""


class ResultEntry(NamedTuple):
    """A result with all settings that distinguish it from others; if `training` and `scoring` are equal, only the seed
    differs.

    choices   options of training
    training  settings of training, and the name of the checkpoint (best or last)
    scoring   settings of decoding, tokenizer and split
    """

    result: Result
    label: str
    choices: Settings
    training: Settings
    scoring: Settings


def compare(results: Sequence[Result], columns: Sequence[str], with_paper: bool) -> ResultsTable:
    """Return the results in blocks by data set: those of the paper in its order, then others.

    Results of the same checkpoint and decoding are counted once. Those of a checkpoint that has changed are left out.

    Raises:
        UserError: all are left out.
    """
    blocks, changed = [], [result for result in results if not is_current(result)]
    notes = [f"{result.path} is left out: its checkpoint has changed since; evaluate it again" for result in changed]
    results = [result for result in results if result not in changed]
    if not results:
        raise UserError(notes[0])
    ranks = {name: rank for rank, name in enumerate(DATASETS)}
    for name in sorted({result.dataset for result in results}, key=lambda name: (ranks.get(name, len(ranks)), name)):
        rows = _rows([describe(result) for result in results if result.dataset == name], columns)
        title = DATASETS.get(name, name)
        notes += [f"{title}: {note}" for note in find_notes(rows, columns)]
        published = paper_rows(name).values() if with_paper else ()
        baselines = baseline_rows([result for row in rows for result in row.results], columns)
        blocks.append(TableBlock(title, (*published, *baselines, *rows)))
    if with_paper and any(result.dataset in TABLE_1 for result in results):
        notes.insert(0, ORIGIN)
    return ResultsTable(results[0].split, tuple(columns), tuple(blocks), tuple(notes))


def describe(result: Result) -> ResultEntry:
    """Return a result with the label of its row and the settings that may distinguish rows of that label."""
    choices = _common([_flat(model.choices) for model in result.models])
    for group in ("attention", "decoder", "decoding", "dataset", "logger"):
        choices.pop(group, None)
    training = {
        ("validation." if key.startswith("decoding.") else "") + key: value
        for key, value in _common([_flat(model.config) for model in result.models]).items()
        if key not in NOT_COMPARED and not may_differ(key)
    }
    if training.get("init_from"):  # each seed of a second stage has a folder of its own
        training["init_from"] = Path(training["init_from"]).name
    if "average_of" in choices:  # its settings and name are those of one of the averaged models
        training["average_of"] = choices["average_of"]
    training["checkpoint"] = "+".join(Path(model.checkpoint).name for model in result.models)
    scoring = {
        **_flat({"mirrored": False, **result.decoding}, "decoding."),  # absent from older results
        "tokenizer": result.tokenizer,
        "split_sha256": result.split_sha256[:8],
    }
    return ResultEntry(result, _label(result.models), choices, training, scoring)


def _label(models: Sequence[ModelRecord]) -> str:
    """Return the attention, the decoder if it is not the paper's, and the size of an ensemble."""
    attentions = dict.fromkeys(str(model.choices.get("attention", "unknown")) for model in models)
    decoders = dict.fromkeys(str(model.choices.get("decoder", "lstm")) for model in models)
    parts = ["+".join(attentions)]
    if list(decoders) != ["lstm"]:
        parts.append(f"decoder={'+'.join(decoders)}")
    if len(models) > 1:
        parts.append(f"ensemble of {len(models)}")
    return ", ".join(parts)


def _flat(node: Mapping[str, Any], path: str = "") -> Settings:
    """Flatten `{"a": {"b": 1}}` to `{"a.b": "1"}`."""
    settings: Settings = {}
    for key, value in node.items():
        if isinstance(value, Mapping):
            settings |= _flat(value, f"{path}{key}.")
        else:
            settings[f"{path}{key}"] = value if isinstance(value, str) else json.dumps(value)
    return settings


def _common(settings: Sequence[Settings]) -> Settings:
    """Merge the settings of several models; values that differ are joined by `+`."""
    keys = dict.fromkeys(key for run_settings in settings for key in run_settings)
    values = {key: [run_settings.get(key, "-") for run_settings in settings] for key in keys}
    return {
        key: run_settings[0] if len(set(run_settings)) == 1 else "+".join(run_settings)
        for key, run_settings in values.items()
    }


def _rows(entries: Sequence[ResultEntry], columns: Sequence[str]) -> list[TableRow]:
    """Return a row for each group of results that differ only in the seed, in the order of their first results."""
    groups = _group(entries, [json.dumps([entry.training, entry.scoring], sort_keys=True) for entry in entries])
    first = [group[0] for group in groups]
    labels = [entry.label for entry in first]
    for settings in ([entry.choices for entry in first], [entry.training for entry in first]):
        for duplicates in _group(range(len(labels)), labels):
            _disambiguate(duplicates, settings, labels)
    _disambiguate(range(len(labels)), [entry.scoring for entry in first], labels)
    runs = {entry.scoring["split_sha256"]: run_name(entry.result) for entry in reversed(first)}
    for sha256, run in runs.items():
        labels = [label.replace(f"split_sha256={sha256}", f"images of {run}") for label in labels]
    rows = []
    for label, group in zip(labels, groups, strict=True):
        once = {tuple(model.sha256 for model in entry.result.models): entry.result for entry in reversed(group)}
        results = tuple(reversed(once.values()))
        rows.append(TableRow(label, mean_scores(results, columns), results))
    return rows


def _disambiguate(indices: Sequence[int], settings: Sequence[Settings], labels: list[str]) -> None:
    """Append every setting in which these rows differ to their labels, as `key=value`."""
    rows = {i: settings[i] for i in indices}
    keys = dict.fromkeys(key for row_settings in rows.values() for key in row_settings)
    differing = [key for key in keys if len({row_settings.get(key) for row_settings in rows.values()}) > 1]
    for i, row_settings in rows.items():
        labels[i] += "".join(f", {key}={row_settings[key]}" for key in differing if key in row_settings)


def _group(items: Sequence[Item], keys: Iterable[Any]) -> list[list[Item]]:
    """Group the items by key, in the order of the first of each group."""
    groups: dict[Any, list[Item]] = {}
    for item, key in zip(items, keys, strict=True):
        groups.setdefault(key, []).append(item)
    return list(groups.values())


def mean_scores(results: Sequence[Result], columns: Sequence[str]) -> dict[str, TableValue]:
    """Return the mean of each figure that all of the results have."""
    scores = {}
    for column in columns:
        values = [result.figures[column] for result in results if column in result.figures]
        if len(values) == len(results):
            deviation = stdev(values) if len(values) > 1 else None
            scores[column] = TableValue(mean(values), deviation, DIGITS.get(column, 1))
    return scores


def paper_rows(dataset: str) -> dict[str, TableRow]:
    """Return the rows of the paper's Table 1 for a data set, by model."""
    rows = {}
    for published in TABLE_1.get(dataset, ()):
        printed = dict(zip(COLUMNS, published.figures.split(), strict=True))
        scores = {
            column: TableValue(float(text), digits=len(text.partition(".")[2]))
            for column, text in printed.items()
            if text != "-"
        }
        remark = f" ({published.remark})" if published.remark else ""
        rows[published.model] = TableRow(f"paper: {published.model}{remark}", scores)
    return rows


def baseline_rows(results: Sequence[Result], columns: Sequence[str]) -> list[TableRow]:
    """Return the baselines of the results; those that differ between results have the names of the runs."""
    rows = []
    for name, label in BASELINES.items():
        if name == LEAVE_ONE_OUT:
            continue
        rows_by_values: dict[str, tuple[str, dict[str, TableValue]]] = {}
        for result in results:
            scores = result.baselines.get(name, {})
            figures = {c: TableValue(scores[c], None, DIGITS.get(c, 1)) for c in columns if c in scores}
            if figures:
                rows_by_values.setdefault(" ".join(map(str, figures.values())), (run_name(result), figures))
        for run, figures in rows_by_values.values():
            rows.append(TableRow(f"{label}, of {run}" if len(rows_by_values) > 1 else label, figures))
    return rows


def find_unbeaten(figures: Mapping[str, float], baselines: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a phrase for each baseline of `TO_BEAT` that a model does not beat in every score of `COMPARED`:
    `does not beat the best constant caption in METEOR, CIDEr`."""
    for name in TO_BEAT:
        scores = baselines.get(name, {})
        lower = [key for key in COMPARED if key in figures and key in scores and figures[key] <= scores[key]]
        if lower:
            headings = ", ".join(HEADINGS[key].replace("B-", "BLEU-") for key in lower)
            yield f"does not beat the {BASELINES[name]} in {headings}"


def find_notes(rows: Sequence[TableRow], columns: Sequence[str]) -> Iterator[str]:
    """Yield notes on rows that cannot be compared, on missing figures, and on runs that do not beat the baselines."""
    entries = [describe(row.results[0]) for row in rows]
    for key, reason in INCOMPARABLE.items():
        values = {entry.scoring[key]: run_name(entry.result) for entry in reversed(entries)}
        if len(values) > 1:
            of_runs = key == "split_sha256"
            shown = ", ".join(reversed(values.values() if of_runs else values.keys()))
            yield f"{reason} ({'in' if of_runs else f'{key} is'} {shown}); only rows with the same can be compared"
    for row in rows:
        for column in columns:
            missing = [result for result in row.results if column not in result.figures]
            if 0 < len(missing) < len(row.results):
                yield f"{row.label}: {HEADINGS[column]} is missing in {missing[0].path}; evaluate it again"
        seeds = {tuple(model.seed for model in result.models) for result in row.results}
        if len(seeds) < len(row.results):
            yield f"{row.label}: {len(row.results)} runs share {len(seeds)} seeds"
        for result in row.results:
            for error in find_unbeaten(result.figures, result.baselines):
                yield f"{row.label}: {run_name(result)} {error}"
