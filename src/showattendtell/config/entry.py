"""The way into every command: read, check, run; and how a run speaks to its user."""

import atexit
import gc
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
from showattendtell.config.compose import command_folder, compose
from showattendtell.config.faults import FAULTS, sentence
from showattendtell.config.help import help_page
from showattendtell.config.sweep import Sweep, run_in_sweep, shown
from showattendtell.errors import UserError

GARBAGE = 50_000
"""Objects that are made before Python looks for garbage among them, instead of 700: importing torch makes half a
million that stay, and to look at them again and again takes a second."""


def entry_point(name: str, run: Callable[[DictConfig], Any], positional: str = "") -> Callable[[], None]:
    """`main()` of a command: reads `conf/NAME.yaml` and the command line, checks them, and calls `run(config)`.

    What the command line names as a `_target_` may be built. Whatever the user can mend is printed as a sentence, with
    exit status 2.

    Args:
        positional: the setting that takes the arguments without a name, as a list.
    """

    def task(config: DictConfig) -> Any:
        def checked() -> Any:
            raise_all(find_faults(config))
            with execution_whitelist(list(find_targets(OmegaConf.to_container(config, resolve=True)))):
                return run(config)

        if HydraConfig.get().mode == RunMode.MULTIRUN:
            return run_in_sweep(checked)
        with telling_errors():
            return checked()

    def main() -> None:
        gc.set_threshold(GARBAGE)
        os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra prints no traceback of its own
        with telling_errors():
            arguments = name_positional(sys.argv[1:], positional) if positional else sys.argv[1:]
            if {"-h", "--help"} & set(arguments):
                settings = [argument for argument in arguments if not argument.startswith("-")]
                print(help_page(*compose(name, check_command(name, settings, complete=False))))
                return
            sys.argv[1:] = check_command(name, arguments)
            Plugins.instance().register(Sweep)
            hydra.main(config_path=command_folder(name), config_name=name)(task)()

    return main


def leave() -> None:
    """End the process at once, all being done: to take apart what was imported would take another second."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


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
    return [*rest, f"{setting}=[{','.join(map(_quoted, places))}]"] if places else rest


def run_folder() -> Path:
    """The folder that Hydra made for this run, as the user would type it."""
    return shown(HydraConfig.get().runtime.output_dir)


def choices() -> dict[str, str]:
    """The option that was chosen of each group, for this run."""
    chosen = HydraConfig.get().runtime.choices
    return {group: option for group, option in chosen.items() if option and not group.startswith("hydra")}


def as_argument(name: str, value: object) -> str:
    """`name=value` as a user would have to type it, quoted for the shell and for Hydra where it needs that."""
    if re.fullmatch(r"[\w./~-]+", str(value)):
        return f"{name}={value}"
    return shlex.quote(f"{name}={_quoted(str(value))}")


def _quoted(text: str) -> str:
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
