"""A run on https://wandb.ai, or in a folder for a later upload."""

import netrc
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlparse

import showattendtell
from showattendtell.errors import first_line
from showattendtell.training.loggers.dashboard import CLOSING, DashboardBackend, Histogram, ImagePanel

if TYPE_CHECKING:
    from wandb import Run


ANSWERING = 20.0
"""Seconds that wandb's server has to answer when a run begins."""

COLUMNS = ("image", "caption", "references", "attention")


class RunLabel(NamedTuple):
    """Name, group and tags of a run."""

    project: str
    name: str
    group: str | None
    tags: tuple[str, ...]


def open_wandb(folder: Path, label: RunLabel, config: Mapping[str, Any], run_id: str) -> "WandbBackend":
    """Start a new run, or resume the one with the id. It is kept in the folder without an account,
    in offline mode, or if the server does not answer."""
    if "WANDB_MODE" not in os.environ and not has_account():
        return _begin(folder, label, config, run_id, "offline")
    from wandb.errors import CommError, UsageError

    try:
        return _begin(folder, label, config, run_id, None)
    except (CommError, UsageError, TimeoutError) as fault:
        print(f"wandb cannot be reached ({first_line(fault)}); this run is kept offline")
        return _begin(folder, label, config, run_id, "offline")


def _begin(folder: Path, label: RunLabel, config: Mapping[str, Any], run_id: str, mode: Any) -> "WandbBackend":
    import wandb

    place = Path(os.environ.get("WANDB_DIR", folder))
    place.mkdir(parents=True, exist_ok=True)
    run = wandb.init(
        **label._asdict(),
        id=run_id or None,
        resume="allow" if run_id else None,
        config={**config, "code": code()},
        dir=place,
        mode=mode,
        reinit="create_new",
        settings=wandb.Settings(
            silent=True,
            console="off",
            disable_job_creation=True,
            init_timeout=ANSWERING,
            finish_timeout=CLOSING - 60,
            finish_timeout_raises=True,
        ),
    )
    run.define_metric("*", step_metric="step", step_sync=True)
    return WandbBackend(run, place / "wandb")


def code() -> dict[str, str]:
    """Return this project's version, and the commit if it runs from a checkout."""
    version, root = {"version": showattendtell.__version__}, Path(showattendtell.__file__).parents[2]
    if not (root / ".git").exists():
        return version
    describe = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        said = subprocess.run(describe, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return version
    return {**version, "commit": said.stdout.strip()}


class WandbBackend(DashboardBackend):
    """
    Args:
        run: returned by `wandb.init`.
        folder: wandb's output folder.
    """

    def __init__(self, run: "Run", folder: Path):
        self.id, self._run, self._folder = run.id, run, folder

    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        self._run.log({**figures, "step": step})

    def log_panels(self, panels: Sequence[ImagePanel], step: int) -> None:
        import wandb

        table = wandb.Table(columns=list(COLUMNS))
        for panel in panels:
            picture = panel.picture and wandb.Image(panel.picture, caption=panel.caption, file_type="jpg")
            table.add_data(panel.image, panel.caption, "\n".join(panel.references), picture)
        with self._staging():
            self._run.log({"val/captions": table, "step": step})

    def log_histograms(self, histograms: Mapping[str, Histogram], step: int) -> None:
        import wandb

        shown = {name: wandb.Histogram(np_histogram=(it.counts, it.edges)) for name, it in histograms.items()}
        self._run.log({**shown, "step": step})

    def log_best(self, files: Sequence[Path], figures: Mapping[str, float]) -> None:
        import wandb

        artifact = wandb.Artifact(f"best-{self.id}", type="model", metadata=dict(figures))
        with self._staging():
            for file in files:
                artifact.add_file(str(file.absolute()), file.name, skip_cache=True, policy="immutable")
            self._run.log_artifact(artifact, aliases=["best"])
        self._run.summary.update({f"best/{name}": value for name, value in figures.items()})

    def close(self, succeeded: bool) -> str:
        address = None if self._run.offline else self._run.url
        self._run.finish(exit_code=0 if succeeded else 1)
        if address:
            return f"the run is at {address}"
        parts = sorted(self._folder.glob(f"offline-run-*-{self.id}"))
        return f"the wandb run is kept offline; upload it with\n  wandb sync {' '.join(map(str, parts))}"

    def abandon(self) -> None:
        import wandb

        wandb.teardown()

    @contextmanager
    def _staging(self) -> Iterator[None]:
        """Stage uploads in the run's folder instead of the user's home."""
        former = os.environ.get("WANDB_DATA_DIR")
        os.environ.setdefault("WANDB_DATA_DIR", str(self._folder))
        try:
            yield
        finally:
            if former is None:
                del os.environ["WANDB_DATA_DIR"]


def has_account() -> bool:
    """Return whether a key for wandb's server is in the environment or in ~/.netrc (written by `wandb login`)."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc().authenticators(host) is not None
    except (FileNotFoundError, netrc.NetrcParseError):
        return False
