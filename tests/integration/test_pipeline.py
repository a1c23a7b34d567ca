"""What a program gets from `load()`: what the commands write, whatever the batch and the form of a photograph."""

import doctest
import itertools
import json
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from repository import ROOT
from runs import Run, assert_done, held_out
from slow_cases import slow_after

import showattendtell
from showattendtell import CaptioningPipeline, ImageCaptions, load
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.sampling import Sampling
from showattendtell.errors import UserError
from showattendtell.inference import pipeline
from showattendtell.loading.hub import BUNDLED, bundled_models, note_about
from showattendtell.loading.models import load_model
from showattendtell.visualization.figures import map_onto_photograph


@pytest.fixture(scope="session")
def captioner(checkpoint: Path) -> CaptioningPipeline:
    return load(checkpoint, device="cpu", max_length=6)


@pytest.fixture(scope="session")
def scenes(folder: Path, checkpoint: Path) -> list[Path]:
    return [Path(example.path) for example in held_out(folder)[:5]]


def same(one: ImageCaptions, other: ImageCaptions) -> bool:
    return one.words == other.words and all(
        np.allclose(getattr(one, part), getattr(other, part), atol=1e-5)
        for part in ("log_probs", "attention", "gates", "seen")
    )


def test_log_probabilities_and_maps_are_those_of_the_caption_when_it_is_given(
    captioner: CaptioningPipeline, scenes: list[Path], checkpoint: Path
):
    output = captioner(scenes[0])
    module = load_model(str(checkpoint), "cpu", BeamSearch()).module
    tokens = torch.tensor([module.vocabulary.encode(output.words)[: len(output.log_probs)]])
    pixels = module.encoder.preprocessing(output.photograph).unsqueeze(0)
    with torch.no_grad():
        trace = module(pixels, torch.tensor([0]), tokens)
        expected = trace.logits.log_softmax(dim=1).gather(1, tokens.T).squeeze(1)
    np.testing.assert_allclose(output.log_probs, expected, atol=1e-4)
    np.testing.assert_allclose(output.attention.reshape(len(tokens[0]), -1), trace.weights[0], atol=1e-5)
    np.testing.assert_allclose(output.gates, trace.gates[0], atol=1e-5)
    assert output.best.log_prob == pytest.approx(float(expected.sum()), abs=1e-3)


def test_maps_lie_on_the_pixels_of_the_photograph(captioner: CaptioningPipeline, tmp_path: Path, scenes: list[Path]):
    wide = Image.new("RGB", (300, 100))
    wide.paste(Image.open(scenes[0]).resize((100, 100)), (100, 0))
    output = captioner(wide)
    assert output.maps.shape == (len(output.words), 100, 300)
    assert output.maps.max(axis=(1, 2)) == pytest.approx(1)
    assert (output.maps[:, :, :99] == 0).all()
    assert (output.maps[:, :, 201:] == 0).all()
    assert replace(output, captions=(output.best._replace(words=()),)).maps.shape == (0, 100, 300)
    first = map_onto_photograph(output.attention[0], output.seen.scaled(300, 100), 300, 100)
    np.testing.assert_array_equal(output.maps[0], first)


def test_lists_folders_and_streams_say_of_each_what_is_said_of_it_alone(
    captioner: CaptioningPipeline, scenes: list[Path], tmp_path: Path
):
    for number, scene in enumerate(scenes):
        shutil.copy(scene, tmp_path / f"{number}.png")
    alone = [captioner(scene) for scene in scenes]
    forms: list[Any] = [scenes[0], str(scenes[1]), scenes[2].read_bytes(), Image.open(scenes[3]), None]
    forms[4] = np.asarray(Image.open(scenes[4]).convert("RGB"))
    streamed = captioner.stream(iter(scenes), batch_size=2)
    for together in (captioner(scenes), captioner(forms), captioner(tmp_path), list(streamed)):
        assert len(together) == 5
        assert all(map(same, alone, together))


def test_a_stream_holds_no_more_than_a_batch(captioner: CaptioningPipeline, scenes: list[Path]):
    endless = itertools.cycle(scenes)
    next(captioner.stream(endless, batch_size=3))
    assert next(endless) == scenes[3]


def test_one_that_cannot_be_read_stops_a_list_and_may_be_passed_over_in_a_stream(
    captioner: CaptioningPipeline, scenes: list[Path], tmp_path: Path
):
    (tmp_path / "broken.jpg").write_text("no image")
    photographs = [scenes[0], tmp_path / "broken.jpg", scenes[1]]
    with pytest.raises(UserError, match="broken.jpg cannot be read .it is empty or of no known image format"):
        captioner(photographs)
    faults: list[str] = []
    assert [output.name for output in captioner.stream(photographs, errors=faults)] == [str(scenes[0]), str(scenes[1])]
    assert len(faults) == 1


def test_what_is_drawn_is_decided_by_the_seed_and_leaves_the_programs_own_draws_alone(
    checkpoint: Path, scenes: list[Path]
):
    drawing = {"device": "cpu", "decoding": Sampling(num_captions=3, max_length=5, temperature=3.0)}
    captioner = load(checkpoint, **drawing)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = [output.caption for output in captioner(scenes[0]).captions]
    assert torch.equal(before, torch.random.get_rng_state())
    assert first == [output.caption for output in captioner(scenes[0]).captions]
    assert first != [output.caption for output in load(checkpoint, seed=2, **drawing)(scenes[0]).captions]
    assert len(first) == 3


