"""Entry point of every command: read the configuration, check it, run the command, and report errors."""

import atexit
import csv
import errno
import gc
import logging
import multiprocessing
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write
from rich.console import Console
from rich.table import Table

from showattendtell import __version__
from showattendtell.config.command_line import COMPLETION, HELP, SHOW, Arguments, admit, config_folders, parse, quoted
from showattendtell.config.compose import Restore, as_settings, find_faulty, read_command, without_hydra
from showattendtell.config.validation import DEBUG, TRUST, USER_ERRORS, checked, error_message, raise_errors
from showattendtell.errors import UserError, safe_output
from showattendtell.runtime.files import LINK, LOCK, LOG, atomic_write, lock_file, open_regular, write_errors
from showattendtell.settings import metric_mode

Task = Callable[[Any], Any]
"""The function of a command, which gets its settings."""

NAMES_CLASS = re.compile(r"_target_(=|$)|metrics(=.*\w\.\w|$)|^(-cd|--config-dir|hydra\.searchpath)")
"""An argument that names a class, which may be in a module of the working directory."""

SWEEP_ONLY = re.compile(
    r"\+*hydra[./](callbacks|hydra_logging|job\.env_|job_logging|launcher|output_subdir|sweep|verbose)"
)
"""A setting of Hydra that a single run, which Hydra does not start, would ignore."""

HYDRA = ".hydra"
"""Folder of a run with its configuration and its command, as Hydra names it."""

RESULTS = "sweep.csv"
"""File in the folder of a sweep: the number, metric, its value and the settings of each run that has ended."""


def entry_point(
    name: str, positional: str = "", restore: Restore = lambda config: config
) -> Callable[[Task], Callable[[], None]]:
    """Decorate the function of a command, which gets its settings: the result composes `NAME.yaml` with the command
    line, checks it, and calls the function with the typed settings.

    Errors that the user can fix are printed as one sentence, with exit status 2.

    Args:
        positional: the setting that collects positional arguments as a list.
        restore: function that rewrites the configuration before it is checked; not in sweeps.
    """
    return lambda task: partial(run_command, name, task, positional, restore)


