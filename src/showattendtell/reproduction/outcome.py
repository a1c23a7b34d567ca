"""The table of results: means over seeds next to the paper's rows, and confidence intervals of differences."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from showattendtell.data.formats import read_all
from showattendtell.inference.matching import in_words, match
from showattendtell.metrics.bootstrap import Resampled, average, compare, draw_copies, resample
from showattendtell.reproduction.runs import TableRun
from showattendtell.reproduction.tables import PaperTableConfig, ScoringPlan, title_of
from showattendtell.visualization.comparison import COLUMNS as PAPER
from showattendtell.visualization.comparison import DATASETS, ORIGIN, find_notes, mean_figures, paper_rows
from showattendtell.visualization.result_files import Result, read_result, write_text
from showattendtell.visualization.results_table import (
    DIGITS,
    FORMATS,
    ResultsTable,
    TableBlock,
    TableInterval,
    TableRow,
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


class RecipeResults(NamedTuple):
    """The results of a recipe, one per seed, or of an ensemble, with one decoding."""

    recipe: str
    decoding: int | str
    results: tuple[Result, ...]

    @property
    def label(self) -> str:
        return f"{self.recipe}, {title_of(self.decoding)}"


def make_table(
    table: PaperTableConfig, runs: Sequence[TableRun], ensembles: Mapping[str, ScoringPlan], notes: Sequence[str]
) -> ResultsTable | None:
    """Return the figures of the finished runs next to the paper's rows; None if no run is finished."""
    series = list(_series(table, runs, ensembles))
    if not series:
        return None
    dataset = series[0].results[0].dataset
    rows = [TableRow(one.label, mean_figures(one.results, COLUMNS), one.results) for one in series]
    published = paper_rows(dataset) if any(recipe.paper for recipe in table.recipes.values()) else {}
    shown = DATASETS.get(dataset, dataset)
    blocks = [
        TableBlock(shown, tuple(_next_to_paper(rows, [_model_in_paper(table, one) for one in series], published)))
    ]
    remarks = [
        *([ORIGIN] if published else []),
        *find_notes(rows, COLUMNS),
        *_encoders(series, bool(published)),
        *dict.fromkeys(note for one in series for note in _missing(one)),
        *notes,
    ]
    base = next((one for one in series if (one.recipe, one.decoding) == (table.base, table.decoding)), None)
    others = [one for one in series if one is not base and (one.decoding == table.decoding or one.recipe == table.base)]
    if base and others:
        resampled, missing = _resample([base, *others])
        blocks.append(TableBlock(f"differences to {base.label}", tuple(_differences(resampled, base, others))))
        remarks += [f"no differences in {metric}: {reason}" for metric, reason in missing.items()]
        remarks.append(
            f"differences: of the means over seeds, and the interval of 95 % of {RESAMPLES:,} resamples of the images "
            "(paired bootstrap); what another seed would give is shown by the standard deviations alone"
        )
    columns = tuple(column for column in COLUMNS if any(column in row.figures for row in rows))
    return ResultsTable("test", columns, tuple(blocks), tuple(remarks))


def write(overview: ResultsTable, folder: Path, name: str) -> None:
    """Print the paper's columns, and write all columns in every format."""
    print_overview(overview._replace(columns=tuple(name for name in overview.columns if name in PAPER)))
    for suffix, form in FORMATS.items():
        write_text(form(overview), folder / f"{name}{suffix}")
    print(f"the table is in {folder}, as {', '.join(name + suffix for suffix in FORMATS)}")
    if overview.photographs:
        print(f"where the models looked: {folder / overview.photographs}")


def _series(
    table: PaperTableConfig, runs: Sequence[TableRun], ensembles: Mapping[str, ScoringPlan]
) -> Iterator[RecipeResults]:
    for recipe in dict.fromkeys(run.recipe for run in runs):
        finished = [run for run in runs if run.recipe == recipe and run.is_finished]
        for decoding in table.decodings if finished else ():
            yield RecipeResults(recipe, decoding, tuple(_read(run, decoding) for run in finished))
    for name, ensemble in ensembles.items():
        for decoding in table.decodings if ensemble.is_finished else ():
            yield RecipeResults(name, decoding, (read_result(ensemble.result_file(decoding)),))


def _read(run: TableRun, decoding: int | str) -> Result:
    """Return a run's result; its training time includes the earlier stages."""
    result = read_result(run.scoring.result_file(decoding))
    own = 0.0 if run.is_mean else result.figures.get(TIME)
    before = run.minutes_before
    if not before or own is None:
        return result
    return result._replace(figures={**result.figures, TIME: own + before})


def _model_in_paper(table: PaperTableConfig, series: RecipeResults) -> str | None:
    recipe = table.recipes.get(series.recipe)
    return recipe.paper if recipe else None


def _next_to_paper(
    rows: Sequence[TableRow], models: Sequence[str | None], published: Mapping[str, TableRow]
) -> Iterator[TableRow]:
    """Yield the paper's rows of other models, then each row below the paper's row of its model, if there is one."""
    yield from (row for model, row in published.items() if model not in models)
    above = None
    for model, row in zip(models, rows, strict=True):
        if model and model in published and model != above:
            yield published[model]
        above = model
        yield row


def _missing(series: RecipeResults) -> Iterator[str]:
    for result in series.results:
        for metric, reason in result.missing.items():
            yield f"{result.path} has no {metric}: {reason}; delete it to have it made again"


def _encoders(series: Sequence[RecipeResults], with_paper: bool) -> list[str]:
    nodes = [model.config["encoder"] for one in series for result in one.results for model in result.models]
    names = dict.fromkeys(f"{node['network']} at {node.get('size', 224)} pixels" for node in nodes)
    return [f"encoder: {' and '.join(names)}{'; the paper has VGG-19' if with_paper else ''}"]


def _differences(
    resampled: Mapping[str, Resampled], base: RecipeResults, others: Sequence[RecipeResults]
) -> Iterator[TableRow]:
    """Yield a row of differences to the base for each of the others, over the same resamples of the images."""
    for one in others:
        compared = compare(resampled[base.label], resampled[one.label])
        intervals = {
            name: TableInterval(found.difference, found.low, found.high, DIGITS.get(name, 1))
            for name, found in compared.differences.items()
        }
        yield TableRow(one.label, intervals, one.results)


def _resample(series: Sequence[RecipeResults]) -> tuple[dict[str, Resampled], dict[str, str]]:
    """Return by label the resampled figures, means over seeds on the same resamples of the images; and the reason for
    each metric that some results lack."""
    from showattendtell.metrics.modular import measure  # torchmetrics takes seconds to import

    missing: dict[str, str] = {}
    paths = [Path(result.path) for one in series for result in one.results]
    corpus = in_words(match(read_all(paths), {}, None, partial=False), series[0].results[0].tokenizer)
    copies = draw_copies(len(corpus.images), RESAMPLES, SEED)

    def of(result: Result) -> Resampled:
        panel = measure(corpus.hypotheses[Path(result.path)], corpus.references, METRICS)
        resampled = resample(panel.measured, copies)
        missing.update({**panel.missing, **resampled.missing})
        return resampled

    return {one.label: average([of(result) for result in one.results]) for one in series}, missing
