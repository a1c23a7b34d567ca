"""Every attention and baseline through the commands."""

from pathlib import Path
from typing import Any

import pytest
from extension_cases import cases
from runs import TINY, Run, assert_done
from small_models import VOCABULARY
from small_training import Grids, examples_of

from showattendtell.config.compose import as_settings, compose
from showattendtell.errors import UserError
from showattendtell.runtime.files import METRICS
from showattendtell.training.build import build_module
from showattendtell.visualization.figures import read_metrics

SOFT_LOSS = "loss._target_=showattendtell.losses.caption.SoftLoss"
HARD_LOSS = "loss._target_=showattendtell.losses.reinforce.HardLoss"

SHORT = [*TINY, "trainer.limit_train_batches=2"]
WITHOUT_WIDTH = [setting for setting in SHORT if not setting.startswith("attention.")]


MAPS = {f"val/attention_{name}" for name in ("entropy", "movement", "coverage", "correctness")}
MAPS |= {"val/pointing_game", "val/beta_content", "val/beta_determiner", "train/gradient_norm"}


def test_a_run_logs_what_its_maps_do(trained: Any, folder: Path):
    assert read_metrics(folder / "runs/first" / METRICS).keys() >= MAPS


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


@pytest.mark.parametrize(("settings", "words"), FAULTS)
def test_choices_that_do_not_go_together_are_reported(settings: list[str], words: list[str]):
    """As the command builds the module."""

    def build() -> None:
        config = as_settings(compose("train", [*WITHOUT_WIDTH, *settings]))
        build_module(config, Grids(), VOCABULARY, {}, examples_of(range(2)))  # type: ignore[arg-type]

    with pytest.raises(UserError) as raised:
        build()
    for word in words:
        assert word in str(raised.value)
