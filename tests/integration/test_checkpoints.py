"""What a checkpoint holds, and what one cannot run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import Evil, held_out

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.errors import UserError
from showattendtell.loading.models import load_model
from showattendtell.types import fingerprint


def test_a_checkpoint_is_plain_data_that_says_what_it_is(checkpoint: Path, folder: Path):
    content = torch.load(checkpoint, weights_only=True)
    card = content["showattendtell"]
    assert json.loads(json.dumps(card)) == card
    assert card["config"]["decoder"]["hidden_dim"] == 32
    assert card["vocabulary"][:4] == ["<pad>", "<start>", "<eos>", "<unk>"]
    assert card["encoder"]["preprocessing"]["crop"] == 128
    assert card["splits"]["test"] == fingerprint(held_out(folder))
    assert any(name.startswith("encoder.") for name in content["state_dict"])


@pytest.mark.parametrize(
    ("part", "target"),
    [
        ("decoder", "os.system"),
        ("tokenizer", "showattendtell.demo.subprocess.run"),
        ("dataset", "pytorch_lightning.LightningModule.load_from_checkpoint"),
        ("encoder", "showattendtell.training.module.CaptioningModule.load_from_checkpoint"),
    ],
)
def test_a_checkpoint_cannot_name_a_program_to_run(
    altered: Callable[..., Path], tmp_path: Path, part: str, target: str
):
    mark = tmp_path / "it-ran"

    def plant(content: dict[str, Any]) -> None:
        content["showattendtell"]["config"][part] = {"_target_": target, "_args_": [["touch", str(mark)]]}

    with pytest.raises(UserError, match=f"altered.ckpt.*{target}"):
        load_model(str(altered(plant)), "cpu", BeamSearch())
    assert not mark.exists()


def test_a_pickle_in_a_checkpoint_is_not_executed(altered: Callable[..., Path], tmp_path: Path):
    mark = tmp_path / "it-ran"
    with pytest.raises(UserError, match="altered.ckpt is damaged"):
        load_model(str(altered(lambda content: content.update(more=Evil(mark)))), "cpu", BeamSearch())
    assert not mark.exists()
