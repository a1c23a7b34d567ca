"""Every attention and baseline through the commands."""

import csv
import json
import secrets
from pathlib import Path
from typing import Any

import pytest
from extension_cases import cases
from runs import TINY, Run, assert_done
from small_models import VOCABULARY
from small_training import Grids, examples_of

from showattendtell.config.compose import as_settings, compose
from showattendtell.errors import UserError
from showattendtell.training.build import build_module

SOFT_LOSS = "loss._target_=showattendtell.losses.caption.SoftLoss"
HARD_LOSS = "loss._target_=showattendtell.losses.reinforce.HardLoss"

SHORT = [*TINY, "trainer.limit_train_batches=2"]
WITHOUT_WIDTH = [setting for setting in SHORT if not setting.startswith("attention.")]


@pytest.fixture(scope="session")
def hard(run: Run, prepared: Any, folder: Path) -> Path:
    """A checkpoint of hard attention."""
    settings = ["attention=hard", "attention.estimator=rloo", "attention.num_samples=2"]
    assert_done(run("train", *SHORT, *settings, "hydra.run.dir=runs/hard"))
    return folder / "runs/hard/best.ckpt"


def figures(folder: Path) -> set[str]:
    """The metrics that have a value in a run's log."""
    with (folder / "metrics.csv").open() as file:
        return {name for row in csv.DictReader(file) for name, value in row.items() if value}


MAPS = {f"val/attention_{name}" for name in ("entropy", "movement", "coverage", "correctness")}
MAPS |= {"val/pointing_game", "val/beta_content", "val/beta_determiner", "train/gradient_norm"}


def test_a_run_logs_what_its_maps_do(trained: Any, folder: Path):
    assert figures(folder / "runs/first") >= MAPS


def captions(run: Run, hard: Path, *settings: str) -> dict[str, str]:
    result = hard.with_name(f"result-{secrets.token_hex(4)}.json")
    assert_done(run("evaluate", f"checkpoint={hard}", f"output={result}", "metrics=[bleu]", *settings))
    return json.loads(result.read_text())["captions"]


@pytest.mark.slow
def test_hard_attention_draws_by_its_seed_and_needs_none_at_the_likeliest_region(run: Run, hard: Path):
    assert figures(hard.parent) >= MAPS | {"train/baseline", "train/advantage", "train/advantage_std"}
    assert captions(run, hard) == captions(run, hard, "seed=1") != captions(run, hard, "seed=2")
    likeliest = "attention.inference_mode=argmax"
    assert captions(run, hard, likeliest) == captions(run, hard, likeliest, "seed=2")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ["attention=hard", "trainer.precision=bf16-mixed", "data.cache_on_device=true"],
        ["attention=hard", "loss.supervision_weight=0.5"],
        ["attention=multihead"],
        ["attention=adaptive", "attention/score=cosine"],
        ["attention=hard", "variant=arctic", "attention.score.width=8"],
        ["decoder=nic"],
        ["decoder=log_bilinear", "decoder.window=3"],
        *cases("TRAININGS").values(),
    ],
    ids=" ".join,
)
def test_a_choice_trains_and_captions(run: Run, prepared: Any, folder: Path, tmp_path: Path, settings: list[str]):
    assert_done(run("train", *WITHOUT_WIDTH, "trainer.limit_val_batches=1", *settings, f"hydra.run.dir={tmp_path}"))
    photograph = next((folder / "cache/shapes").rglob("test-00000.png"))
    best = tmp_path / "best.ckpt"
    assert_done(
        run("caption", f"checkpoint={best}", f"images={photograph}", f"output={tmp_path}/captions", "formats=[png]")
    )
    assert (tmp_path / "captions/test-00000.png").stat().st_size > 10_000


FAULTS = [
    (["attention=hard", SOFT_LOSS], ["HardAttention cannot be trained with SoftLoss", "give HardLoss"]),
    (["attention=dot", HARD_LOSS], ["SoftAttention cannot be trained with HardLoss", "SoftLoss"]),
    (["decoder=nic", "attention=dot"], ["NICDecoder sees the image once"]),
    (["decoder=log_bilinear", "attention=adaptive"], ["LogBilinearDecoder has none; use it with decoder=lstm"]),
    (["attention=none", "attention/score=dot"], ["attention/score"]),
]


def last_setting(part: list[str]) -> str:
    return part[-1] if "=" in part[-1] else ""


@pytest.mark.parametrize(("settings", "words"), FAULTS, ids=last_setting)
def test_choices_that_do_not_go_together_are_reported(settings: list[str], words: list[str]):
    """As the command builds the module."""

    def build() -> None:
        config = as_settings(compose("train", [*WITHOUT_WIDTH, *settings]))
        build_module(config, Grids(), VOCABULARY, {}, examples_of(range(2)))  # type: ignore[arg-type]

    with pytest.raises(UserError) as raised:
        build()
    for word in words:
        assert word in str(raised.value)
