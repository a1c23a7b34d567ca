"""Scores do not depend on the number of processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from quiet_trainer import quiet_trainer
from runs import Run, assert_done

from showattendtell.config.compose import as_settings
from showattendtell.config.instantiate import build, find_source
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.sampling import Sampling
from showattendtell.inference import predictions as evaluation
from showattendtell.inference.predictions import generate_captions
from showattendtell.loading.models import load_model
from showattendtell.training.build import build_module


@pytest.mark.slow
def test_evaluation_by_several_processes_gives_the_file_of_one(run: Run, checkpoint: Path, folder: Path):
    settings = [f"checkpoint={checkpoint}", "split=val", "metrics=[bleu,rouge_l]"]
    assert_done(run("evaluate", *settings, "output=one.json"))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    command = [*launch, "-m", "showattendtell.evaluate", *settings, "output=three.json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("written to three.json") == 1
    assert json.loads((folder / "three.json").read_text()) == json.loads((folder / "one.json").read_text())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("images_at_a_time", "processes"), [(6, 4), (6, 3), (3, 3), (10, 3)])
def test_validation_by_several_processes_gives_the_figures_of_one(
    checkpoint: Path, images_at_a_time: int, processes: int
):
    """10 images make 4 batches, 2 or 1, also for more processes than batches."""
    restored = load_model(str(checkpoint), "cpu", BeamSearch())
    config, model = as_settings(restored.record), restored.module
    module = build_module(config, model.encoder, model.vocabulary, {})
    module.load_state_dict(model.state_dict())
    source, dataset = find_source(restored.settings, build(config.dataset), module.encoder, "test")
    settings = {"dataset": dataset, "vocabulary": module.vocabulary, "source": source, "seed": 1}
    data = build(config.data, **settings, generation_batch_size=images_at_a_time)

    def validate(devices: int, strategy: str) -> dict[str, float]:
        trainer = quiet_trainer(devices=devices, strategy=strategy, use_distributed_sampler=False)
        figures = trainer.validate(module, data, verbose=False)
        return {name: figure for part in figures for name, figure in part.items()}

    alone = validate(1, "auto")
    assert {"val/bleu4", "val/loss_per_word"} <= alone.keys()
    assert validate(processes, "ddp_fork") == pytest.approx(alone)


def test_what_is_drawn_for_an_image_does_not_depend_on_the_process_that_draws(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
):
    """10 images make 4 batches; each of two processes writes every second one, the last ones first."""
    monkeypatch.setattr(evaluation, "IMAGE_BATCH_SIZE", 3)
    restored = load_model(str(checkpoint), "cpu", Sampling(temperature=3.0))
    assert restored.settings.dataset
    dataset = build(restored.settings.dataset)
    source, dataset = find_source(restored.settings, dataset, restored.module.encoder, "val")
    examples = dataset.split("val")
    reading = [restored], [source(examples)], examples
    alone = generate_captions(*reading, seed=1)
    written = {}
    monkeypatch.setattr(evaluation, "gather", lambda own: written.update(own) or {**alone, **own})
    for first in (3, 2):
        monkeypatch.setattr(evaluation, "shard_indices", lambda number, first=first: range(first, -1, -2))
        generate_captions(*reading, seed=1)
    assert written == alone
    assert generate_captions(*reading, seed=7) != alone
