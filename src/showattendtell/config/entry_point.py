"""Entry point of every command: read the configuration, check it, run the command, and report errors."""

import atexit
import gc
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import execution_whitelist
from omegaconf import DictConfig, OmegaConf

from showattendtell import __version__
from showattendtell.config.command_line import check_command
from showattendtell.config.compose import SEARCH, SEARCHPATH, command_folder, compose, find_searchpath, to_plain
from showattendtell.config.help import COMMON, help_page
from showattendtell.config.hydra_internals import is_flag, parse_arguments, parse_overrides
from showattendtell.config.sweeper import GridSweeper, StudySweeper, format_override, is_trial, run_in_sweep
from showattendtell.config.trust import escaped, read_settings
from showattendtell.config.validation import (
    DEBUG,
    USER_ERRORS,
    error_message,
    find_targets,
    raise_errors,
    validate,
)
from showattendtell.errors import UserError, quiet_pipe
from showattendtell.runtime.files import LOCK, atomic_write, expand_home, lock_file
from showattendtell.settings import is_url

CONFIG = "config"
"""Name of the folder with the configuration of a run, in its folder."""

PLAIN = r"[\w./-]+"  # pattern of a value that needs no quotes, neither for the shell nor for Hydra


def entry_point(
    name: str, positional: str = "", expand: Callable[[list[str]], list[str]] = list
) -> Callable[[Callable[[DictConfig], Any]], Callable[[], None]]:
    """Decorate the function of a command, which gets its configuration: the result reads `conf/NAME.yaml` and the
    command line, checks them and calls the function.

    Every `_target_` on the command line may be built. Errors that the user can fix are printed as one sentence, with
    exit status 2.

    Args:
        positional: the setting that collects positional arguments as a list.
        expand: function that rewrites the arguments before they are checked.
    """

    def decorate(run: Callable[[DictConfig], Any]) -> Callable[[], None]:
        def task(config: DictConfig) -> Any:
            def checked() -> Any:
                raise_errors(validate(config))
                with without_checks(config):
                    return run(config)

            if HydraConfig.get().mode == RunMode.MULTIRUN:
                return run_in_sweep(checked)
            with report_errors(), discarding_empty_run():
                return checked()

        def main() -> None:
            # torch creates half a million objects that stay; scanning them every 700 allocations takes a second
            gc.set_threshold(50_000)
            with report_errors():
                arguments = without_dashes(map(expand_homes, take_debug(sys.argv[1:])))
                if "--version" in arguments:
                    print(f"showattendtell {__version__}")
                    return
                arguments = name_config_folder(arguments)
                if {"-h", "--help"} & set(arguments):
                    print_help(name, arguments, positional)
                    return
                arguments = list(map(quote_path, arguments))
                arguments = name_positional(arguments, positional) if positional else arguments
                sys.argv[1:] = check_command(name, expand(arguments))
                for sweeper in (GridSweeper, StudySweeper):  # Hydra finds only plugins in the package hydra_plugins
                    Plugins.instance().register(sweeper)
                # an absolute path: Hydra resolves a relative one only for modules that are run as scripts
                hydra.main(config_path=command_folder(name), config_name=name)(task)()

        return main

    return decorate


def print_help(name: str, arguments: Sequence[str], positional: str = "") -> None:
    """Print the page of a command: all settings with `--help all`, else the common ones and those that were given."""
    settings = [argument for argument in arguments if not argument.startswith("-") and argument != "all"]
    settings = name_positional(settings, positional) if positional else settings
    config, groups = compose(name, check_command(name, settings, complete=False) if settings else [])
    names = [setting.partition("=")[0].lstrip("+") for setting in settings]
    common = () if "all" in arguments else COMMON.get(name, ())
    print(help_page(name, config, groups, dict.fromkeys([*common, *names]) if common else ()))


def take_debug(arguments: list[str]) -> list[str]:
    """Return the arguments without `--debug`. Set the debug variable by it or by the user's HYDRA_FULL_ERROR=1."""
    if "--debug" in arguments:
        os.environ[DEBUG] = "1"
    os.environ.setdefault(DEBUG, os.environ.get("HYDRA_FULL_ERROR", "0"))
    os.environ["HYDRA_FULL_ERROR"] = "1"  # so that Hydra prints no error messages itself
    return [argument for argument in arguments if argument != "--debug"]


