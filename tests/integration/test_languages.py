"""Whole commands in Chinese, and with one model of Chinese and German: train, evaluate, caption, export."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from runs import Run, assert_done, assert_error

from showattendtell import load
from showattendtell.errors import UserError
from showattendtell.inference.checkpoints import METADATA_KEY

SHORT = ["trainer.max_epochs=1", "trainer.limit_train_batches=2", "decoder.embedding_dim=16", "decoder.hidden_dim=32"]
SMALL = [*SHORT, "encoder.size=64", "encoder.resize=64", "experiment=flickr8k", "dataset.root=photographs"]
CHINESE = [
    "一个女人躺在海水里。",
    "两只狗在草地上玩耍。",
    "一个男人在水上划船。",
    "一个小女孩牵着一匹马。",
    "一群人在看金鱼。",
]
GERMAN = ["Eine Frau liegt im Wasser.", "Zwei Hunde spielen auf der Wiese.", "Ein Mann fährt Boot.", "Ein Mädchen!"]
SPLITS = {"train": 16, "dev": 4, "test": 4}


@pytest.fixture(scope="session")
def photographs(folder: Path) -> Path:
    """Flickr8k in small: Chinese captions for all photographs, German ones for all but one of training and of test."""
    place, rng = folder / "photographs", random.Random(1)
    (place / "images").mkdir(parents=True)
    names = [f"{number}_a.jpg" for number in range(sum(SPLITS.values()))]
    for name in names:
        Image.new("RGB", (96, 80), tuple(rng.randrange(256) for _ in range(3))).save(place / "images" / name)
    for language, sentences, described in (("zh", CHINESE, names), ("de", GERMAN, names[1:-1])):
        lines = [f"{name}#{n}\t{rng.choice(sentences)}\n" for name in described for n in range(3)]
        (place / f"{language}.txt").write_text("".join(lines), encoding="utf-8")
    first = 0
    for split, size in SPLITS.items():
        (place / f"Flickr_8k.{split}Images.txt").write_text("\n".join(names[first : first + size]))
        first += size
    return place


@pytest.fixture(scope="session")
def chinese(run: Run, photographs: Path, folder: Path) -> Path:
    captions = ["dataset.captions={zh: zh.txt}", "tokenizer=words"]
    assert_done(run("train", *SMALL, *captions, "hydra.run.dir=runs/zh"))
    return folder / "runs/zh/best.ckpt"


@pytest.fixture(scope="session")
def joint(run: Run, photographs: Path, folder: Path) -> Path:
    captions = ["dataset.captions={zh: zh.txt, de: de.txt}", "dataset.skip_missing=true"]
    done = run("train", *SMALL, *captions, "tokenizer=subword", "vocabulary.size=120", "hydra.run.dir=runs/joint")
    assert "de: images with captions in other languages only: 2" in assert_done(done).out
    return folder / "runs/joint/best.ckpt"


def result(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def test_a_chinese_model_is_scored_on_characters(run: Run, chinese: Path, folder: Path):
    done = assert_done(run("evaluate", f"checkpoint={chinese}", "decoding.max_length=6"))
    assert "METEOR is missing" in done.out
    scores = result(folder, "runs/zh/results-test.json")
    assert (scores["tokenizer"], scores["language"]) == ("words", "zh")
    assert "English" in scores["missing"]["meteor"]
    assert all(" " not in caption for caption in scores["captions"].values())
    assert all(said in CHINESE for captions in scores["references"].values() for said in captions)
    known = {one for sentence in CHINESE for one in sentence}
    assert set("".join(scores["captions"].values())) <= known


def test_a_chinese_caption_has_no_spaces(run: Run, chinese: Path, folder: Path):
    formats = "formats=[jsonl,html,png]"
    photo = "photographs/images/0_a.jpg"
    done = assert_done(run("caption", f"checkpoint={chinese}", photo, "output=zh", formats, "decoding.max_length=5"))
    [row] = [json.loads(line) for line in (folder / "zh/captions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert done.out.strip() == row["caption"]
    assert " " not in row["caption"]
    assert f"captioned: {row['caption']}" in (folder / "zh/index.html").read_text(encoding="utf-8")
    output = load(chinese, device="cpu", max_length=5)(str(folder / photo))
    assert output.caption == "".join(output.words)
    assert len(output.words) <= 5


def test_each_language_of_a_model_is_scored(run: Run, joint: Path, folder: Path):
    assert_done(run("evaluate", f"checkpoint={joint}", "metrics=[bleu,meteor]", "decoding.max_length=6"))
    for language, sentences, images in (("zh", CHINESE, 4), ("de", GERMAN, 3)):
        scores = result(folder, f"runs/joint/results-test-{language}.json")
        assert (scores["language"], scores["images"], scores["decoding"]["language"]) == (language, images, language)
        assert all(said in sentences for captions in scores["references"].values() for said in captions)


def test_the_language_of_a_caption_is_chosen_on_the_command_line(run: Run, joint: Path, folder: Path):
    photo = "photographs/images/0_a.jpg"
    for language in ("zh", "de"):
        output = load(joint, device="cpu", max_length=5, language=language)(str(folder / photo))
        assert not set(output.tokens) & {4, 5}
        assert len(output.attention) == len(output.tokens) == len(output.log_probs)
    settings = ["language=de", "output=de-joint", "decoding.max_length=5", "formats=[jsonl]"]
    assert assert_done(run("caption", f"checkpoint={joint}", photo, *settings)).out.strip() == output.caption.strip()
    with pytest.raises(UserError, match="does not write 'fr'.*de, zh"):
        load(joint, device="cpu", language="fr")


@pytest.mark.slow
def test_an_export_writes_the_captions_of_the_checkpoint(run: Run, joint: Path, folder: Path):
    pytest.importorskip("onnxruntime")
    assert_done(run("export", f"checkpoint={joint}", "formats=[onnx]", "output=exported", "max_length=5"))
    photo = str(folder / "photographs/images/0_a.jpg")
    for language in ("zh", "de"):
        script = [sys.executable, str(folder / "exported/run_onnx.py"), photo, "--language", language]
        printed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
        expected = load(joint, device="cpu", max_length=5, language=language)(photo).caption
        assert printed.splitlines()[0] == f"{photo}: {expected}"


@pytest.mark.slow
def test_a_model_of_several_languages_is_calibrated(run: Run, joint: Path, folder: Path):
    assert_done(run("calibrate", f"checkpoint={joint}", "output=calibrated.ckpt"))
    settings = ["checkpoint=calibrated.ckpt", "language=de", "metrics=[bleu,calibration]", "output=calibrated.json"]
    assert_done(run("evaluate", *settings, "decoding.max_length=6"))
    assert len(result(folder, "calibrated.json")["confidence"]) == 3


@pytest.mark.slow
def test_another_tokenizer_cannot_start_from_a_checkpoint(run: Run, chinese: Path):
    captions = ["dataset.captions={zh: zh.txt}", f"init_from={chinese}"]
    assert_error(run("train", *SMALL, *captions), "another tokenizer", "WordTokenizer")
    other = ["dataset.captions={zh: zh.txt, de: de.txt}", "dataset.skip_missing=true", "tokenizer=words"]
    assert_error(run("train", *SMALL, *other, f"init_from={chinese}"), "other languages")


ALTERED = {
    "list": (lambda card: card.update(tokenizer=[1]), "altered"),
    "no model": (lambda card: card["tokenizer"].pop("model"), "the tokenizer in"),
    "ids": (lambda card: card["tokenizer"]["model"]["vocab"].update(a=10**9), "the tokenizer in"),
    "merges": (lambda card: card["tokenizer"]["model"]["merges"].append(["☃", "☃"]), "the tokenizer in"),
    "control": (lambda card: card["tokenizer"]["model"].update(vocab={"\x1b[2J": 0}), "control characters"),
    "languages": (lambda card: card.update(languages=["xx"]), "the tokenizer in"),
    "no languages": (lambda card: card["vocabulary"].__setitem__(4, "☃"), "the tokenizer in"),
}


@pytest.mark.parametrize("attack", ALTERED)
def test_an_altered_tokenizer_is_reported_in_one_sentence(run: Run, joint: Path, tmp_path: Path, attack: str):
    change, said = ALTERED[attack]
    content = torch.load(joint, weights_only=True)
    change(content[METADATA_KEY])
    torch.save(content, tmp_path / "altered.ckpt")
    with pytest.raises(UserError, match=said) as fault:
        load(tmp_path / "altered.ckpt", device="cpu")
    assert len(str(fault.value).splitlines()) == 1
