"""Training by several processes against training by one that has their batches."""

from pathlib import Path

import pytest
import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback

import small
from showattendtell.loggers import METRICS
from showattendtell.report.curves import read_metrics

pytestmark = pytest.mark.filterwarnings("ignore")

SETTINGS = ["decoder.dropout=0", "trainer.limit_train_batches=1.0", "early_stopping.patience=99", "checkpoint_every=60"]
CHOICES = {
    "paper": ["data.bucketing=paper"],
    "round_robin, images together": ["data.bucketing=round_robin", "data.images_together=true"],
    "padded": ["data.bucketing=padded", "loss.attention_weight=0.3"],
    "by tokens": ["data.tokens_per_batch=12"],
    "accumulated": ["trainer.accumulate_grad_batches=2"],
    "penalty as released": ["loss.penalty_mean=locations"],
    "hard": ["attention=hard", "attention.samples=2"],
    "hard, rloo": ["attention=hard", "attention.samples=2", "attention.estimator=rloo"],
    "hard, exact": ["attention=hard", "attention.estimator=exact"],
    "hard as released": ["attention=hard", "attention.estimator=reinforce_arctic", "loss.entropy_weight=0.01"],
}


class Report(Callback):
    """Writes down what each process has at the end."""

    def __init__(self, folder: Path):
        self.folder = folder

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        folder = self.folder / "reports"
        folder.mkdir(exist_ok=True)
        torch.save({"steps": trainer.global_step, "state": module.state_dict()}, folder / f"{trainer.global_rank}.pt")


def trained(folder: Path, processes: int, batch_size: int, *settings: str) -> list[dict]:
    """What each of the processes ends with."""
    several = [f"trainer.devices={processes}", "trainer.strategy=ddp_fork"] if processes > 1 else []
    size = "data.tokens_per_batch" if any("tokens_per_batch" in setting for setting in settings) else "data.batch_size"
    config = small.small_config(*SETTINGS, *settings, f"{size}={batch_size}", *several)
    small.small_run(config, folder, callbacks=[Report(folder)])
    return [torch.load(file, weights_only=True) for file in sorted((folder / "reports").iterdir())]


@pytest.fixture
def one_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to draw from: what hard attention learns does not depend on who draws."""
    monkeypatch.setattr(small, "REGIONS", small.REGIONS[:, :1])


@pytest.mark.usefixtures("one_region")
@pytest.mark.parametrize("choice", CHOICES)
def test_processes_learn_what_one_learns_from_their_batches_together(tmp_path: Path, choice: str):
    """36 captions of four lengths: some batches have fewer captions than there are processes."""
    [one] = trained(tmp_path / "one", 1, 12, *CHOICES[choice])
    three = trained(tmp_path / "three", 3, 4, *CHOICES[choice])
    assert [process["steps"] for process in three] == [one["steps"]] * 3
    for process in three:
        torch.testing.assert_close(process["state"], one["state"], atol=1e-5, rtol=1e-4)
    figures, others = (read_metrics(tmp_path / run / METRICS) for run in ("one", "three"))
    assert figures.keys() == others.keys()
    for name in figures.keys() - {"train/advantage_std"}:  # a process's own
        assert others[name] == pytest.approx(figures[name], rel=1e-4, abs=1e-5), name


def test_more_processes_than_captions_train_and_validate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One image with three captions, four processes."""
    monkeypatch.setattr(small, "IMAGES", 1)
    monkeypatch.setattr(small, "VALIDATED", 1)
    [one] = trained(tmp_path / "one", 1, 4)
    four = trained(tmp_path / "four", 4, 1)
    assert one["steps"] > 0
    for process in four:
        torch.testing.assert_close(process["state"], one["state"], atol=1e-5, rtol=1e-4)
    figures, others = (read_metrics(tmp_path / run / METRICS) for run in ("one", "four"))
    assert others["val/nll_per_word"] == pytest.approx(figures["val/nll_per_word"], rel=1e-5)


def test_only_the_first_process_writes(tmp_path: Path):
    """The others would leave files of their own, or overwrite its."""
    trained(tmp_path / "one", 1, 6)
    trained(tmp_path / "two", 2, 3)
    one, two = ({file.name for file in (tmp_path / run).iterdir()} for run in ("one", "two"))
    assert one == two