@contextmanager
def without_checks(config: Mapping[str, Any]) -> Iterator[None]:
    """Allow every `_target_` in the configuration, which the user wrote."""
    with execution_whitelist(list(find_targets(to_plain(config)))):
        yield


def exit_process() -> None:
    """Exit the process without freeing its modules, which would take another second."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def expand_homes(argument: str) -> str:
    """Expand `~` at the start of a path after `=` or within a list. Shells do not expand it there, or only after some
    names."""
    return re.sub(r"(?<=[=\[,])~(\w*(?=/)|(?=[,\]]|$))", lambda match: str(expand_home(match[0])), argument)


def quote_path(argument: str) -> str:
    """Quote the path in `name=path` if it exists and has a `=`, as Lightning's `epoch=1-step=32.ckpt` does: Hydra would
    not parse it."""
    name, _, path = argument.partition("=")
    has_equals = "=" in path and os.path.exists(path) and not os.path.exists(argument)
    return f"{name}={quoted(path)}" if has_equals else argument


def name_config_folder(arguments: list[str]) -> list[str]:
    """Return the arguments with Hydra's `--config-dir DIR` as `hydra.searchpath=[file://DIR]`, which the check of the
    command line and the processes of stages read as well.

    Raises:
        UserError: if the folder does not exist, or both are given.
    """
    folder = parse_arguments(arguments).config_dir
    if folder is None:
        return arguments
    if not os.path.isdir(folder):
        raise UserError(
            f"--config-dir {folder} does not exist; give the folder of your config groups, such as attention/"
        )
    if find_searchpath(arguments):
        raise UserError(f"--config-dir and {SEARCHPATH} are both given; name all folders in {SEARCHPATH}")
    rest, flags = [], iter(arguments)
    for argument in flags:
        if argument in ("--config-dir", "-cd"):
            next(flags)
        elif not argument.startswith("--config-dir="):
            rest.append(argument)
    return [*rest, f"{SEARCHPATH}=[{quoted(f'file://{os.path.abspath(folder)}')}]"]


def without_dashes(arguments: Iterable[str]) -> list[str]:
    """Return the arguments with `--name value` and `--name=value` as `name=value`, unless it is an option of Hydra.

    With `-m`, several values such as `256,512` stay several values.
    """
    settings: list[str] = []
    arguments = list(arguments)
    rest, is_sweep = iter(arguments), not {"-m", "--multirun"}.isdisjoint(arguments)
    for argument in rest:
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or is_flag(f"--{name}"):
            settings.append(argument)
            continue
        argument_value = value if equals else next(rest, None)
        if not argument_value or argument_value.startswith("--"):
            raise UserError(f"--{name} has no value; give --{name} VALUE or {name}=VALUE")
        setting = f"{name.replace('-', '_')}={argument_value}"
        is_plain = argument_value[0] in "[{" or (is_sweep and _has_several_values(setting))
        settings.append(setting if is_plain else f"{name.replace('-', '_')}={as_value(argument_value)}")
    return settings


def _has_several_values(setting: str) -> bool:
    """Return whether Hydra reads a setting as several values, as `seed=1,2` or `seed=range(1,4)`."""
    with suppress(HydraException):
        [override] = parse_overrides([setting])
        return override.is_sweep_override()
    return False


def name_positional(arguments: Sequence[str], setting: str) -> list[str]:
    """Return the arguments with the positional ones collected as `setting=[...]`. An argument is positional if it has
    no `=`, or is the path of a file or folder, or a URL.

    Raises:
        UserError: if the setting is given by name as well.
    """
    overrides = parse_arguments(arguments).overrides
    positional = [
        argument for argument in overrides if "=" not in argument or os.path.exists(argument) or is_url(argument)
    ]
    rest = [argument for argument in arguments if argument not in positional]
    by_name = next((argument for argument in rest if argument.lstrip("+").startswith(f"{setting}=")), None)
    if positional and by_name:
        raise UserError(f"{setting} are given twice, as {positional[0]} and as {by_name}; give all of them in one way")
    return [*rest, f"{setting}=[{','.join(map(quoted, positional))}]"] if positional else rest


def run_folder() -> Path:
    """Return the folder that Hydra made for this run, as the user would type it."""
    return format_override(HydraConfig.get().runtime.output_dir)


@contextmanager
def discarding_empty_run() -> Iterator[None]:
    """Remove the run's folder after an exception if it is empty."""
    try:
        yield
    except BaseException:
        folder = run_folder()
        with suppress(OSError):  # the exception itself is what the user has to see
            is_empty = folder != Path() and set(os.listdir(folder)) <= {LOCK}
            if is_empty and (lock := lock_file(folder / LOCK)):  # another process may have begun in the same folder
                shutil.rmtree(folder)
                lock.close()
                if search_root():  # the folders above it are Hydra's too, unless they hold other runs
                    folder.parent.rmdir()
                    folder.parent.parent.rmdir()
        raise


