"""Model folders and checkpoints altered with intent: each is refused in one sentence, before it costs memory."""

import json
import zipfile
from collections.abc import Callable
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from slow_cases import slow_after

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.consensus import Consensus
from showattendtell.decoding.decoding import Decoding
from showattendtell.decoding.sampling import Sampling
from showattendtell.errors import UserError
from showattendtell.inference.pipeline import load
from showattendtell.loading.checkpoints import WEIGHTS, read_checkpoint
from showattendtell.loading.hub import CONFIG, bundled_models
from showattendtell.loading.models import load_model
from showattendtell.settings import leaves

TOKENIZERS = "showattendtell.text.tokenizers"
BUNDLED = bundled_models()["flickr8k_soft"]

Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], object]


@pytest.fixture
def altered(tmp_path: Path) -> Callable[[Change], Path]:
    """A copy of the bundled model whose metadata and weights a function has changed."""

    def alter(change: Change) -> Path:
        card = json.loads((BUNDLED / CONFIG).read_text(encoding="utf-8"))
        state = load_file(BUNDLED / WEIGHTS)
        change(card, state)
        (tmp_path / CONFIG).write_text(json.dumps(card), encoding="utf-8")
        save_file(state, tmp_path / WEIGHTS)
        return tmp_path

    return alter


def preprocessing(**changes: Any) -> Change:
    return lambda card, _: card["encoder"]["preprocessing"].update(changes)


def metadata(**changes: Any) -> Change:
    return lambda card, _: card.update(changes)


def weights(change: Callable[[torch.Tensor], torch.Tensor], name: str = "captioner.decoder.embedding.weight") -> Change:
    def alter(_: dict[str, Any], state: dict[str, torch.Tensor]) -> None:
        state[name] = change(state[name])

    return alter


def words(change: Callable[[list[Any]], object]) -> Change:
    return lambda card, _: change(card["vocabulary"])


def setting(part: str, **changes: Any) -> Change:
    return lambda card, _: card["config"][part].update(changes)


ATTACKS: dict[str, tuple[Change, str]] = {  # the first are one of each kind
    "resize of 200,000": (preprocessing(resize=200_000), "preprocessing.*resize"),
    "resize of a letter": (preprocessing(resize="x"), "preprocessing.*resize"),
    "mean of two numbers": (preprocessing(mean=[0.5, 0.5]), "preprocessing.*mean"),
    "std of NaN": (preprocessing(std=[float("nan")] * 3), "preprocessing.*std"),
    "unknown interpolation": (preprocessing(interpolation="magic"), "preprocessing.*interpolation"),
    "unknown field": (preprocessing(depth=3), "preprocessing.*depth"),
    "tuned by text": (lambda card, _: card["encoder"].update(tuned="yes"), "metadata.*tuned"),
    "splits of null": (metadata(splits=None), "metadata.*splits"),
    "format of text": (metadata(format="3"), "in format '3'"),
    "another format": (metadata(format=99), "in format 99, .* reads format 3"),
    "unknown setting": (setting("decoder", wdth=3), "wdth"),
    "vocabulary of numbers": (words(lambda all_words: all_words.__setitem__(9, 9)), "metadata.*vocabulary"),
    "a word twice": (words(lambda all_words: all_words.__setitem__(9, all_words[8])), "each word once"),
    "escape sequence in a word": (words(lambda all_words: all_words.__setitem__(9, "\x1b[2J")), "control characters"),
    "half a character": (words(lambda all_words: all_words.__setitem__(9, "\ud800")), "tokenizer.*altered"),
    "NaN weight": (weights(lambda values: values.index_fill(0, torch.tensor(5), float("nan"))), "not finite"),
    "complex numbers": (weights(lambda values: values.to(torch.complex64)), "not finite real numbers"),
    "whole numbers": (weights(lambda values: values.int()), "do not fit.*floating point"),
    "other shape": (weights(lambda values: values[:, :3].contiguous()), "do not fit.*shape"),
    "a billion hidden units": (setting("decoder", hidden_dim=1_000_000_000), "cannot be loaded"),
    "image of 200,000 pixels": (setting("encoder", size=200_000), "encoder.size"),
    "a cache of 5": (lambda card, _: card["config"].update(cache=5), "metadata.*cache"),
    "no preprocessing": (lambda card, _: card["encoder"].pop("preprocessing"), "metadata.*preprocessing"),
    "escape sequence in the version": (metadata(version="1\x1b]0;owned\x07"), "control characters"),
    "100,000 hidden units": (setting("decoder", hidden_dim=100_000), "do not fit"),
    "resize below the crop": (preprocessing(resize=1), "preprocessing.*does not fit"),
    "crop beyond the grid": (preprocessing(resize=640, crop=640), "preprocessing.*does not fit"),
    "another crop mode": (preprocessing(crop_mode="center"), "preprocessing.*does not fit"),
    "std of 10^-30": (preprocessing(std=[1e-30] * 3), "preprocessing.*std"),
    "mean of 10^38": (preprocessing(mean=[1e38] * 3), "preprocessing.*mean"),
    "hidden units beyond 64 bits": (setting("decoder", hidden_dim=10**30), "cannot be loaded"),
    "a tokenizer that learned nothing": (
        lambda card, _: card["config"].update(tokenizer={"_target_": f"{TOKENIZERS}.SubwordTokenizer"}),
        "the tokenizer in .* was altered",
    ),
}


