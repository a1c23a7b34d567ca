"""The way into every command: read, check, run; and how a run speaks to its user."""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.utils import execution_whitelist
from omegaconf import DictConfig, OmegaConf

from showattendtell.config.check import find_faults, find_targets, raise_all
from showattendtell.config.command_line import check_command
from showattendtell.config.compose import compose, config_folder
from showattendtell.config.help import help_page
from showattendtell.errors import UserError


def entry_point(name: str, run: Callable[[DictConfig], Any]) -> Callable[[], None]:
    """`main()` of a command: reads `conf/NAME.yaml` and the command line, checks them, and calls `run(config)`.

    What the command line names as a `_target_` may be built. Whatever the user can mend is printed as a sentence, with
    exit status 2.
    """

    def task(config: DictConfig) -> Any:
        with telling_errors():
            raise_all(find_faults(config))
            with execution_whitelist(list(find_targets(OmegaConf.to_container(config, resolve=True)))):
                return run(config)

    def main() -> None:
        os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra prints no traceback of its own
        with telling_errors():
            arguments = sys.argv[1:]
            if {"-h", "--help"} & set(arguments):
                settings = [argument for argument in arguments if not argument.startswith("-")]
                print(help_page(*compose(name, check_command(name, settings, complete=False))))
                return
            sys.argv[1:] = check_command(name, arguments)
            hydra.main(config_path=config_folder(), config_name=name)(task)()

    return main


def run_folder() -> Path:
    """The folder that Hydra made for this run, as the user would type it."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def as_argument(name: str, value: object) -> str:
    """`name=value` as a user would have to type it, quoted for the shell and for Hydra where it needs that."""
    if re.fullmatch(r"[\w./~-]+", str(value)):
        return f"{name}={value}"
    return shlex.quote(f"{name}={json.dumps(str(value), ensure_ascii=False)}")


@contextmanager
def telling_errors() -> Iterator[None]:
    """Print a user's fault on stderr and exit with status 2."""
    try:
        yield
    except (UserError, HydraException) as fault:
        _exit(str(fault) if isinstance(fault, UserError) else str(fault).splitlines()[0])
    except OSError as fault:
        where = f"{fault.filename}: " if fault.filename else ""
        _exit(f"{where}{fault.strerror or fault}; is there room, and may it be written?")


def _exit(sentence: str) -> None:
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(2)
