"""A table of few recipes, and what its runs leave in their folders, of what is looked at here."""

import hashlib
import json
from typing import Any

from omegaconf import DictConfig, OmegaConf

from showattendtell.config.compose import compose
from showattendtell.config.reproducing import PaperTable, Recipe, quote_settings
from showattendtell.reproduction.runs import Run

TABLE = PaperTable(
    name="small",
    folder="small",
    recipes={
        "soft": Recipe(["dataset=shapes", "trainer.max_epochs=4"], minutes=8),
        "hard": Recipe(["dataset=shapes", "attention=hard"]),
        "soft_cider": Recipe(["dataset=shapes", "reward=cider"], begins_with="soft"),
        "soft_average": Recipe(mean_of=["soft", "soft_cider"]),
    },
    base="soft",
    pages=["soft", "hard"],
    seeds=[1, 2],
    decodings=[1, 3],
    ensembles={"soft_ensemble": "soft"},
)


def configured(*settings: str) -> DictConfig:
    config, _ = compose("reproduce", quote_settings(["table=shapes", *settings]))
    return config


def begin(run: Run) -> None:
    """What a training that was interrupted leaves."""
    (run.folder / "config").mkdir(parents=True)
    OmegaConf.save(run.config, run.folder / "config/config.yaml")
    (run.folder / "last.ckpt").touch()


def hash_of(run: Run) -> str:
    return hashlib.sha256((run.folder / "best.ckpt").read_bytes()).hexdigest()


def written(beam: int) -> dict[str, Any]:
    return {"tokenizer": "plain", "decoding": {"method": "BeamSearch", "beam_size": beam}}


def finish(run: Run, **figures: float) -> None:
    begin(run)
    write_results(run, **figures)


def write_results(run: Run, **figures: float) -> None:
    """What scoring leaves, of weights that are there from now on."""
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "best.ckpt").write_text(run.title)
    for beam in run.scoring.decodings:
        run.scoring.result_file(beam).write_text(
            json.dumps({"bleu4": 20.0, **written(beam), "checkpoint_sha256": hash_of(run), **figures})
        )
