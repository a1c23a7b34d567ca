"""Loggers of a training: their opening and closing, and the protection of a run from their errors."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from inspect import getmembers, isfunction, signature
from pathlib import Path
from typing import Any

from hydra.utils import get_object
from pytorch_lightning import Trainer
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities.seed import isolate_rng

from showattendtell.config.instantiate import build
from showattendtell.config.validation import USER_ERRORS, sentence, with_defaults
from showattendtell.errors import UserError, first_line
from showattendtell.settings import Node, Nodes


@contextmanager
def open_loggers(nodes: Nodes, record: Mapping[str, Any], trainer: Trainer) -> Iterator[None]:
    """Build loggers, which get the record of the settings, and add them to a Trainer. Close them if the `with` block
    fails, as Lightning does if training fails."""
    opened: list[Logger] = []
    try:
        for name, node in nodes.items():
            if node and not trainer.fast_dev_run:  # type: ignore[attr-defined]
                opened.append(build_logger(name, node, record, Path(trainer.default_root_dir)))
        trainer.loggers = [*trainer.loggers, *opened]
        yield
    except BaseException:
        for logger in opened:
            logger.finalize("failed")
        raise


def build_logger(name: str, node: Node, record: Mapping[str, Any], folder: Path) -> Logger:
    """Build a logger, by any class of Lightning's kind, and log the record of the run's settings.

    A class with the arguments `save_dir` and `run_name` gets the folder of the run and its name.

    Raises:
        UserError: its package is missing, or its server cannot be reached.
    """
    about = {"save_dir": folder, "run_name": "/".join(folder.absolute().parts[-2:])}
    try:
        accepted = about.keys() & signature(get_object(node.target)).parameters
        with isolate_rng():  # MLflow, for example, draws a name
            logger: Logger = build(node, **{key: about[key] for key in accepted - node.arguments.keys()})
            logger.log_hyperparams(with_defaults(record))
    except USER_ERRORS:
        raise
    except Exception as error:  # each has its own errors
        raise UserError(f"logger.{name}: {first_line(error)}; --debug shows the traceback") from error
    return without_errors(logger, name)


def without_errors(logger: Logger, name: str) -> Logger:
    """Return a logger, all of whose methods do nothing once one of them has raised an error, which is printed.

    Lightning's loggers raise when a server or a disk fails, which would end the run.
    """
    failed: list[Exception] = []

    def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            if failed:
                return None
            try:
                return method(*args, **kwargs)
            except Exception as error:
                failed.append(error)
                print(
                    f"warning: logger.{name} is switched off for the rest of this run ({sentence(error)}); the run "
                    "itself continues, and metrics.csv has the figures of each epoch",
                    file=sys.stderr,
                )

        return call

    for method, _ in getmembers(type(logger), isfunction):
        if not method.startswith("_"):
            setattr(logger, method, guarded(getattr(logger, method)))
    return logger
