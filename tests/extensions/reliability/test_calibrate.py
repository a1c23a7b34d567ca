"""`calibrate` as a user types it, and what the other commands make of its checkpoint."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from runs import SIZES, Run, assert_done, assert_error, held_out

from showattendtell.loading.checkpoints import CONFIDENCE
from showattendtell.readers.shapes import read_shapes


@pytest.fixture(scope="session")
def uncalibrated(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    content = torch.load(checkpoint, weights_only=True)
    del content[CONFIDENCE]
    file = tmp_path_factory.mktemp("plain") / "best.ckpt"
    torch.save(content, file)
    return file


@pytest.fixture(scope="session")
def calibrated(run: Run, uncalibrated: Path, folder: Path) -> Path:
    copy = folder / "runs/calibrated/best.ckpt"
    copy.parent.mkdir(parents=True)
    shutil.copy(uncalibrated, copy)
    done = assert_done(run("calibrate", f"checkpoint={copy}"))
    assert f"written to {copy}" in done.out
    return copy


def test_weights_stay_the_same_and_the_calibration_is_added(calibrated: Path, uncalibrated: Path, checkpoint: Path):
    before, after, trained = (torch.load(each, weights_only=True) for each in (uncalibrated, calibrated, checkpoint))
    assert after.keys() - before.keys() == {CONFIDENCE}
    for name, values in trained[CONFIDENCE].items():  # by `train`, when it ended
        torch.testing.assert_close(values, after[CONFIDENCE][name], msg=name)
    for name, weights in before["state_dict"].items():
        assert torch.equal(weights, after["state_dict"][name]), name


def test_captions_are_the_same_and_those_of_unlike_images_are_marked(
    run: Run, calibrated: Path, uncalibrated: Path, tmp_path: Path
):
    content = torch.load(calibrated, weights_only=True)
    doubtful = tmp_path / "doubtful.ckpt"
    content[CONFIDENCE]["threshold"] = torch.tensor(-1.0)
    torch.save(content, doubtful)
    scene = next((calibrated.parents[2] / "cache").rglob("shapes-*/**/*.png"))
    said, rows = [], []
    for number, name in enumerate((uncalibrated, calibrated, doubtful)):
        arguments = [f"checkpoint={name}", f"images={scene}", f"output={tmp_path}/out{number}"]
        said.append(assert_done(run("caption", *arguments)))
        rows.append(json.loads((tmp_path / f"out{number}/captions.jsonl").read_text()))
    plain, calibrated_line, doubted = (done.out.splitlines()[0] for done in said)
    assert plain == calibrated_line
    assert doubted == f"{plain}\tnot sure"
    assert [row["not_sure"] for row in rows[::2]] == [False, True]
    assert [row["is_calibrated"] for row in rows] == [False, True, True]
    assert [f"{uncalibrated} is not calibrated" in done.err for done in said] == [True, False, False]
    pages = [(tmp_path / f"out{number}/index.html").read_text() for number in range(3)]
    assert [" · not calibrated" in page for page in pages] == [True, False, False]
    assert ["<strong>not sure</strong>" in page for page in pages] == [False, False, True]
    assert rows[1]["confidence"] != rows[0]["confidence"]
    assert rows[1]["log_prob"] == rows[0]["log_prob"]


@pytest.mark.slow
def test_evaluate_scores_reliability_and_baselines(run: Run, calibrated: Path, folder: Path):
    metrics = "metrics=[bleu,calibration,faithfulness,chair,baselines]"
    done = assert_done(run("evaluate", f"checkpoint={calibrated}", metrics, "output=reliability.json"))
    result = json.loads((folder / "reliability.json").read_text())
    assert 0 <= result["not_sure"] <= 100
    assert 0 <= result["ece"] <= 100
    assert "expected calibration error" in done.out
    faithfulness = result["faithfulness"]
    assert faithfulness["maps"].keys() == {"attention", "random", "center"}
    assert faithfulness["words"] == sum(len(caption.split()) for caption in result["captions"].values())
    assert -1 <= result["attention_rank_correlation"] <= 1
    assert "faithfulness of the maps" in done.out

    examples, training = held_out(folder), read_shapes(str(folder / "cache/shapes"), **SIZES).split("train")
    assert (result["chair_objects"], result["chair_images"]) == ("nouns", len(examples))
    invented = sum(map(len, result["hallucinations"].values()))
    assert result["chair_i"] == pytest.approx(100 * invented / max(result["chair_mentions"], 1))
    assert result["baselines"].keys() == {"constant", "nearest"}
    said = {" ".join(caption.words) for example in training for caption in example.captions}
    assert result["baselines"]["constant"]["caption"] in said
    assert all("bleu4" in scores for scores in result["baselines"].values())
    assert "(2) best constant caption" in done.out


@pytest.mark.slow
def test_what_cannot_be_scored_or_calibrated_is_reported(
    run: Run, checkpoint: Path, uncalibrated: Path, calibrated: Path, tmp_path: Path
):
    scored = run("evaluate", f"checkpoint={uncalibrated}", "metrics=[calibration]")
    assert_error(scored, "is not calibrated; run 'showattendtell calibrate checkpoint=")
    assert_error(run("calibrate", "checkpoint=flickr8k_soft"), "set output to the folder of a calibrated copy")
    for name in ("calibration", "faithfulness"):
        ensemble = run("evaluate", f"checkpoint=[{calibrated},{checkpoint}]", f"metrics=[{name}]")
        assert_error(ensemble, f"{name} is scored for one model")
    assert_error(run("calibrate", f"checkpoint={checkpoint}", f"output={tmp_path}"), "exists")


@pytest.mark.slow
def test_attention_on_shapes_is_more_faithful_than_chance(run: Run, folder: Path):
    """A model that has learned to name objects: attention < random maps, by a bootstrap."""
    settings = ["dataset.train=2000", "dataset.val=50", "dataset.test=300", "trainer.max_epochs=8"]
    assert_done(run("train", *settings, "hydra.run.dir=runs/shapes"))
    line = ["evaluate", "checkpoint=runs/shapes/best.ckpt", "metrics=[bleu,faithfulness]", "output=shapes.json"]
    assert_done(run(*line))
    found = json.loads((folder / "shapes.json").read_text())["faithfulness"]
    deletion = {name: one["deletion"] for name, one in found["maps"].items()}
    assert deletion["attention"] < deletion["random"]
    assert found["against_random"]["deletion"]["higher"] < 0.01
