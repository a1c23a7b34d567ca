"""Scores do not depend on the number of processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import pytorch_lightning as lightning
from runs import Run, assert_done

from showattendtell.checkpoint import restore
from showattendtell.config.build import build, find_source
from showattendtell.decode.search import BeamSearch
from showattendtell.training import build_module


def test_evaluation_by_several_processes_gives_the_file_of_one(run: Run, checkpoint: Path, folder: Path):
    settings = [f"checkpoint={checkpoint}", "split=val", "metrics=[bleu,rouge_l]"]
    assert_done(run("evaluate", *settings, "output=one.json"))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    command = [*launch, "-m", "showattendtell.evaluate", *settings, "output=three.json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("written to three.json") == 1
    assert json.loads((folder / "three.json").read_text()) == json.loads((folder / "one.json").read_text())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("images_at_a_time", [3, 6])
def test_validation_by_several_processes_gives_the_figures_of_one(checkpoint: Path, images_at_a_time: int):
    """10 images make 4 batches, or 2 for 3 processes."""
    restored = restore(str(checkpoint), "cpu", BeamSearch())
    config, model = restored.config, restored.module
    module = build_module(config, model.encoder, model.vocabulary, {})
    module.load_state_dict(model.state_dict())
    source, dataset = find_source(config, build(config.dataset), module.encoder, "test")
    settings = {"dataset": dataset, "vocabulary": module.vocabulary, "source": source, "seed": 1}
    data = build(config.data, **settings, generation_batch_size=images_at_a_time)

    def validate(devices: int, strategy: str) -> dict[str, float]:
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=devices,
            strategy=strategy,
            use_distributed_sampler=False,
            logger=False,
            enable_progress_bar=False,
        )
        figures = trainer.validate(module, data, verbose=False)
        return {name: figure for part in figures for name, figure in part.items()}

    alone = validate(1, "auto")
    assert {"val/bleu4", "val/nll_per_word"} <= alone.keys()
    assert validate(3, "ddp_fork") == pytest.approx(alone)