def write_settings(config: DictConfig, folder: Path) -> None:
    """Write the configuration of a new run and that of Hydra into its folder.

    Raises:
        OSError: a file cannot be written; `filename` is its path.
    """
    (folder / CONFIG).mkdir(exist_ok=True)
    for name, content in (("config", config), ("hydra", OmegaConf.create({"hydra": HydraConfig.get()}))):
        with atomic_write(folder / CONFIG / f"{name}.yaml") as stream:
            stream.write(OmegaConf.to_yaml(content).encode())


def search_root() -> Path | None:
    """Return the folder that has earlier runs of the same command, or earlier sweeps for a run of a sweep. None if the
    user named this run's folder, and for a trial."""
    config, folder = HydraConfig.get(), run_folder()
    if is_trial():
        return None
    is_sweep = config.mode == RunMode.MULTIRUN
    setting = "hydra.sweep.dir=" if is_sweep else "hydra.run.dir="
    is_named = any(line.startswith(setting) for line in config.overrides.hydra)
    if is_sweep:
        return folder.parent if is_named else folder.parent.parent
    return None if is_named else folder.parent


class Choices(NamedTuple):
    """The choices of a run: the option of each config group, and the arguments of its command."""

    choices: dict[str, str]
    arguments: list[str]


def read_choices() -> Choices:
    """Return the choices of this run, without the arguments `resume` and `sweep` and the parts of an experiment."""
    config = HydraConfig.get()
    choices = {
        group: option
        for group, option in config.runtime.choices.items()
        if option and group != SEARCH and not group.startswith(("hydra", "experiment/"))
    }
    arguments = [line for line in config.overrides.task if not line.startswith(("resume=", f"{SEARCH}="))]
    return Choices(choices, arguments)


def read_searchpath() -> list[str]:
    """Return the argument of this run that names the user's own folders of options, if it is given."""
    return find_searchpath(HydraConfig.get().overrides.hydra) if HydraConfig.initialized() else []


def read_origin(folder: Path) -> tuple[str | None, tuple[str, ...]]:
    """Return the name of the sweep that a run belongs to, if any, and the run's tags, see `write_settings`."""
    file = folder / CONFIG / "hydra.yaml"
    if not file.is_file():
        return None, ()
    content = read_settings(file)
    try:
        choices, is_sweep = content["hydra"]["runtime"]["choices"], content["hydra"]["mode"] == RunMode.MULTIRUN.name
        tags = [str(choices[group]) for group in ("dataset", "encoder", "attention", "decoder") if choices.get(group)]
    except (AttributeError, KeyError, TypeError):
        raise UserError(f"{file} was altered: it has no choices of config groups; remove it") from None
    return folder.absolute().parent.name if is_sweep else None, tuple(dict.fromkeys(tags))


def as_argument(name: str, value: object) -> str:
    """Return `name=value` as a user would type it, quoted for the shell and for Hydra if needed."""
    if re.fullmatch(PLAIN, str(value)):
        return f"{name}={value}"
    return shlex.quote(f"{name}={quoted(str(value))}")


def as_value(value: str | Iterable[str]) -> str:
    """Return a text, or several as a list, as the value of a setting in an argument list, quoted if Hydra needs it."""
    if not isinstance(value, str):
        return f"[{','.join(map(as_value, value))}]"
    return value if re.fullmatch(PLAIN, value) else quoted(value)


def quoted(text: str) -> str:
    """Quote a text so that Hydra's command line and OmegaConf's interpolation take it literally."""
    return QuotedString(escaped(text), Quote.double).with_quotes()


@contextmanager
def report_errors() -> Iterator[None]:
    """Print an error that the user can fix on stderr and exit with status 2; with 130, as shells do, for Ctrl-C. If the
    reader of standard output is gone, exit without a message."""
    try:
        with quiet_pipe():
            yield
    except USER_ERRORS as error:
        sys.stderr.write(error_message(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
