"""Attention that is trained on ground-truth boxes, against the same training without them."""

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as lightning
from quiet_trainer import quiet_trainer

from showattendtell import CaptioningModule, ShapesDataModule
from showattendtell.inference.predictions import measure_attention
from showattendtell.losses.caption import SoftLoss
from showattendtell.losses.reinforce import HardLoss

pytestmark = pytest.mark.filterwarnings("ignore")


def trained(folder: Path, attention: str, weight: float) -> dict[str, Any]:
    """Train on scenes of shapes for 30 steps; return the scores of the maps on the validation scenes."""
    lightning.seed_everything(0, verbose=False)
    data = ShapesDataModule(80, 20, 1, cache=folder, seed=0)
    loss = (HardLoss if attention == "hard" else SoftLoss)(supervision_weight=weight)
    module = CaptioningModule(attention, hidden_dim=32, embedding_dim=32, dropout=0.0, lr=5e-3, loss=loss)
    quiet_trainer(max_steps=30, limit_val_batches=0).fit(module, data)
    examples = data.val_images.examples
    return measure_attention(module.eval(), data.val_images.images, examples, silent=True)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["soft", "hard", "multihead", "adaptive"])
def test_supervision_brings_attention_to_the_boxes(tmp_path: Path, attention: str):
    supervised, unsupervised = (trained(tmp_path, attention, weight) for weight in (5.0, 0.0))
    assert supervised["attention_correctness"] > unsupervised["attention_correctness"] + 10
    assert supervised["pointing_game"] > unsupervised["pointing_game"] + 5
