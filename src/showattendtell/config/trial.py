"""The current trial of an Optuna study: storage, intermediate reports and pruning."""

import json
import time
from pathlib import Path
from typing import Any

import optuna
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig
from optuna.pruners import BasePruner
from optuna.samplers import RandomSampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from showattendtell.errors import UserError, first_line
from showattendtell.runtime.files import atomic_write

optuna.logging.set_verbosity(optuna.logging.WARNING)

FILE = "study.db"
"""The default storage of a study, a file in its sweep's folder."""

PATIENCE = 60
"""Seconds to wait while another process writes."""

OPENINGS = 3
"""Attempts to open a database, which may fail while another process creates the same tables."""

CARD = "study.json"
"""File in the sweep's folder with the name of the study and its storage, without a password."""

PRUNED = "pruned"
SECONDS = "seconds"


def open_storage(url: str | None, folder: Path) -> BaseStorage:
    """Open the storage at `url`, a database or a file; None for the database in a sweep's folder.

    Raises `UserError` if it cannot be opened.
    """
    if url and "://" not in url:
        return JournalStorage(JournalFileBackend(str(Path(url).expanduser())))
    place = url or URL.create("sqlite", database=str((folder / FILE).absolute())).render_as_string()
    template = place.replace("{", "{{").replace("}", "}}")  # Optuna formats it
    waiting = {"connect_args": {"timeout": PATIENCE}} if place.startswith("sqlite") else {"pool_pre_ping": True}
    for left in reversed(range(OPENINGS)):
        try:
            return RDBStorage(template, engine_kwargs=waiting)
        except ImportError:
            raise UserError(
                f"the storage {_shown(place)} needs a package; for PostgreSQL run "
                "pip install 'showattendtell[postgresql]'"
            ) from None
        except (ArgumentError, DBAPIError) as fault:
            if not left:
                reason = first_line(getattr(fault, "orig", None) or fault)
                raise UserError(f"the storage {_shown(place)} cannot be opened: {reason}") from None
    raise AssertionError


def _shown(url: str) -> str:
    """Return a database URL without its password; only the scheme if it is not a valid URL."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return f"{url.partition('://')[0]}://..."


def write_card(folder: Path, name: str, url: str | None) -> None:
    place = _shown(url) if url and "://" in url else url
    with atomic_write(folder / CARD) as stream:
        stream.write(json.dumps({"study": name, "storage": place}).encode())


def find_study(folder: Path, url: str | None) -> optuna.Study:
    """Return the study of a sweep's folder.

    Args:
        url: the storage, if it is outside of the folder; an outside storage in `study.json` is not trusted.

    Raises `UserError` if there is no study.
    """
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
        name, place = str(card["study"]), card["storage"]
    except FileNotFoundError:
        raise UserError(f"{folder} has no {CARD}; give the folder of a search, runs/NAME-study") from None
    except (KeyError, RecursionError, TypeError, ValueError) as fault:
        raise UserError(f"{folder / CARD} is damaged ({type(fault).__name__}); give the folder of a search") from None
    if url is None and place is not None and not _is_inside(place, folder):
        raise UserError(f"{folder / CARD} names the storage {place}, which is outside of {folder}; give storage=PLACE")
    storage = open_storage(url or place, folder)
    try:
        return optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        raise UserError(f"there is no study {name} where {folder} has it; give storage=PLACE") from None


def _is_inside(place: Any, folder: Path) -> bool:
    """Return whether a storage is a file in the folder, not a database elsewhere."""
    if not isinstance(place, str) or "://" in place:
        return False
    return Path(place).expanduser().resolve().is_relative_to(folder.resolve())


def build_pruner(node: DictConfig) -> BasePruner:
    pruner: BasePruner = instantiate(node, _execution_whitelist_=["optuna.pruners.*"])
    return pruner


class CurrentTrial:
    """The trial that this process runs.

    Reported values and elapsed time are stored in the study; an interrupted trial resumes with both.
    """

    def __init__(self, storage: BaseStorage, study: str, pruner: DictConfig, number: int):
        self._storage = storage
        self._study = optuna.load_study(
            study_name=study, storage=storage, sampler=RandomSampler(), pruner=build_pruner(pruner)
        )
        known = storage.get_study_id_from_name(study)
        self._id = storage.get_trial_id_from_study_id_trial_number(known, number)
        before = storage.get_trial(self._id).user_attrs.get(SECONDS, 0.0)
        self._started = time.monotonic() - before

    def report(self, figure: float, step: int) -> None:
        """Report the validation score number `step`, counted from 1."""
        self._storage.set_trial_intermediate_value(self._id, step, figure)
        self.keep_time()

    def keep_time(self) -> None:
        self._remember(SECONDS, time.monotonic() - self._started)

    def is_hopeless(self) -> bool:
        """Return whether the pruner stops this trial, and record it in the study."""
        hopeless = self._study.pruner.prune(self._study, self._storage.get_trial(self._id))
        if hopeless:
            self._remember(PRUNED, True)
        return hopeless

    def _remember(self, name: str, value: Any) -> None:
        self._storage.set_trial_user_attr(self._id, name, value)


def current_trial() -> CurrentTrial:
    """Return the trial of this run, which must be one."""
    config = HydraConfig.get()
    storage = open_storage(config.sweeper.storage, Path(config.sweep.dir))
    return CurrentTrial(storage, config.sweeper.study_name, config.sweeper.pruner, int(config.sweep.subdir))