@pytest.mark.parametrize(("change", "sentence"), slow_after(12, ATTACKS.values()), ids=ATTACKS.keys())
def test_an_altered_model_folder_is_refused_in_one_printable_sentence(
    altered: Callable[[Change], Path], change: Change, sentence: str
):
    with pytest.raises(UserError, match=sentence) as error:
        load_model(str(altered(change)), "cpu", BeamSearch())
    assert str(error.value).isprintable()


BUILT = ("encoder", "tokenizer", "attention", "decoder")
"""The parts of a configuration from which `load_model` builds objects."""
STORED = json.loads((BUNDLED / CONFIG).read_text(encoding="utf-8"))["config"]
TEXTS = sorted(
    (place for place, value in leaves("", STORED) if isinstance(value, str)),
    key=lambda place: not place.startswith(BUILT),
)


@pytest.mark.parametrize("place", slow_after(4, TEXTS))
def test_no_text_of_the_settings_is_resolved(
    altered: Callable[[Change], Path], place: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SECRET", "hunter2")

    def change(card: dict[str, Any], state: dict[str, torch.Tensor]) -> None:
        *path, last = place.split(".")
        reduce(getitem, path, card["config"])[last] = "${oc.env:SECRET}"
        del state["captioner.decoder.embedding.weight"]  # so that every model is refused, here or later

    with pytest.raises(UserError) as error:
        load_model(str(altered(change)), "cpu", BeamSearch())
    assert "hunter2" not in str(error.value)


def test_the_cache_of_a_model_folder_of_an_older_version_is_that_of_this_machine(altered: Callable[[Change], Path]):
    folder = altered(lambda card, _: card["config"].update(cache="${oc.env:SHOWATTENDTELL_CACHE}"))
    assert load_model(str(folder), "cpu", BeamSearch()).settings.cache is None


PHOTOGRAPH = np.full((30, 40, 3), 128, np.uint8)


@pytest.mark.parametrize("decoding", slow_after(1, [BeamSearch(beam_size=3), Sampling(), Consensus(beam_size=2)]))
@pytest.mark.parametrize("value", slow_after(2, [1e38, 0.0, -1e38, 1e20, 65504.0, 1e-30]))
@pytest.mark.parametrize("part", slow_after(1, ["", "embedding", "attention", "bias"]))
def test_extreme_weights_give_captions_or_are_refused(
    altered: Callable[[Change], Path], part: str, value: float, decoding: Decoding
):
    def change(_: dict[str, Any], state: dict[str, torch.Tensor]) -> None:
        for name, stored in state.items():
            if part in name and stored.is_floating_point():
                state[name] = torch.full(stored.shape, value)

    try:
        output = load(altered(change), decoding=decoding)(PHOTOGRAPH)
    except UserError:
        assert abs(value) > 1e4
    else:
        assert np.isfinite(output.log_probs).all()
        assert np.isfinite(output.maps).all()


def checkpoint(file: Path, state: Any) -> Path:
    card = json.loads((BUNDLED / CONFIG).read_text(encoding="utf-8"))
    torch.save({"showattendtell": card, "state_dict": state}, file)
    return file


@pytest.mark.parametrize(
    "state",
    [
        [torch.zeros(3)],
        {"captioner.word": [1.0, 2.0]},
        {3: torch.zeros(3)},
        {"captioner.word": torch.zeros(1).expand(10**12)},
        {"captioner.word": torch.zeros(1, device="meta")},
        {"captioner.word": torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (10**9,))},
    ],
    ids=["list", "numbers", "integer keys", "one number for 10^12", "no values", "sparse"],
)
def test_weights_that_are_no_tensors_in_full_are_refused(tmp_path: Path, state: Any):
    with pytest.raises(UserError, match=r"best.ckpt is damaged or no checkpoint"):
        read_checkpoint(checkpoint(tmp_path / "best.ckpt", state))


def test_weights_of_bits_that_are_no_numbers_are_refused(tmp_path: Path):
    bits = torch.zeros(8, dtype=torch.uint8).view(torch.bits8)
    with pytest.raises(UserError, match="captioner.word has values that are not finite real numbers"):
        read_checkpoint(checkpoint(tmp_path / "best.ckpt", {"captioner.word": bits}))


def test_a_compressed_checkpoint_is_refused_before_it_grows(tmp_path: Path):
    plain = checkpoint(tmp_path / "plain.ckpt", {"captioner.word": torch.zeros(1_000_000)})
    with zipfile.ZipFile(plain) as parts, zipfile.ZipFile(tmp_path / "best.ckpt", "w", zipfile.ZIP_DEFLATED) as packed:
        for part in parts.infolist():
            packed.writestr(part.filename, parts.read(part))
    assert (tmp_path / "best.ckpt").stat().st_size < plain.stat().st_size / 10
    with pytest.raises(UserError, match="compressed"):
        read_checkpoint(tmp_path / "best.ckpt")
