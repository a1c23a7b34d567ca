"""The way into every command: read, check, run; and how a run speaks to its user."""

import atexit
import gc
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.core.plugins import Plugins
from hydra.types import RunMode
from hydra.utils import execution_whitelist
from omegaconf import DictConfig, OmegaConf

from showattendtell.config.check import find_faults, find_targets, raise_all
from showattendtell.config.command_line import check_command
from showattendtell.config.compose import SEARCH, command_folder, compose
from showattendtell.config.faults import FAULTS, sentence
from showattendtell.config.help import help_page
from showattendtell.config.search import Search, is_trial
from showattendtell.config.sweep import Sweep, run_in_sweep, shown
from showattendtell.errors import UserError

GARBAGE = 50_000
"""Objects that are made before Python looks for garbage among them, instead of 700: importing torch makes half a
million that stay, and to look at them again and again takes a second."""


PLAIN = r"[\w./-]+"
"""A value that neither the shell nor Hydra takes for anything else."""


def entry_point(
    name: str,
    run: Callable[[DictConfig], Any],
    positional: str = "",
    expand: Callable[[list[str]], list[str]] = list,
) -> Callable[[], None]:
    """`main()` of a command: reads `conf/NAME.yaml` and the command line, checks them, and calls `run(config)`.

    What the command line names as a `_target_` may be built. Whatever the user can mend is printed as a sentence, with
    exit status 2.

    Args:
        positional: the setting that takes the arguments without a name, as a list.
        expand: the arguments as they are to be read, from those that were given.
    """

    def task(config: DictConfig) -> Any:
        def checked() -> Any:
            raise_all(find_faults(config))
            with trusting(config):
                return run(config)

        if HydraConfig.get().mode == RunMode.MULTIRUN:
            return run_in_sweep(checked)
        with telling_errors():
            return checked()

    def main() -> None:
        gc.set_threshold(GARBAGE)
        os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra prints no traceback of its own
        with telling_errors():
            arguments = without_dashes(map(at_home, sys.argv[1:]))
            arguments = name_positional(arguments, positional) if positional else arguments
            if {"-h", "--help"} & set(arguments):
                settings = [argument for argument in arguments if not argument.startswith("-")]
                print(help_page(*compose(name, check_command(name, settings, complete=False))))
                return
            sys.argv[1:] = check_command(name, expand(arguments))
            for sweeper in (Sweep, Search):
                Plugins.instance().register(sweeper)
            hydra.main(config_path=command_folder(name), config_name=name)(task)()

    return main


@contextmanager
def trusting(config: DictConfig) -> Iterator[None]:
    """Let all be built that the configuration names: it is the user's own."""
    with execution_whitelist(list(find_targets(OmegaConf.to_container(config, resolve=True)))):
        yield


def leave() -> None:
    """End the process at once, all being done: to take apart what was imported would take another second."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def at_home(argument: str) -> str:
    """An argument in which `~` is the home folder where a path begins with it behind `=`, or within a list; shells look
    for it in none of these places, or not behind every name."""
    return re.sub(r"(?<=[=\[,])~(?=[/,\]]|$)", lambda _: str(Path.home()), argument)


def without_dashes(arguments: Iterable[str]) -> list[str]:
    """The arguments, with `name=value` for `--name value` and `--name=value` where that is no option of Hydra's."""
    known, settings = get_args_parser()._option_string_actions, []
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or f"--{name}" in known:
            settings.append(argument)
            continue
        given = value if equals else next(rest, None)
        if not given or given.startswith("--"):
            raise UserError(f"--{name} has no value; give --{name} VALUE or {name}=VALUE")
        settings.append(f"{name.replace('-', '_')}={given if given[0] in '[{' else as_value(given)}")
    return settings


def name_positional(arguments: Sequence[str], setting: str) -> list[str]:
    """The arguments, those that name no setting put together as `setting=[...]`: what holds no `=`, or is there as a
    file or folder.

    Raises `UserError` where the setting is given by its name as well.
    """
    given = get_args_parser().parse_intermixed_args(list(arguments)).overrides
    places = [argument for argument in given if "=" not in argument or os.path.exists(argument)]
    rest = [argument for argument in arguments if argument not in places]
    named = next((argument for argument in rest if argument.lstrip("+").startswith(f"{setting}=")), None)
    if places and named:
        raise UserError(f"{setting} are given twice, as {places[0]} and as {named}; give all of them in one way")
    return [*rest, f"{setting}=[{','.join(map(quoted, places))}]"] if places else rest


def run_folder() -> Path:
    """The folder that Hydra made for this run, as the user would type it."""
    return shown(HydraConfig.get().runtime.output_dir)


def is_first_process() -> bool:
    """Of those that torchrun or SLURM has started, before they have met."""
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", 0))) == 0


def search_root() -> Path | None:
    """The folder in which earlier runs of the same command are, a sweep's with their sweeps; None where the user named
    this run's folder, and for a trial, whose folder is its own."""
    config, folder = HydraConfig.get(), run_folder()
    is_sweep = config.mode == RunMode.MULTIRUN
    if is_trial():
        return None
    setting = "hydra.sweep.dir=" if is_sweep else "hydra.run.dir="
    is_named = any(line.startswith(setting) for line in config.overrides.hydra)
    if is_sweep:
        return folder.parent if is_named else folder.parent.parent
    return None if is_named else folder.parent


class Chosen(NamedTuple):
    """What was chosen for a run: the option of each group, and the arguments of its command."""

    choices: dict[str, str]
    arguments: list[str]


def chosen() -> Chosen:
    """For this run, less the arguments that tell from where it goes on, and in which search."""
    config = HydraConfig.get()
    choices = {group: option for group, option in config.runtime.choices.items() if option}
    return Chosen(
        {group: option for group, option in choices.items() if not group.startswith("hydra") and group != SEARCH},
        [line for line in config.overrides.task if not line.startswith(("resume=", f"{SEARCH}="))],
    )


def as_argument(name: str, value: object) -> str:
    """`name=value` as a user would have to type it, quoted for the shell and for Hydra where it needs that."""
    if re.fullmatch(PLAIN, str(value)):
        return f"{name}={value}"
    return shlex.quote(f"{name}={quoted(str(value))}")


def as_value(value: str | Iterable[str]) -> str:
    """A text, or several as a list, as the value of a setting in a list of arguments, quoted for Hydra where it needs
    that."""
    if not isinstance(value, str):
        return f"[{','.join(map(as_value, value))}]"
    return value if re.fullmatch(PLAIN, value) else quoted(value)


def quoted(text: str) -> str:
    """A text as Hydra's command line and then OmegaConf's interpolation take it literally."""
    literal = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    return QuotedString(literal, Quote.double).with_quotes()


@contextmanager
def telling_errors() -> Iterator[None]:
    """Print a user's fault on stderr and exit with status 2; with 130, as shells do, where the user interrupts."""
    try:
        yield
    except FAULTS as fault:
        print(f"error: {sentence(fault)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
