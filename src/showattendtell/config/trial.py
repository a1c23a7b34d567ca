"""A trial of a study in Optuna, as its run sees it: what it reports, and whether it goes on."""

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

from showattendtell.errors import UserError
from showattendtell.files import whole_file

optuna.logging.set_verbosity(optuna.logging.WARNING)

FILE = "study.db"
"""Where a study is kept that no other place is given for, in its sweep's folder."""

PATIENCE = 60
"""Seconds to wait for another process that writes."""

OPENINGS = 3
"""How often a database is opened where it fails, as it may while another process makes the same tables."""

CARD = "study.json"
"""Says in the sweep's folder which study it is and where it is kept, less any password."""

PRUNED = "pruned"
SECONDS = "seconds"


def open_storage(url: str | None, folder: Path) -> BaseStorage:
    """The database or file that keeps studies; None for the one in a sweep's folder.

    Raises `UserError` where it cannot be opened.
    """
    if url and "://" not in url:
        return JournalStorage(JournalFileBackend(str(Path(url).expanduser())))
    place = url or URL.create("sqlite", database=str((folder / FILE).absolute())).render_as_string()
    template = place.replace("{", "{{").replace("}", "}}")  # which Optuna fills
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
                reason = str(getattr(fault, "orig", fault)).strip().splitlines()[0]
                raise UserError(f"the storage {_shown(place)} cannot be opened: {reason}") from None
    raise AssertionError


def _shown(url: str) -> str:
    """Without its password; of what is no address of a database no more than its beginning."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return f"{url.partition('://')[0]}://..."


def write_card(folder: Path, name: str, url: str | None) -> None:
    place = _shown(url) if url and "://" in url else url
    with whole_file(folder / CARD) as stream:
        stream.write(json.dumps({"study": name, "storage": place}).encode())


def find_study(folder: Path, url: str | None) -> optuna.Study:
    """The study of a sweep's folder; where it is kept is told by the folder or, if that is no longer so, by the caller.

    Raises `UserError` where there is none.
    """
    try:
        card = json.loads((folder / CARD).read_text())
    except FileNotFoundError:
        raise UserError(f"{folder} has no {CARD}; give the folder of a search, runs/NAME-study") from None
    storage = open_storage(url or card["storage"], folder)
    try:
        return optuna.load_study(study_name=card["study"], storage=storage)
    except KeyError:
        raise UserError(f"there is no study {card['study']} where {folder} has it; give storage=") from None


def build_pruner(node: DictConfig) -> BasePruner:
    pruner: BasePruner = instantiate(node, _execution_whitelist_=["optuna.pruners.*"])
    return pruner


class OwnTrial:
    """The trial that a run is.

    What it reports and how long it has taken is kept in the study; a trial that was cut off goes on with both.
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
        """What validation number `step`, from 1, has found."""
        self._storage.set_trial_intermediate_value(self._id, step, figure)
        self.keep_time()

    def keep_time(self) -> None:
        self._remember(SECONDS, time.monotonic() - self._started)

    def is_hopeless(self) -> bool:
        """Whether the pruner ends it, which is kept in the study too."""
        hopeless = self._study.pruner.prune(self._study, self._storage.get_trial(self._id))
        if hopeless:
            self._remember(PRUNED, True)
        return hopeless

    def _remember(self, name: str, value: Any) -> None:
        self._storage.set_trial_user_attr(self._id, name, value)


def own_trial() -> OwnTrial:
    """That of a run which is one."""
    config = HydraConfig.get()
    storage = open_storage(config.sweeper.storage, Path(config.sweep.dir))
    return OwnTrial(storage, config.sweeper.study_name, config.sweeper.pruner, int(config.sweep.subdir))
