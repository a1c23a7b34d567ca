"""Runs the commands of this package one after the other, as a user would, and writes the table of results."""

import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from showattendtell.config.entry_point import as_value
from showattendtell.config.subprocesses import Subcommands
from showattendtell.data.formats import read_all
from showattendtell.errors import UserError
from showattendtell.inference.matching import in_words, match
from showattendtell.metrics.bootstrap import Resampled, average, compare, draw_copies, resample
from showattendtell.reproduction.runs import (
    TableRun,
    budget,
    check_settings,
    data_settings,
    expected_seconds,
    find_other_settings,
    finished_runs,
    given_settings,
    make_ensembles,
    note_beginning,
    runs_with_other_settings,
)
from showattendtell.reproduction.tables import PaperTableConfig, ScoringPlan, setting_of, title_of
from showattendtell.runtime.files import BEST, LOCK, duration, file_lock, lock_file, read_times
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
NUM_PHOTOGRAPHS = 20


class CommandRunner(Subcommands):
    """Context manager that runs commands in turn. Signals are forwarded to the current one and then end the program."""

    def __exit__(self, *about: object) -> None:
        super().__exit__(*about)
        if self.came:
            print("\nstopped; the same command resumes from here", file=sys.stderr)

    def run(self, command: str, *settings: str) -> None:
        """Print the command and run it.

        Raises `UserError` if it fails, and SystemExit if this process received a signal.
        """
        line = f"python -m showattendtell.{shlex.join([command, *settings])}"
        print(f"\n$ {line}", flush=True)
        status = self.status_of(command, *settings)
        if self.came:
            sys.exit(128 + self.came)
        if status:
            raise UserError(f"{command} ended with status {status}; its output is above, after $ {line}")


def print_plan(table: PaperTableConfig, runs: Sequence[TableRun], config: DictConfig) -> None:
    """Print the progress and the remaining training time of each run, and the total."""
    title = f"{table.name}: {len(runs)} run{'s' * (len(runs) > 1)}"
    shown = Table("recipe", "seed", "state", title=title, title_justify="left")
    shown.add_column("training left", justify="right")
    left = []
    for run in runs:
        minutes = None if budget(config) else table.recipes[run.recipe].minutes
        left.append(seconds := expected_seconds(run, runs, minutes))
        remaining = "?" if seconds is None else duration(seconds) if seconds else ""
        shown.add_row(run.recipe, str(run.seed), _state(run), remaining)
    console = Console(highlight=False)
    console.print(shown)
    todo, unknown, known = sum(not run.is_finished for run in runs), left.count(None), sum(filter(None, left))
    if not todo:
        console.print("nothing to train: all runs are finished")
    elif not unknown and not known:
        console.print(f"nothing to train: {todo} to be scored")
    else:
        others = f" and {unknown} of unknown length" if unknown else ""
        time = f"about {duration(known)}{others}" if known else "for an unknown time"
        console.print(f"{todo} to do: they train {time}; storing grids and scoring come on top", soft_wrap=True)


def _state(run: TableRun) -> str:
    trained = "" if run.is_mean else f", {run.epochs} epochs in {duration(sum(read_times(run.folder)))}"
    if run.is_finished:
        return f"finished{trained}"
    if run.is_trained:
        return f"{'averaged' if run.is_mean else 'trained'}{trained}, to be scored"
    if run.is_mean:
        return "to be averaged"
    if run.is_begun:
        return f"{run.epochs} of {run.num_epochs or 'any number of'} epochs"
    return "to be trained"


def reproduce(table: PaperTableConfig, runs: Sequence[TableRun], folder: Path, config: DictConfig) -> None:
    """Run what is neither finished nor running in another worker, and write the table of the finished runs.

    Raises `UserError` with a sentence for each run that failed.
    """
    with CommandRunner() as commands:
        faults = carry_out(runs, folder, commands, config)
        faults += score_ensembles(table, runs, folder, commands, config)
        with file_lock(folder / LOCK):
            faults += write_outcome(table, runs, folder, commands, config)
    if faults:
        raise UserError("\n  ".join([f"{len(faults)} of the table's rows failed:", *faults]))


