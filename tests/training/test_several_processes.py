"""Training by several processes against training by one that has their batches."""

from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import small_training
import torch
from extension_cases import cases
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from slow_cases import slow_after

from showattendtell.runtime.files import METRICS
from showattendtell.visualization.figures import read_metrics

pytestmark = pytest.mark.filterwarnings("ignore")

SETTINGS = ["decoder.dropout=0", "trainer.limit_train_batches=1.0"]
SETTINGS += ["callbacks.early_stopping.patience=99", "checkpoint_interval_minutes=60"]
CHOICES = {
    "hard": ["attention=hard", "attention.num_samples=2"],
    "paper": ["data.bucketing=paper"],
    **cases("IN_SEVERAL_PROCESSES"),
    "supervised": ["loss.supervision_weight=0.5"],
    "hard as released": ["attention=hard", "attention.estimator=reinforce_arctic", "loss.entropy_weight=0.01"],
    "accumulated": ["trainer.accumulate_grad_batches=2"],
    "padded": ["data.bucketing=padded", "loss.doubly_stochastic_weight=0.3"],
    "round_robin, images together": ["data.bucketing=round_robin", "data.group_by_image=true"],
    "penalty as released": ["loss.penalty_reduction=locations"],
    "hard, rloo": ["attention=hard", "attention.num_samples=2", "attention.estimator=rloo"],
}


TIME_LIMIT = 900


class Report(Callback):
    """Writes down what each process has at the end."""

    def __init__(self, folder: Path):
        self.folder = folder

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        folder = self.folder / "reports"
        folder.mkdir(exist_ok=True)
        torch.save({"steps": trainer.global_step, "state": module.state_dict()}, folder / f"{trainer.global_rank}.pt")


class Data(NamedTuple):
    """Images to train and to validate on, and regions of each."""

    images: int = small_training.IMAGES
    validated: int = small_training.VALIDATED
    regions: int = small_training.REGIONS.shape[1]


Trained = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def trained(fork_server: ForkServerContext) -> Trained:
    """What each of a number of processes ends with, that are forked from one that has not trained yet: torch does not
    fork from others."""

    def train_freshly(folder: Path, *arguments: Any, data: Data | None = None) -> list[dict[str, Any]]:
        process = fork_server.Process(target=train, args=(folder, data or Data(), *arguments))
        process.start()
        process.join(TIME_LIMIT)
        assert process.exitcode == 0
        return [torch.load(file, weights_only=True) for file in sorted((folder / "reports").iterdir())]

    return train_freshly


def train(folder: Path, data: Data, processes: int, batch_size: int, *settings: str) -> None:
    small_training.IMAGES, small_training.VALIDATED = data.images, data.validated
    small_training.REGIONS = small_training.REGIONS[:, : data.regions]
    several = [f"trainer.devices={processes}", "trainer.strategy=ddp_fork"] if processes > 1 else []
    config = small_training.small_config(*SETTINGS, *settings, f"data.batch_size={batch_size}", *several)
    small_training.small_run(config, folder, callbacks=[Report(folder)])


@pytest.mark.parametrize("settings", slow_after(1, CHOICES.values()), ids=CHOICES)
def test_processes_learn_what_one_learns_from_their_batches_together(
    trained: Trained, tmp_path: Path, settings: list[str]
):
    """36 captions of four lengths: some batches have fewer captions than there are processes. Hard attention has one
    region, so that what it draws does not depend on who draws."""
    data = Data(regions=1 if "attention=hard" in settings else 4)
    [one] = trained(tmp_path / "one", 1, 12, *settings, data=data)
    three = trained(tmp_path / "three", 3, 4, *settings, data=data)
    assert [process["steps"] for process in three] == [one["steps"]] * 3
    for process in three:
        torch.testing.assert_close(process["state"], one["state"], atol=1e-5, rtol=1e-4)
    figures, others = (read_metrics(tmp_path / run / METRICS) for run in ("one", "three"))
    assert figures.keys() == others.keys()
    assert len({frozenset(file.name for file in (tmp_path / run).iterdir()) for run in ("one", "three")}) == 1
    for name in figures.keys() - {"train/advantage_std"}:  # a process's own
        assert others[name] == pytest.approx(figures[name], rel=1e-4, abs=1e-5), name


@pytest.mark.slow
def test_more_processes_than_captions_train_and_validate(trained: Trained, tmp_path: Path):
    """One image with three captions, four processes."""
    [one] = trained(tmp_path / "one", 1, 4, data=Data(1, 1))
    four = trained(tmp_path / "four", 4, 1, data=Data(1, 1))
    assert one["steps"] > 0
    for process in four:
        torch.testing.assert_close(process["state"], one["state"], atol=1e-5, rtol=1e-4)
    figures, others = (read_metrics(tmp_path / run / METRICS) for run in ("one", "four"))
    assert others["val/loss_per_word"] == pytest.approx(figures["val/loss_per_word"], rel=1e-5)


@pytest.mark.slow
def test_processes_that_draw_captions_of_their_own_stay_one_model(trained: Trained, tmp_path: Path):
    """Whatever each has drawn, all learn from the captions of all."""
    settings = ["reward=cider", "reward.num_samples=3", "optimizer.lr=0.01", "data.bucketing=paper"]
    first, *others = trained(tmp_path / "three", 3, 4, *settings)
    begun = trained(tmp_path / "slow", 1, 12, *settings, "optimizer.lr=1e-30")[0]["state"]
    assert any(not torch.equal(value, begun[name]) for name, value in first["state"].items())
    for process in others:
        assert [name for name, value in process["state"].items() if not torch.equal(value, first["state"][name])] == []
