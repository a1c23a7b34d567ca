from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from slow_cases import slow_after
from three_images import Recorder, caption_data, examples_of, trainer_of

from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.errors import UserError


class Keep(ModelCheckpoint):
    """Keeps a checkpoint of every training step, of every validation, and of every epoch's end."""

    def __init__(self, folder: Path):
        super().__init__(folder, save_top_k=-1)

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        self._save(trainer, f"step-{trainer.fit_loop.epoch_loop.total_batch_idx:02}")

    def on_validation_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        self._save(trainer, f"validation-{trainer.current_epoch}")

    def on_train_epoch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        self._save(trainer, f"epoch-{trainer.current_epoch}")

    def _save(self, trainer: lightning.Trainer, name: str) -> None:
        trainer.save_checkpoint(Path(self.dirpath) / f"{name}.ckpt")


EPOCHS = 3
MANY = {"bucketing": "padded", "group_by_image": True, "tokens_per_batch": 6}


def assert_continues(whole: Recorder, rest: Recorder, steps: int) -> None:
    """`rest` has had the batches of `whole` behind the first `steps`, in the same epochs."""
    left = [(epoch, batch) for epoch, batches in whole.trained.items() for batch in batches][steps:]
    assert [(epoch, batch) for epoch, batches in rest.trained.items() for batch in batches] == left


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("settings", slow_after(1, [{}, MANY]), ids=["paper", "padded"])
def test_training_continues_from_every_checkpoint_as_if_it_had_not_been_interrupted(
    tmp_path: Path, settings: dict[str, Any]
):
    whole = Recorder()
    trainer_of(tmp_path, EPOCHS, Keep(tmp_path)).fit(whole, caption_data(examples_of(), **settings))
    length = len(whole.trained[0])
    assert length > 2
    done = {f"step-{step:02}": step + 1 for step in range(EPOCHS * length)}
    done |= {f"{hook}-{epoch}": (epoch + 1) * length for hook in ("validation", "epoch") for epoch in range(EPOCHS)}
    assert {file.stem for file in tmp_path.glob("*.ckpt")} == set(done)
    for name, steps in done.items():
        rest = Recorder()
        trainer_of(tmp_path, EPOCHS).fit(
            rest, caption_data(examples_of(), **settings), ckpt_path=tmp_path / f"{name}.ckpt"
        )
        assert_continues(whole, rest, steps)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_interrupted_training_continues_with_the_batch_that_it_was_in(tmp_path: Path, num_workers: int):
    """The batches behind it had been read ahead."""

    def data() -> CaptionDataModule:
        return caption_data(examples_of(), batch_size=1, num_workers=num_workers)

    whole, first, rest = Recorder(), Recorder(interrupted=8), Recorder()
    trainer_of(tmp_path, EPOCHS).fit(whole, data())
    assert len(whole.trained[0]) == 6
    with pytest.raises(SystemExit):
        trainer_of(tmp_path, EPOCHS, OnExceptionCheckpoint(tmp_path, "interrupted")).fit(first, data())
    checkpoint = tmp_path / "interrupted.ckpt"
    assert torch.load(checkpoint, weights_only=True)["CaptionDataModule"] == {"epoch": 1, "batches": 2, "of": 6}
    trainer_of(tmp_path, EPOCHS).fit(rest, data(), ckpt_path=checkpoint)
    assert_continues(whole, rest, 8)


def test_a_run_that_cuts_its_batches_otherwise_cannot_finish_the_epoch():
    data = caption_data(examples_of(), batch_size=1)
    with pytest.raises(
        UserError, match="has had 2 of its epoch's 4 batches, and this run's epochs have 6; resume with"
    ):
        data.load_state_dict({"epoch": 1, "batches": 2, "of": 4})
    data.load_state_dict({"epoch": 1, "batches": 4, "of": 4})
    data.load_state_dict({"epoch": 1, "batches": 2, "of": 6})
