"""docs/example_package, installed and used by the commands."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from repository import ROOT
from runs import TINY, Run, assert_done, assert_error

from showattendtell.loading.checkpoints import METADATA_KEY

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the package is installed."""
    source, target = tmp_path_factory.mktemp("source") / "mylab", tmp_path_factory.mktemp("site")
    if not (find_spec("setuptools") and find_spec("uv")):
        pytest.skip("needs setuptools and uv")
    shutil.copytree(ROOT / "docs/example_package", source)
    install = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, "--no-deps"]
    place = ["--no-build-isolation", "--target", str(target), str(source)]
    subprocess.run([*install, *place], check=True, capture_output=True)
    return target


@pytest.fixture(scope="session")
def run_with_it(run: Run, installed: Path) -> Run:
    """Run a command where the package is installed."""
    return partial(run, first=f"sys.path.append({str(installed)!r})")


PARTS = [
    "attention._target_=mylab.attention.SharpAttention",
    "attention.sharpness=3",
    "decoder._target_=mylab.decoder.GRUDecoder",
    "encoder._target_=mylab.encoder.UnitEncoder",
    "tokenizer._target_=mylab.tokenizer.HyphenTokenizer",
    "data._target_=mylab.data.FewCaptions",
    "data.captions_per_image=2",
    "cache=mylab",  # regions of another encoder
    "callbacks.score_log._target_=mylab.callback.ScoreLog",
    "callbacks.score_log.file=scores.txt",
]


@pytest.fixture(scope="session")
def trained_own(run_with_it: Run, folder: Path) -> Path:
    """A checkpoint of the package's parts."""
    short = ["trainer.limit_train_batches=2", "trainer.limit_val_batches=1"]
    assert_done(run_with_it("train", *TINY, *short, *PARTS, "hydra.run.dir=runs/mylab"))
    return folder / "runs/mylab/best.ckpt"


def test_its_parts_are_trained_and_evaluated_without_trust(run_with_it: Run, trained_own: Path, folder: Path):
    config = torch.load(trained_own, weights_only=True)[METADATA_KEY]["config"]
    assert config["attention"]["_target_"] == "mylab.attention.SharpAttention"
    assert config["decoder"]["_target_"] == "mylab.decoder.GRUDecoder"
    assert re.fullmatch(r"(\d+ \d+\.\d\d\n)+", (folder / "scores.txt").read_text())
    output = folder / "own.json"
    settings = [f"checkpoint={trained_own}", f"output={output}", "metrics=[bleu,mylab.metric.Brevity]"]
    done = assert_done(run_with_it("evaluate", *settings))
    assert "brevity" in done.out
    result = json.loads(output.read_text())
    assert result["brevity"] > 0
    assert all(scores["brevity"] > 0 for scores in result["per_image"].values())
    scored = [f"hypotheses={output}", "metrics=[mylab.metric.Brevity]", f"output={folder / 'scored.json'}"]
    assert_done(run_with_it("score", *scored))
    [again] = json.loads((folder / "scored.json").read_text())["scores"].values()
    assert again["brevity"] == pytest.approx(result["brevity"])


def test_its_command_runs(installed: Path):
    command = [sys.executable, "-m", "mylab.lengths", "flickr8k_soft", str(ROOT / "docs/figures/skater.jpg")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), str(ROOT / "src")])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    number, caption = done.stdout.split(" ", 1)
    assert int(number) == len(caption.split())


def test_metadata_in_the_working_directory_is_not_trusted(
    run_forked: Run, trained_own: Path, installed: Path, tmp_path: Path
):
    """A folder from others, in which a command is run, may look like an installed package; it is not installed here."""
    shutil.copytree(installed, tmp_path / "here")
    first = f"sys.path.insert(0, {str(tmp_path / 'here')!r})"
    done = run_forked("evaluate", f"checkpoint={trained_own}", folder=tmp_path / "here", first=first)
    assert_error(done, "asks to run mylab.", "give SHOWATTENDTELL_TRUST=mylab")
