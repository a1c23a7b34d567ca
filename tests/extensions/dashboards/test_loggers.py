"""Dashboards that never end a run, and what TensorBoard's and wandb's own readers find."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wandb
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf
from PIL import Image
from pytorch_lightning.loggers import Logger
from slow_cases import slow_after
from wandb_files import artifact_of, figures_of, read_wandb

from showattendtell import __version__
from showattendtell.config.entry_point import read_origin
from showattendtell.extensions.dashboards.loggers import (
    Dashboard,
    ImagePanel,
    TensorBoardDashboard,
    WandbDashboard,
)


@pytest.mark.parametrize(("mode", "group"), [(RunMode.RUN, None), (RunMode.MULTIRUN, "compare")])
def test_a_run_of_a_sweep_is_grouped_by_the_sweep_s_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: RunMode, group: str | None
):
    folder = tmp_path / "compare" / "3"
    assert read_origin(folder) == (None, [])
    choices = {"dataset": "shapes", "attention": "hard", "decoder": "lstm", "variant": "paper", "encoder": None}
    hydra = OmegaConf.create({"mode": mode, "runtime": {"choices": choices}})
    monkeypatch.setattr(HydraConfig.instance(), "cfg", OmegaConf.create({"hydra": hydra}))
    assert read_origin(folder) == (group, ["shapes", "hard", "lstm"])


class Page(Logger):
    """What the notebook writes to; from `breaks` on every call fails."""

    name, version = "", ""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[object] = []
        self.breaks = False

    def write(self, *line: object) -> None:
        if self.breaks:
            raise ConnectionResetError("Connection lost")
        self.lines.append(line)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.write(dict(metrics), step)

    def log_hyperparams(self, *_: Any, **__: Any) -> None: ...


class Notebook(Dashboard):
    """Writes down what it is shown."""

    kind = "the notebook"

    def __init__(self, page: Page, images: int = 0):
        super().__init__(images)
        self.page = page
        self.asked: list[str] = []

    def start(self, folder: Path, settings: Mapping[str, Any]) -> Logger:
        self.asked.append(self.id)
        self.id = "number 7"
        return self.page

    def show_panels(self, panels: Sequence[ImagePanel], step: int) -> None:
        self.page.write([panel.image for panel in panels], step)

    def show_best(self, files: Sequence[Path], figures: Mapping[str, float]) -> None:
        self.page.write(list(files), dict(figures))

    def close(self, succeeded: bool) -> str:
        self.page.write("closed", succeeded)
        return "it is written down"


@pytest.fixture
def dashboard() -> Notebook:
    opened = Notebook(Page(), images=1)
    opened.open(Path(), {})
    return opened


def test_a_board_that_breaks_is_reported_of_once_and_left_alone(
    dashboard: Notebook, capsys: pytest.CaptureFixture[str]
):
    dashboard.log_metrics({"loss": 2.0}, 3)
    dashboard.page.breaks = True
    for step in (6, 9):
        dashboard.log_metrics({"loss": 1.0}, step)
    dashboard.finalize("success")
    said = capsys.readouterr()
    assert said.err == (
        "warning: the notebook is switched off for the rest of this run (Connection lost); the run "
        "itself continues, and metrics.csv has the figures of each epoch\n"
    )
    assert said.out == ""


def test_a_board_that_cannot_be_opened_ends_no_run(capsys: pytest.CaptureFixture[str]):
    class Refused(Notebook):
        def start(self, *_: object) -> Logger:
            raise PermissionError(13, "Permission denied", "wandb")

    dashboard = Refused(Page())
    dashboard.open(Path(), {})
    dashboard.log_metrics({"loss": 1.0}, 1)
    dashboard.finalize("failed")
    assert capsys.readouterr().err.count("(wandb: Permission denied)") == 1


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """What TensorBoard itself reads of a run that was shown everything."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoardDashboard(images=2)
    settings = {"seed": 7, "decoder": {"tie_embeddings": True}, "optimizer": {"betas": (0.9, 0.999)}}
    board.open(tmp_path, settings)
    board.log_metrics({"val/bleu4": 12.5, "epoch": 0}, 10)
    board.log_metrics({"val/bleu4": 14.0, "epoch": 1}, 20)
    board.show_panels(
        [ImagePanel("dog.jpg", "a dog runs", 87.5, 0.25, ("a dog", "it runs"), Image.new("RGB", (30, 20), "red"))], 10
    )
    board.show_panels([ImagePanel("gone.jpg", "a cat", 0.0, 0.5, (), None)], 10)
    assert board.close(True).endswith(f"tensorboard --logdir {tmp_path}")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    return events


def test_tensorboard_reads_pictures_and_captions(read: Any):
    [picture] = read.Images("val/captions/dog.jpg")
    assert (picture.width, picture.height, picture.step) == (30, 20, 10)
    assert read.Tags()["images"] == ["val/captions/dog.jpg"]
    texts = {
        tag.removesuffix("/text_summary"): read.Tensors(tag)[0].tensor_proto.string_val[0].decode()
        for tag in read.Tags()["tensors"]
    }
    assert texts["val/captions/dog.jpg"] == "**a dog runs**\n\nCIDEr 87.5, confidence 0.25\n\n- a dog\n- it runs"