def run_command(name: str, task: Task, positional: str, restore: Restore) -> None:
    """Answer `--version`, `--help` and shell completion, or run the task of a command. See `entry_point`."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns of a home that cannot be written
    # torch creates half a million objects that stay; scanning them every 700 allocations takes a second
    gc.set_threshold(50_000)
    with report_errors():
        typed = take_debug(sys.argv[1:])
        if TRUST in os.environ or any(map(NAMES_CLASS.search, typed)):
            sys.path.append(os.getcwd())  # last, where no file takes the place of an installed package
        if "--version" in typed:
            print(f"showattendtell {__version__}")
        elif COMPLETION & set(typed) and "install=bash" in typed:
            print(Path(__file__).with_name("completion.bash").read_text(encoding="utf-8"))
        elif HELP & set(typed):
            from showattendtell.config.help import help_page

            print(help_page(name, [argument for argument in typed if argument not in HELP], positional))
        else:
            given = parse(name, typed, positional)
            if given.is_sweep or {*SHOW, *COMPLETION} & {*given.flags}:
                run_hydra(name, task, given)
            else:
                run_task(name, task, given.overrides, restore)


def run_hydra(name: str, task: Task, given: Arguments) -> None:
    """Let Hydra run a sweep, show the configuration, or complete a command line."""
    if given.is_sweep:
        raise_errors(list(find_faulty(given.overrides, is_sweep=True).values()))
    elif SHOW & set(given.flags):  # Hydra shows a configuration unchecked
        read_command(name, given.overrides, complete=False)
    sys.argv[1:] = [*given.flags, *given.overrides]
    admit(given.overrides)
    # an absolute path: Hydra resolves a relative one only for modules that are run as scripts
    main = hydra.main(config_path=config_folders()[0], config_name=name, version_base=None)
    main(partial(_run_of_sweep, task, os.getcwd()))()


def run_task(name: str, task: Task, overrides: Sequence[str], restore: Restore) -> None:
    """Run the task of a command with checked settings. Remove the folder of a run if the task fails before it writes
    anything there."""

    def restored(config: DictConfig) -> Mapping[str, Any]:
        config.hydra.runtime.output_dir = os.path.abspath(config.hydra.run.dir)
        HydraConfig.instance().set_config(config)
        return restore(without_hydra(config))

    for line in overrides:
        if SWEEP_ONLY.match(line):
            raise UserError(f"{line} concerns the runs of a sweep (-m); leave it out")
    _, settings = read_command(name, overrides, restore=restored)
    try:
        task(as_settings(settings))
    except BaseException:
        discard_empty_run()
        raise


def _run_of_sweep(task: Task, cwd: str, config: DictConfig) -> Any:
    """Run the task, and print its result or its error, which would otherwise be printed after all runs. Trainings, and
    runs of other processes, print everything else into their folder."""
    about, metric = HydraConfig.get(), config.get("monitor")
    settings = unresolved(about.overrides.task)
    label = " ".join([str(run_folder()), *settings])
    try:
        typed = as_settings(checked(config))
        if about.runtime.choices["hydra/launcher"] == "basic" and metric is None:
            result = task(typed)
        else:
            multiprocessing.set_start_method(None, force=True)  # joblib sets its own, which workers of torch lack
            name = f"{about.job.name}.log"  # another one than that of the training
            with (
                chdir(cwd),
                open_regular(run_folder() / name, "a", encoding="utf-8", errors="backslashreplace") as log,
                redirect_stdout(log),
                redirect_stderr(log),
            ):
                try:
                    result = task(typed)
                except Exception as error:
                    log.write(error_message(error))
                    raise
    except Exception as error:
        sys.stderr.write(f"{label}: {error_message(error)}")
        raise
    if isinstance(result, float):
        label += f"  {metric or 'score'} {result:.3f}"
        if metric:
            # which runs on other machines write to, too
            with Path(about.sweep.dir, RESULTS).open("a", encoding="utf-8", newline="") as file:
                csv.writer(file).writerow([about.sweep.subdir, metric, result, *settings])
    print(f"{label}\n", end="", flush=True)  # one write, so that lines of parallel runs do not mix
    return result


class Sweep(Callback):
    """Makes the folder of a sweep, and the settings of its search space, known to its runs in any process; at the end
    prints its trainings with the settings in which they differ, the best first."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # and end the processes of runs
        space = [f"{name}={value}" for name, value in (config.hydra.sweeper.get("params") or {}).items()]
        admit([*unresolved(config.hydra.overrides.task), *space])
        with report_errors():  # Hydra would turn an error of a callback into a warning
            folder = os.path.abspath(config.hydra.sweep.dir)
            with write_errors(Path(folder), "set hydra.sweep.dir to another folder"):
                os.makedirs(folder, exist_ok=True)
        with read_write(config.hydra):
            config.hydra.overrides.hydra.append(f"hydra.sweep.dir={quoted(folder)}")
        if config.get("monitor"):
            print(
                f"each run prints into {config.hydra.job.name}.log in its folder in {config.hydra.sweep.dir}",
                flush=True,
            )

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        file = Path(config.hydra.sweep.dir, RESULTS)
        if config.hydra.runtime.choices["hydra/sweeper"] != "basic" or not file.is_file():
            return  # a search reports its study
        with file.open(encoding="utf-8", newline="") as lines:  # a run that was resumed has its last row
            runs = {number: (float(value), settings) for number, _, value, *settings in csv.reader(lines)}
        common = set.intersection(*(set(settings) for _, settings in runs.values()))
        table = Table("run", "settings", config.monitor)
        is_maximized = metric_mode(config.monitor) == "max"
        for number, (value, settings) in sorted(runs.items(), key=lambda run: run[1][0], reverse=is_maximized):
            table.add_row(number, " ".join(each for each in settings if each not in common), f"{value:.3f}")
        Console(highlight=False, markup=False).print(table)