@pytest.mark.parametrize("batch_size", slow_after(1, [2, 1, 8]))
def test_sampled_captions_do_not_depend_on_the_other_photographs(checkpoint: Path, scenes: list[Path], batch_size: int):
    captioner = load(checkpoint, device="cpu", decoding=Sampling(max_length=5, temperature=3.0))
    alone = [captioner(scene).caption for scene in scenes]
    assert [output.caption for output in captioner.stream(scenes, batch_size=batch_size)] == alone


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"beam_sise": 5}, "no argument beam_sise; did you mean 'beam_size'"),
        ({"beam_size": 2, "num_captions": 3}, "needs a beam as large"),
        ({"decoding": BeamSearch(), "beam_size": 5}, "beam_size belong to the decoding"),
        ({"min_length": 99}, "have no room for min_length=99"),
        ({"forbidden": ["zzzz"]}, "does not know the word 'zzzz'"),
        ({"num_beams": 5}, "load has no argument num_beams; did you mean 'beam_size'"),
        ({"batch_size": 2}, "load has no argument batch_size; available: allow_unk, beam_size"),
        ({"device": "cuda:99"}, "this machine has no device=cuda:99"),
        ({"device": "hpu"}, "this machine has no device=hpu"),
        ({"attention_mode": "argmax"}, "attention.inference_mode"),
    ],
)
def test_settings_that_do_not_exist_are_reported(checkpoint: Path, settings: dict[str, Any], sentence: str):
    with pytest.raises(UserError, match=sentence):
        load(checkpoint, **settings)


def test_a_saved_model_says_the_same_and_every_command_takes_it(
    captioner: CaptioningPipeline, scenes: list[Path], run: Run, folder: Path, evaluated: Path
):
    about = {"name": "A model of a test", "license": "mit", "results": evaluated, "limitations": ["It knows shapes."]}
    for _ in range(2):  # the second time, files are replaced
        captioner.save_pretrained(folder / "saved", model_card_kwargs=about)
    files = {file.name for file in (folder / "saved").iterdir()}
    assert files == {"config.json", "model.safetensors", "README.md"}
    assert str(folder) not in (folder / "saved/config.json").read_text(encoding="utf-8")
    saved = CaptioningPipeline.from_pretrained(folder / "saved", device="cpu", max_length=6)
    for scene in scenes:
        one, other = captioner(scene), saved(scene)
        assert one.words == other.words
        np.testing.assert_allclose(one.attention, other.attention, atol=5e-3)
    card = (folder / "saved/README.md").read_text(encoding="utf-8")
    figures = json.loads(evaluated.read_text(encoding="utf-8"))
    assert f"| BLEU-1 | {figures['bleu1']:.1f} |" in card
    assert all(text in card for text in ("# A model of a test", "license: mit", "- It knows shapes.", "beam 3"))
    assert_done(run("evaluate", "checkpoint=saved", "metrics=[bleu]", "output=saved.json"))
    assert json.loads((folder / "saved.json").read_text())["captions"] == figures["captions"]


def test_several_models_are_not_saved_as_one(checkpoint: Path, tmp_path: Path):
    with pytest.raises(UserError, match="is an ensemble of 2 models; save each"):
        load([checkpoint, checkpoint], device="cpu").save_pretrained(tmp_path / "both")


def test_encoder_weights_that_are_no_longer_those_of_training_are_reported(
    captioner: CaptioningPipeline, tmp_path: Path
):
    captioner.save_pretrained(tmp_path / "saved")
    config = json.loads((tmp_path / "saved/config.json").read_text(encoding="utf-8"))
    weights = config["encoder"]["weights_sha256"]
    (tmp_path / "saved/config.json").write_text(json.dumps(config).replace(weights, "0" * 64))
    with pytest.raises(UserError, match="are not those that .*saved was trained on"):
        load(tmp_path / "saved", device="cpu")


def test_importing_the_package_imports_no_torch():
    code = "import sys, showattendtell; print('torch' in sys.modules, sorted(showattendtell.__all__)[-1])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False load\n"
    with pytest.raises(AttributeError, match="no attribute laod"):
        showattendtell.laod  # noqa: B018


def test_the_examples_of_the_docstrings_say_what_they_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    with warnings.catch_warnings(action="ignore"):
        tried = doctest.testmod(pipeline, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert tried.attempted > 5
    assert not tried.failed


def test_the_model_that_comes_with_the_package_needs_no_network(tmp_path: Path, run: Run):
    blocked = {"HF_ENDPOINT": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"}
    photograph = shutil.copy(ROOT / "docs/figures/skater.jpg", tmp_path)
    done = run("caption", photograph, "--output", str(tmp_path / "message"), **blocked)
    [caption] = assert_done(done).out.splitlines()
    assert caption.startswith("a ")
    assert {file.name for file in (tmp_path / "message").iterdir()} == {"captions.jsonl", "captions.csv", "index.html"}
    assert done.err.count(note_about([BUNDLED])) == 1
    assert (tmp_path / "message/index.html").read_text().count(note_about([BUNDLED]) + ".") == 1
    assert sum(file.stat().st_size for file in bundled_models()[BUNDLED].iterdir()) < 12_000_000