def carry_out(runs: Sequence[TableRun], folder: Path, commands: CommandRunner, config: DictConfig) -> list[str]:
    """Train and score the unfinished runs; return a sentence for each run that fails.

    If none has started, data and encoder are checked first, since an error there would affect every run. Runs of
    another worker are skipped, and so are second stages that depend on them, unless those finish in the meantime.
    """
    left = [run for run in runs if not run.is_finished]
    if left and not any(run.is_begun for run in runs):
        with file_lock(folder / LOCK):
            commands.run("prepare", *left[0].arguments)
    faults: list[str] = []
    took_any = True
    while took_any:
        passed_over = [run for run in left if not _take(run, commands, config, faults)]
        took_any = len(passed_over) < len(left)
        left = passed_over
    return faults


def _take(run: TableRun, commands: CommandRunner, config: DictConfig, faults: list[str]) -> bool:
    """Carry out a run, or record its error; return False if another worker has it or if it cannot start yet."""
    held = _hold(run.scoring)
    if held is None:
        return False
    with held, _noting(faults, run.title):
        check_settings([run])  # another worker may have changed them since
        if not run.can_begin:
            return False
        if not run.is_finished:
            if not run.scoring.was_scored:
                _train(run, commands)
            score(run.scoring, commands, config)
    return True


def _train(run: TableRun, commands: CommandRunner) -> None:
    """Train or average; complete training ends at once when resumed."""
    if not run.is_begun:
        note_beginning(run)
    if run.is_mean:
        parts = [str(part.folder / BEST) for part in run.before]
        commands.run("average", f"checkpoint={as_value(parts)}", f"output={as_value(str(run.folder / BEST))}")
    else:
        resume = ["resume=true"] if run.is_begun else []
        commands.run("train", *run.arguments, f"hydra.run.dir={as_value(str(run.folder))}", *resume)


def _hold(scoring: ScoringPlan) -> TextIO | None:
    """Lock the models for this worker and return the lock file; if another worker trains or scores them, print that and
    return None."""
    held = lock_file(scoring.folder.with_suffix(LOCK))
    if held is None:
        print(f"{scoring.title} is with another worker")
    return held


@contextmanager
def _noting(faults: list[str], title: str) -> Iterator[None]:
    """Record a `UserError` in `faults` instead of raising it."""
    try:
        yield
    except UserError as fault:
        faults.append(f"{title}: {fault}")


def score(scoring: ScoringPlan, commands: CommandRunner, config: DictConfig) -> None:
    """Compute the missing test results."""
    models = [str(file) for file in scoring.models]
    places = [setting for setting in given_settings(config) if setting.startswith("cache=")]
    for decoding in scoring.decodings:
        if not scoring.is_scored(decoding):
            commands.run(
                "evaluate",
                f"checkpoint={as_value(models[0] if len(models) == 1 else models)}",
                setting_of(decoding),
                f"output={as_value(str(scoring.result_file(decoding)))}",
                *data_settings(config, ["root", "entities", "instances"]),
                *places,
            )
            if not scoring.is_scored(decoding):
                raise UserError(
                    f"{scoring.result_file(decoding)} has no figures of boxes, which dataset.entities and "
                    "dataset.instances give for the test images; leave out what does not know these"
                )


def score_ensembles(
    table: PaperTableConfig, runs: Sequence[TableRun], folder: Path, commands: CommandRunner, config: DictConfig
) -> list[str]:
    """Score the ensembles whose models are finished and that no other worker has; return a sentence for each failure.

    A command that asks for no runs scores none.
    """
    faults: list[str] = []
    ensembles = _ensembles(table, runs, finished_runs(table, config, folder), folder) if runs else {}
    for ensemble in ensembles.values():
        if held := _hold(ensemble):
            with held, _noting(faults, ensemble.title):
                score(ensemble, commands, config)
    return faults


def _ensembles(
    table: PaperTableConfig, runs: Sequence[TableRun], finished: Sequence[TableRun], folder: Path
) -> dict[str, ScoringPlan]:
    """Return the ensembles of finished runs; an ensemble waits for all requested runs of its recipes."""
    unfinished = {run.recipe for run in runs if not run.is_finished}
    return make_ensembles(table, [run for run in finished if run.recipe not in unfinished], folder)