def take_debug(arguments: list[str]) -> list[str]:
    """Return the arguments without `--debug`. Set the debug variable by it or by the user's HYDRA_FULL_ERROR=1."""
    if "--debug" in arguments:
        os.environ[DEBUG] = "1"
    os.environ.setdefault(DEBUG, os.environ.get("HYDRA_FULL_ERROR", "0"))
    os.environ["HYDRA_FULL_ERROR"] = "1"  # so that Hydra prints no error messages itself
    return [argument for argument in arguments if argument != "--debug"]


def exit_process() -> None:
    """Exit the process without freeing its modules, which would take another second."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run_folder() -> Path:
    """Return the folder of this run, as the user would type it; it may not exist yet."""
    return as_typed(HydraConfig.get().runtime.output_dir)


def as_typed(folder: str | Path) -> Path:
    """Return a path as the user would type it: relative to the working folder if it is inside."""
    path, cwd = Path(folder), Path.cwd()
    return path.relative_to(cwd) if path.is_relative_to(cwd) else path


def discard_empty_run() -> None:
    """Remove the run's folder if it is empty."""
    folder = run_folder()
    with suppress(OSError):  # an exception is on its way, which the user has to see
        is_empty = folder != Path() and set(os.listdir(folder)) <= {LOCK, LOG}
        if is_empty and (lock := lock_file(folder / LOCK)):  # another process may have begun in the same folder
            shutil.rmtree(folder)
            lock.close()
            if search_root():  # the folders above it were made with it, unless they hold other runs
                folder.parent.rmdir()
                folder.parent.parent.rmdir()


def write_settings(record: Mapping[str, Any], folder: Path) -> None:
    """Write the settings of a new run and its arguments. Hydra itself would write them into the folder of a finished
    run before the run is refused.

    Raises:
        OSError: a file cannot be written; `filename` is its path.
    """
    place = folder / HYDRA
    place.mkdir(exist_ok=True)
    if place.is_symlink():
        raise OSError(errno.ELOOP, LINK, str(place))
    for name, content in {"config": record, "overrides": unresolved(HydraConfig.get().overrides.task)}.items():
        with atomic_write(place / f"{name}.yaml") as stream:
            yaml.safe_dump(content, stream, encoding="utf-8", allow_unicode=True, sort_keys=False)


def search_root() -> Path | None:
    """Return the folder that has earlier runs of the same command, or earlier sweeps for a run of a sweep. None if the
    user named this run's folder."""
    config, folder = HydraConfig.get(), run_folder()
    named = [line.partition("=")[0] for line in unresolved(config.overrides.hydra)]
    if config.mode == RunMode.MULTIRUN:
        return folder.parent if named.count("hydra.sweep.dir") > 1 else folder.parent.parent  # one is that of `Sweep`
    return None if "hydra.run.dir" in named else folder.parent


def unresolved(overrides: Any) -> list[str]:
    """Return the arguments in Hydra's configuration as they were typed, with `${...}`."""
    lines: Any = OmegaConf.to_container(overrides, resolve=False)
    return list(map(str, lines))


def read_choices() -> dict[str, str]:
    """Return the option of each config group that was chosen for this run, without the parts of an option."""
    return {
        group: option
        for group, option in HydraConfig.get().runtime.choices.items()
        if option and group != "sweep" and not group.startswith(("hydra", "experiment/", "variant/"))
    }


@contextmanager
def report_errors() -> Iterator[None]:
    """Print an error that the user can fix on stderr and exit with status 2; with 130, as shells do, for Ctrl-C. If the
    reader of standard output is gone, exit without a message."""
    try:
        with safe_output():
            yield
    except USER_ERRORS as error:
        sys.stderr.write(error_message(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
