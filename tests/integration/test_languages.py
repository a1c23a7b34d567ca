"""Whole commands in Chinese, and models of German subwords that were altered."""

import json
import random
from pathlib import Path

import pytest
import torch
from PIL import Image
from runs import Run, assert_done, assert_error
from small_checkpoints import save

from showattendtell import load
from showattendtell.errors import UserError
from showattendtell.loading.checkpoints import METADATA_KEY
from showattendtell.text.tokenizers import SubwordTokenizer

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
    """Flickr8k in small, with Chinese captions."""
    place, rng = folder / "photographs", random.Random(1)
    (place / "images").mkdir(parents=True)
    names = [f"{number}_a.jpg" for number in range(sum(SPLITS.values()))]
    for name in names:
        Image.new("RGB", (96, 80), tuple(rng.randrange(256) for _ in range(3))).save(place / "images" / name)
    lines = [f"{name}#{n}\t{rng.choice(CHINESE)}\n" for name in names for n in range(3)]
    (place / "zh.txt").write_text("".join(lines), encoding="utf-8")
    first = 0
    for split, size in SPLITS.items():
        (place / f"Flickr_8k.{split}Images.txt").write_text("\n".join(names[first : first + size]))
        first += size
    return place


@pytest.fixture(scope="session")
def chinese(run: Run, photographs: Path, folder: Path) -> Path:
    captions = ["dataset.captions=zh.txt", "tokenizer=words"]
    assert_done(run("train", *SMALL, *captions, "hydra.run.dir=runs/zh"))
    return folder / "runs/zh/best.ckpt"


NOTE = "note: captions in a script without spaces are one word each; set tokenizer=words"


def test_captions_without_spaces_are_noticed_before_a_training_and_with_scores(
    run: Run, photographs: Path, folder: Path
):
    settings = [*SMALL, "dataset.captions=zh.txt"]
    assert NOTE in assert_done(run("prepare", *settings[len(SHORT) :])).out
    captions = "photographs/zh.txt"
    (folder / "said.csv").write_text("image,caption\n" + "".join(f"{n}_a.jpg,{CHINESE[0]}\n" for n in range(24)))
    assert NOTE in assert_done(run("score", "hypotheses=said.csv", f"references={captions}", "metrics=[bleu]")).out


def test_a_chinese_model_is_scored_on_characters_and_finds_its_data_from_every_folder(
    run: Run, chinese: Path, folder: Path, tmp_path: Path
):
    done = assert_done(run("evaluate", f"checkpoint={chinese}", "decoding.max_length=6", folder=tmp_path))
    assert "METEOR is missing" in done.out
    scores = json.loads((folder / "runs/zh/results-test.json").read_text(encoding="utf-8"))
    assert scores["tokenizer"] == "words"
    assert "English" in scores["missing"]["meteor"]
    assert all(" " not in caption for caption in scores["captions"].values())
    assert all(said in CHINESE for captions in scores["references"].values() for said in captions)
    known = {one for sentence in CHINESE for one in sentence}
    assert set("".join(scores["captions"].values())) <= known


@pytest.mark.slow
def test_another_tokenizer_cannot_start_from_a_checkpoint(run: Run, chinese: Path):
    captions = ["dataset.captions=zh.txt", f"init_from={chinese}"]
    assert_error(run("train", *SMALL, *captions), "another tokenizer", "WordTokenizer")


ALTERED = {
    "list": (lambda card: card.update(tokenizer=[1]), "altered"),
    "no model": (lambda card: card["tokenizer"].pop("model"), "the tokenizer in"),
    "ids": (lambda card: card["tokenizer"]["model"]["vocab"].update(a=10**9), "the tokenizer in"),
    "merges": (lambda card: card["tokenizer"]["model"]["merges"].append(["☃", "☃"]), "the tokenizer in"),
    "control": (lambda card: card["tokenizer"]["model"].update(vocab={"\x1b[2J": 0}), "control characters"),
    "vocabulary": (lambda card: card["vocabulary"].__setitem__(4, "☃"), "the tokenizer in"),
}


@pytest.fixture(scope="module")
def subwords(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint, untrained, whose tokens are parts of German words."""
    tokenizer = SubwordTokenizer()
    tokenizer.train(GERMAN, 80)
    return save(tmp_path_factory.mktemp("subwords") / "best.ckpt", 1, "tokenizer=subword", tokenizer=tokenizer)


@pytest.mark.parametrize("attack", ALTERED)
def test_an_altered_tokenizer_is_reported_in_one_sentence(subwords: str, tmp_path: Path, attack: str):
    change, said = ALTERED[attack]
    content = torch.load(subwords, weights_only=True)
    change(content[METADATA_KEY])
    torch.save(content, tmp_path / "altered.ckpt")
    with pytest.raises(UserError, match=said) as fault:
        load(tmp_path / "altered.ckpt", device="cpu")
    assert len(str(fault.value).splitlines()) == 1