def write_outcome(
    table: PaperTableConfig, runs: Sequence[TableRun], folder: Path, commands: CommandRunner, config: DictConfig
) -> list[str]:
    """Write the page of photographs and the table of the finished runs; return a sentence for each failure.

    The table includes finished runs that this command does not ask for. A command that asks for no runs
    writes only the table.
    """
    faults = [fault for run in runs if run.is_finished for fault in find_other_settings(run)]
    shown = finished_runs(table, config, folder)
    ensembles = _ensembles(table, runs, shown, folder)
    page = folder / f"{table.name}-photographs.html"
    photographs = page.name if page.is_file() else None
    if runs:
        with _noting(faults, "photographs"):
            photographs = show_photographs(table, shown, page, commands, config)
    with _noting(faults, "the table"):
        overview = make_table(table, shown, ensembles, _notes(table, shown, ensembles.values(), config))
        if overview:
            write(overview._replace(photographs=photographs), folder, table.name)
        else:
            print(f"no run of table={table.name} is finished with these settings in {folder}, so there is no table yet")
            for fault in runs_with_other_settings(table, config, folder):
                print(fault)
    return faults


def _notes(
    table: PaperTableConfig, runs: Sequence[TableRun], ensembles: Iterable[ScoringPlan], config: DictConfig
) -> list[str]:
    """Return notes on changed settings, and on recipes, single seeds of them and ensembles that are not finished."""
    notes, lacking = [], []
    if cut := budget(config):
        notes.append(f"all runs with other settings than their recipes: {' '.join(cut)}")
    for recipe in table.recipes:
        there = {run.seed for run in runs if run.recipe == recipe}
        lacking += [f"{recipe}, seed {seed}" for seed in table.seeds if seed not in there] if there else [recipe]
    lacking += [ensemble.title for ensemble in ensembles if not ensemble.is_finished]
    return [*notes, *([f"not finished, and not in the table: {'; '.join(lacking)}"] if lacking else [])]


def show_photographs(
    table: PaperTableConfig, runs: Sequence[TableRun], page: Path, commands: CommandRunner, config: DictConfig
) -> str | None:
    """Return the name of the table's page of photographs, created if missing or older than the models; None if one of
    its models is not finished."""
    first = {run.recipe: run for run in reversed(runs) if run.is_finished and run.recipe in table.pages}
    if not first or len(first) < len(table.pages):
        return None
    checkpoints = [first[recipe].folder / BEST for recipe in table.pages]
    if not all(file.is_file() for file in checkpoints):
        return page.name if page.is_file() else None
    model, *others = map(str, checkpoints)
    arguments = [
        f"checkpoint={as_value(model)}",
        *([f"compare={as_value(others)}"] if others else []),
        f"number={NUM_PHOTOGRAPHS}",
        setting_of(table.decoding),
        f"output={as_value(str(page))}",
    ]
    made = page.with_suffix(".txt")
    command = "\n".join(arguments)
    is_of_these = page.is_file() and made.is_file() and made.read_text() == command
    if not is_of_these or made.stat().st_mtime < max(file.stat().st_mtime for file in checkpoints):
        commands.run("caption", "split=test", *arguments, *data_settings(config, ["root"]))
        made.write_text(command)
    return page.name


def make_table(
    table: PaperTableConfig, runs: Sequence[TableRun], ensembles: Mapping[str, ScoringPlan], notes: Sequence[str]
) -> ResultsTable | None:
    """Return the figures of the finished runs next to the paper's rows; None if no run is finished."""
    series = list(_series(table, runs, ensembles))
    rows = [row for _, _, row in series]
    results = [result for row in rows for result in row.results]
    if not rows:
        return None
    dataset = results[0].dataset
    published = paper_rows(dataset) if any(recipe.paper for recipe in table.recipes.values()) else {}
    in_paper = [table.recipes[recipe].paper if recipe in table.recipes else None for recipe, _, _ in series]
    blocks = [TableBlock(DATASETS.get(dataset, dataset), tuple(_next_to_paper(rows, in_paper, published)))]
    nodes = [model.config["encoder"] for result in results for model in result.models]
    encoders = dict.fromkeys(f"{node['network']} at {node.get('size', 224)} pixels" for node in nodes)
    lacking = (
        f"{result.path} has no {metric}: {reason}; delete it to have it made again"
        for result in results
        for metric, reason in result.missing.items()
    )
    remarks = [
        *([ORIGIN] if published else []),
        *find_notes(rows, COLUMNS),
        f"encoder: {' and '.join(encoders)}{'; the paper has VGG-19' if published else ''}",
        *dict.fromkeys(lacking),
        *notes,
    ]
    base = next((row for recipe, way, row in series if (recipe, way) == (table.base, table.decoding)), None)
    alike = [row for recipe, way, row in series if way == table.decoding or recipe == table.base]
    others = [row for row in alike if row is not base]
    if base and others:
        differences, reasons = _differences(base, others)
        blocks.append(TableBlock(f"differences to {base.label}", tuple(differences)))
        remarks += [f"no differences in {metric}: {reason}" for metric, reason in reasons.items()]
        remarks.append(
            f"differences: of the means over seeds, and the interval of 95 % of {RESAMPLES:,} resamples of the images "
            "(paired bootstrap); what another seed would give is shown by the standard deviations alone"
        )
    columns = tuple(column for column in COLUMNS if any(column in row.figures for row in rows))
    return ResultsTable("test", columns, tuple(blocks), tuple(remarks))