def test_tensorboard_reads_the_settings_and_compares_all_figures_of_runs(read: Any):
    """Its last value of each figure is the one of the chart: none is added."""
    from tensorboard.plugins.hparams import metadata

    content = read.summary_metadata
    session = metadata.parse_session_start_info_plugin_data(
        content[metadata.SESSION_START_INFO_TAG].plugin_data.content
    )
    assert {name: value.WhichOneof("kind") for name, value in session.hparams.items()} == {
        "seed": "number_value",
        "decoder.tie_embeddings": "string_value",
        "optimizer.betas": "string_value",
    }
    assert session.hparams["seed"].number_value == 7
    assert metadata.EXPERIMENT_TAG not in content  # it would limit the figures to those that it lists
    assert len(read.Scalars("val/bleu4")) == 2


@pytest.fixture
def bare_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE", "WANDB_DIR", "WANDB_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.usefixtures("bare_home")
def test_a_run_without_an_account_is_read_back_by_wandb_with_all_that_it_was_shown(tmp_path: Path):
    (tmp_path / "best.ckpt").write_bytes(b"weights")
    board = WandbDashboard("captions", "soft/1", "soft or hard", ("flickr8k", "lstm"))
    board.open(tmp_path, {"decoder": {"width": 512}})
    board.log_metrics({"val/bleu4": 12.5, "epoch": 0}, 10)
    picture = Image.new("RGB", (30, 20), "red")
    board.show_panels(
        [
            ImagePanel("dog.jpg", "a dog runs", 87.5, 0.25, ("a dog", "it runs"), picture),
            ImagePanel("x", "y", 0.0, 0.5, (), None),
        ],
        10,
    )
    board.show_best([tmp_path / "best.ckpt"], {"val/bleu4": 12.5})
    message = board.close(True)

    [part] = (tmp_path / "wandb").glob("offline-run-*")
    assert message == f"the wandb run is kept offline; upload it with\n  wandb sync {part}"
    records = read_wandb(part)
    [run] = records["run"]
    assert (run["project"], run["display_name"], run["run_group"]) == ("captions", "soft/1", "soft or hard")
    assert (run["run_id"], run["tags"]) == (board.id, ["flickr8k", "lstm"])
    assert run["config"]["update"]["decoder"] == {"width": 512}
    assert run["config"]["update"]["version"] == __version__
    figures, table = figures_of(records)
    assert figures == {"val/bleu4": 12.5, "epoch": 0, "step": 10}
    assert (table["val/captions.nrows"], table["step"]) == (2, 10)

    [files] = artifact_of(records, "run_table")
    content = json.loads(files["val/captions.table.json"].read_text())
    assert content["columns"] == list(ImagePanel._fields)
    [dog, other] = content["data"]
    assert dog[:5] == ["dog.jpg", "a dog runs", 87.5, 0.25, "a dog\nit runs"]
    assert other == ["x", "y", 0.0, 0.5, "", None]
    with Image.open(files[dog[5]["path"]]) as image:
        assert image.size == (30, 20)
        assert np.allclose(np.asarray(image), (255, 0, 0), atol=4)
    assert all(tmp_path in file.parents for file in files.values())

    [best] = artifact_of(records, "model")
    assert best["best.ckpt"].read_bytes() == b"weights"


@pytest.mark.usefixtures("bare_home")
@pytest.mark.parametrize("mode", slow_after(1, ["offline", "disabled", "dryrun"]))
def test_only_files_that_are_there_are_to_be_uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str):
    monkeypatch.setenv("WANDB_MODE", mode)
    board = WandbDashboard("captions", "a")
    folder = tmp_path / "with a space"
    wandb.teardown()  # wandb reads the environment once
    board.open(folder, {})
    board.log_metrics({"val/bleu4": 12.5}, 10)
    message = board.close(True)
    wandb.teardown()
    command = shlex.split(message.partition("wandb sync ")[2])
    assert command == list(map(str, (folder / "wandb").glob("offline-run-*")))
    assert len(command) == (mode != "disabled")


@pytest.mark.usefixtures("bare_home")
def test_a_resumed_run_has_its_id_and_is_uploaded_with_its_first_part(tmp_path: Path):
    first, second = WandbDashboard("captions", "a"), WandbDashboard("captions", "a")
    first.open(tmp_path, {})
    first.close(False)
    second.id = first.id
    second.open(tmp_path, {})
    message = second.close(True)
    parts = sorted(map(str, (tmp_path / "wandb").glob(f"offline-run-*-{first.id}")))
    assert second.id == first.id
    assert message.endswith(f"wandb sync {' '.join(parts)}")


@pytest.mark.slow
@pytest.mark.usefixtures("bare_home")
@pytest.mark.parametrize("key", slow_after(1, ["0" * 40, "malformed"]))
def test_a_run_whose_server_does_not_answer_or_without_a_valid_key_is_kept_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], key: str
):
    monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("showattendtell.extensions.dashboards.loggers.INIT_TIMEOUT", 2.0)
    board = WandbDashboard("captions", "a")
    board.open(tmp_path, {})
    assert "this run is offline" in capsys.readouterr().out
    assert "wandb sync" in board.close(True)
