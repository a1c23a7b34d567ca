"""The table of what was run: means over seeds beside the paper's rows, and intervals of the differences."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from showattendtell.config.reproducing import PaperTable
from showattendtell.corpus import in_words, match
from showattendtell.data.caption_files import read_all
from showattendtell.metrics.bootstrap import Resampled, average, compare, draw_copies, resample
from showattendtell.metrics.panel import measure
from showattendtell.report.comparison import DATASETS, ORIGIN, find_notes, mean_figures, paper_rows
from showattendtell.report.layout import FORMATS, print_overview
from showattendtell.report.overview import DIGITS, Block, Interval, Overview, Row
from showattendtell.report.paper import COLUMNS as PAPER
from showattendtell.report.result_files import Result, read_result
from showattendtell.report.results import write_text
from showattendtell.reproduction.runs import Run
from showattendtell.reproduction.scoring import Scoring, title_of

TIME = "training_minutes"
COLUMNS = (
    *("bleu1", "bleu2", "bleu3", "bleu4", "meteor", "bleu4_with_penalty", "rouge_l", "cider", "distinct_captions"),
    *("pointing_game", "attention_correctness", "attention_entropy", "attention_movement", TIME),
)
METRICS = ("bleu", "meteor", "rouge_l", "cider")
"""Of which differences have intervals."""

RESAMPLES, SEED = 1000, 1


class Series(NamedTuple):
    """The results of a recipe with one way of decoding, a seed each, or of an ensemble."""

    recipe: str
    decoding: int | str
    results: tuple[Result, ...]

    @property
    def label(self) -> str:
        return f"{self.recipe}, {title_of(self.decoding)}"


def tell(
    table: PaperTable, runs: Sequence[Run], ensembles: Mapping[str, Scoring], notes: Sequence[str]
) -> Overview | None:
    """The finished runs' figures beside the paper's rows and each other; None where no run is finished."""
    series = list(_series(table, runs, ensembles))
    if not series:
        return None
    dataset = series[0].results[0].dataset
    rows = [Row(one.label, mean_figures(one.results, COLUMNS), one.results) for one in series]
    published = paper_rows(dataset) if any(recipe.paper for recipe in table.recipes.values()) else {}
    shown = DATASETS.get(dataset, dataset)
    blocks = [Block(shown, tuple(_beside(rows, [_model_in_paper(table, one) for one in series], published)))]
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
        blocks.append(Block(f"differences to {base.label}", tuple(_differences(resampled, base, others))))
        remarks += [f"no differences in {metric}: {reason}" for metric, reason in missing.items()]
        remarks.append(
            f"differences: of the means over seeds, and the interval of 95 % of {RESAMPLES:,} resamples of the images "
            "(paired bootstrap); what another seed would give is told by the standard deviations alone"
        )
    columns = tuple(column for column in COLUMNS if any(column in row.figures for row in rows))
    return Overview("test", columns, tuple(blocks), tuple(remarks))


def write(overview: Overview, folder: Path, name: str) -> None:
    """Show the paper's columns, and write all of them in every format."""
    print_overview(overview._replace(columns=tuple(name for name in overview.columns if name in PAPER)))
    for suffix, form in FORMATS.items():
        write_text(form(overview), folder / f"{name}{suffix}")
    print(f"the table is in {folder}, as {', '.join(name + suffix for suffix in FORMATS)}")
    if overview.photographs:
        print(f"where the models looked: {folder / overview.photographs}")


def _series(table: PaperTable, runs: Sequence[Run], ensembles: Mapping[str, Scoring]) -> Iterator[Series]:
    for recipe in dict.fromkeys(run.recipe for run in runs):
        finished = [run for run in runs if run.recipe == recipe and run.is_finished]
        for decoding in table.decodings if finished else ():
            yield Series(recipe, decoding, tuple(_read(run, decoding) for run in finished))
    for name, ensemble in ensembles.items():
        for decoding in table.decodings if ensemble.is_finished else ():
            yield Series(name, decoding, (read_result(ensemble.result_file(decoding)),))


def _read(run: Run, decoding: int | str) -> Result:
    """A run's result, with the time of the stages before it."""
    result = read_result(run.scoring.result_file(decoding))
    own = 0.0 if run.is_mean else result.figures.get(TIME)
    before = run.minutes_before
    if not before or own is None:
        return result
    return result._replace(figures={**result.figures, TIME: own + before})


def _model_in_paper(table: PaperTable, series: Series) -> str | None:
    recipe = table.recipes.get(series.recipe)
    return recipe.paper if recipe else None


def _beside(rows: Sequence[Row], models: Sequence[str | None], published: Mapping[str, Row]) -> Iterator[Row]:
    """Each row below the paper's row of its model, if it has one; before them the paper's others."""
    yield from (row for model, row in published.items() if model not in models)
    above = None
    for model, row in zip(models, rows, strict=True):
        if model and model in published and model != above:
            yield published[model]
        above = model
        yield row


def _missing(series: Series) -> Iterator[str]:
    for result in series.results:
        for metric, reason in result.missing.items():
            yield f"{result.path} has no {metric}: {reason}; delete it to have it made again"


def _encoders(series: Sequence[Series], with_paper: bool) -> list[str]:
    nodes = [model.config["encoder"] for one in series for result in one.results for model in result.models]
    names = dict.fromkeys(f"{node['network']} at {node.get('size', 224)} pixels" for node in nodes)
    return [f"encoder: {' and '.join(names)}{'; the paper has VGG-19' if with_paper else ''}"]


def _differences(resampled: Mapping[str, Resampled], base: Series, others: Sequence[Series]) -> Iterator[Row]:
    """By how much each of the others is higher, over the same resamples of the images."""
    for one in others:
        compared = compare(resampled[base.label], resampled[one.label])
        intervals = {
            name: Interval(found.difference, found.low, found.high, DIGITS.get(name, 1))
            for name, found in compared.differences.items()
        }
        yield Row(one.label, intervals, one.results)


def _resample(series: Sequence[Series]) -> tuple[dict[str, Resampled], dict[str, str]]:
    """The figures of each by its label, means over its seeds, on the same resamples of the images; and the metrics that
    some of them lack, each with a reason."""
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