def _series(
    table: PaperTableConfig, runs: Sequence[TableRun], ensembles: Mapping[str, ScoringPlan]
) -> Iterator[tuple[str, int | str, TableRow]]:
    """Yield a row for each recipe, over its finished seeds, and each finished ensemble, with each decoding."""
    found: list[tuple[str, int | str, tuple[Result, ...]]] = []
    for recipe in dict.fromkeys(run.recipe for run in runs):
        finished = [run for run in runs if run.recipe == recipe and run.is_finished]
        for decoding in table.decodings if finished else ():
            found.append((recipe, decoding, tuple(_read(run, decoding) for run in finished)))
    for name, ensemble in ensembles.items():
        for decoding in table.decodings if ensemble.is_finished else ():
            found.append((name, decoding, (read_result(ensemble.result_file(decoding)),)))
    for name, decoding, results in found:
        yield name, decoding, TableRow(f"{name}, {title_of(decoding)}", mean_figures(results, COLUMNS), results)


def _read(run: TableRun, decoding: int | str) -> Result:
    """Return a run's result; its training time includes the earlier stages."""
    result = read_result(run.scoring.result_file(decoding))
    own = 0.0 if run.is_mean else result.figures.get(TIME)
    before = run.minutes_before
    if not before or own is None:
        return result
    return result._replace(figures={**result.figures, TIME: own + before})


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


def _differences(base: TableRow, others: Sequence[TableRow]) -> tuple[list[TableRow], dict[str, str]]:
    """Return a row of differences to the base for each of the others, of means over seeds on the same resamples of the
    images; and the reason for each metric that some results lack."""
    from showattendtell.metrics.modular import measure  # torchmetrics takes seconds to import

    missing: dict[str, str] = {}
    paths = [Path(result.path) for row in (base, *others) for result in row.results]
    corpus = in_words(match(read_all(paths), {}, None, partial=False), base.results[0].tokenizer)
    copies = draw_copies(len(corpus.images), RESAMPLES, SEED)

    def of(row: TableRow) -> Resampled:
        panels = [measure(corpus.hypotheses[Path(result.path)], corpus.references, METRICS) for result in row.results]
        resampled = [resample(panel.measured, copies) for panel in panels]
        for panel, drawn in zip(panels, resampled, strict=True):
            missing.update({**panel.missing, **drawn.missing})
        return average(resampled)

    first, rows = of(base), []
    for row in others:
        intervals = {
            name: TableInterval(found.difference, found.low, found.high, DIGITS.get(name, 1))
            for name, found in compare(first, of(row)).differences.items()
        }
        rows.append(TableRow(row.label, intervals, row.results))
    return rows, missing


def write(overview: ResultsTable, folder: Path, name: str) -> None:
    """Print the paper's columns, and write all columns in every format."""
    print_overview(overview._replace(columns=tuple(name for name in overview.columns if name in PAPER)))
    for suffix, form in FORMATS.items():
        write_text(form(overview), folder / f"{name}{suffix}")
    print(f"the table is in {folder}, as {', '.join(name + suffix for suffix in FORMATS)}")
    if overview.photographs:
        print(f"where the models looked: {folder / overview.photographs}")
