from collections import Counter
from pathlib import Path

import pytest
import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import Callback
from slow_cases import slow_after
from small_training import small_config, small_run
from torch.utils.data import DataLoader

from showattendtell.config.compose import as_settings, compose
from showattendtell.errors import UserError
from showattendtell.training.build import build_trainer

VALIDATIONS = {
    "val/bleu4": [10.0, 30.0, 20.0, 19.0, 18.0],
    "val/cider": [40.0, 41.0, 44.0, 43.0, 42.0],
    "val/bleu4_with_penalty": [9.0, 12.0, 15.0, 11.0, 10.0],
    "val/loss_per_word": [3.0, 2.8, 2.6, 2.5, 2.7],
    "val/distinct_captions": [1.0, 2.0, 3.0, 4.0, 5.0],
}
"""By epoch: BLEU-4 is best after the second, with the penalty after the third, -log p after the fourth."""


class Scripted(lightning.LightningModule):
    """Learns nothing, and is validated as the script says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        self.log("train/loss_per_word", 3.0, on_epoch=True, on_step=False)
        return self.layer(batch).sum()

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        self.log_dict({name: figures[self.current_epoch] for name, figures in VALIDATIONS.items()})
        self.log("val/attention_movement", 0.5)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("settings", "best_epoch", "best_score", "message"),
    [
        ([], 2, 30.0, "validation 2.600, perplexity 13.5, BLEU-4 20.0 (best 30.0), CIDEr 44.0"),
        (["brevity_penalty=true"], 3, 15.0, "13.5, BLEU-4 with brevity penalty 15.0 (best 15.0), CIDEr 44.0"),
        (["monitor=cider"], 3, 44.0, "BLEU-4 20.0, CIDEr 44.0 (best 44.0), distinct captions 3;"),
        (["monitor=val/loss_per_word"], 4, 2.5, "validation 2.600 (best 2.600), perplexity 13.5, BLEU-4 20.0"),
    ],
)
def test_the_best_checkpoint_and_early_stopping_go_by_what_the_run_selects_by(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    settings: list[str],
    best_epoch: int,
    best_score: float,
    message: str,
):
    few = ["callbacks.early_stopping.patience=1", "trainer.accelerator=cpu", "trainer.max_epochs=5"]
    trainer, keeper = build_trainer(as_settings(compose("train", [*settings, *few])), tmp_path)
    numbers = DataLoader(torch.ones(2, 1))
    trainer.fit(Scripted(), numbers, numbers)
    assert keeper.best_model_score == pytest.approx(best_score)
    assert torch.load(tmp_path / "best.ckpt", weights_only=True)["epoch"] == best_epoch - 1
    lines = capsys.readouterr().out.splitlines()
    assert message in lines[2]
    assert len(lines) == best_epoch + 2
    assert lines[-1].startswith("early stopping: Monitored metric val/")


class Metrics(Callback):
    """By epoch, the number of validations, and the names of the metrics that other callbacks read at its end."""

    def __init__(self) -> None:
        self.validations: Counter[int] = Counter()
        self.names: dict[int, set[str]] = {}

    def on_validation_end(self, trainer: lightning.Trainer, *_: object) -> None:
        self.validations[trainer.current_epoch] += 1

    def on_train_epoch_end(self, trainer: lightning.Trainer, *_: object) -> None:
        self.names[trainer.current_epoch] = set(trainer.callback_metrics)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("settings", "validated", "epochs"),
    slow_after(
        2,
        [
            (["check_val_every_n_epoch=2", "max_epochs=3"], [1], 3),
            (["val_check_interval=7", "check_val_every_n_epoch=null", "max_epochs=3"], [1, 2], 3),
            (["max_steps=7"], [0], 2),
            (["val_check_interval=2", "max_steps=6", "accumulate_grad_batches=2", "max_epochs=3"], [0, 1], 2),
        ],
    ),
    ids=str,
)
def test_an_epoch_without_validation_has_no_metrics_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: list[str], validated: list[int], epochs: int
):
    metrics = Metrics()
    config = small_config(*(f"++trainer.{setting}" for setting in settings))
    small_run(config, tmp_path, callbacks=[metrics])
    assert sorted(metrics.validations) == validated
    assert len(metrics.names) == epochs
    for epoch, names in metrics.names.items():
        assert ("val/bleu4" in names) == ("val/loss_per_word" in names) == (epoch in validated)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert len(lines) == epochs
    assert [epoch for epoch, line in enumerate(lines) if "BLEU-4" in line] == validated
    assert (tmp_path / "best.ckpt").is_file() == bool(validated)
    assert (tmp_path / "last.ckpt").is_file()


MINE = "+callbacks.mine._target_=pytorch_lightning.callbacks"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["++trainer.overfit_batches=2"], "trainer.overfit_batches.*debug=overfit"),
        (["++trainer.log_every_n_steps=0"], "trainer.log_every_n_steps=0 is not an interval"),
        (["++trainer.val_check_interval=0"], "trainer.val_check_interval=0 is not an interval"),
        (["++trainer.check_val_every_n_epoch=0"], "trainer.check_val_every_n_epoch=0 is not an interval"),
        (["++trainer.precision=bf16-true"], "trainer.precision.*set 32-true, bf16-mixed or 16-mixed"),
        (["++trainer.precision=64"], "trainer.precision.*set 32-true, bf16-mixed or 16-mixed"),
        (["++trainer.barebones=true"], "trainer.barebones=true: a run writes checkpoints and logs; leave it out"),
        (
            ["++trainer.enable_checkpointing=false"],
            "trainer.enable_checkpointing=false: a run writes checkpoints and logs; leave it out",
        ),
        (["++trainer.profiler=xla"], "^trainer: ModuleNotFoundError: .*torch_xla"),
        (["++trainer.max_time=9999999999:00:00:00"], "^trainer: [A-Z]"),
        (["++trainer.val_check_interval=2000"], "trainer: `val_check_interval` .2000. must be less than"),
        (["trainer.max_epochs=-1", "++trainer.max_time=00:00:01:00"], r"needs a last step; set trainer\.max_epochs or"),
        ([f"{MINE}.BackboneFinetuning"], "start from a trained model with init_from=... encoder.trainable=true"),
        ([f"{MINE}.ModelCheckpoint", "+callbacks.mine.monitor=loss2"], "could not find the monitored key"),
        (
            [f"{MINE}.EarlyStopping", "+callbacks.mine.monitor=loss2"],
            "^callbacks: EarlyStopping: .* `loss2` which is not",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_trained_with_is_reported_in_a_sentence(settings: list[str], message: str, tmp_path: Path):
    """Also where Lightning would show its traceback."""
    with pytest.raises(UserError, match=message):
        small_run(small_config(*settings), tmp_path)


@pytest.mark.parametrize(("limit", "is_partial"), [("1", True), ("0.5", True), ("1.0", False), ("0", False)])
def test_a_best_checkpoint_of_part_of_the_images_is_announced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: str, is_partial: bool
):
    build_trainer(small_config(f"++trainer.limit_val_batches={limit}"), tmp_path)
    assert ("so best.ckpt, are of part of the images" in capsys.readouterr().out) == is_partial


@pytest.mark.filterwarnings("ignore")
def test_a_second_model_checkpoint_makes_its_folder(tmp_path: Path):
    mine = [f"{MINE}.ModelCheckpoint", '++callbacks.mine.filename="deep/er/{epoch}"', "trainer.max_epochs=1"]
    small_run(small_config(*mine), tmp_path)
    assert torch.load(tmp_path / "checkpoints/deep/er/epoch=0.ckpt", weights_only=True)["epoch"] == 0
    assert {"best.ckpt", "last.ckpt"} <= {path.name for path in tmp_path.iterdir()}
