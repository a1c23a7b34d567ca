"""The script that is handed on sees what the package sees, and searches as it does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawings import TURNED, draw
from numpy import ndarray
from PIL import Image
from slow_cases import slow_after
from small_models import VOCABULARY, small_captioner

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Ensemble
from showattendtell.extensions.export.graphs import InitGraph, StepGraph
from showattendtell.extensions.export.run_onnx import beam_search, preprocess, sentence_of, start
from showattendtell.images.reading import MAX_ASPECT_RATIO, CropMode, Preprocessing, open_image
from showattendtell.models.kernels.parallel import plain_torch
from showattendtell.text.tokenizers import CharacterTokenizer, SubwordTokenizer, Tokenizer, WordTokenizer

SEARCH: dict[str, Any] = {
    "special": {"pad": 0, "start": 1, "eos": 2, "unk": 3},
    "suppressed_tokens": [0, 1],
    "max_length": 6,
}
REGIONS = 3 * torch.randn(8, 4, 6, generator=torch.Generator().manual_seed(0))


def array_function(module: Any) -> Any:
    """Return a function from arrays to a list of arrays that calls a module."""

    @torch.no_grad()
    def call(*given: ndarray) -> list[ndarray]:
        output = module(*map(torch.from_numpy, given))
        return [part.numpy() for part in (output if isinstance(output, tuple) else (output,))]

    return call


def in_plain_torch(captioner: Any) -> dict[str, Any]:
    """The graphs that the script asks for; an image's pixels are its number among `REGIONS`."""
    step = StepGraph(captioner, captioner.init_state(REGIONS)[0])
    return {
        "encode": lambda pixels: [REGIONS[pixels].numpy()],
        "begin": array_function(InitGraph(captioner, SEARCH["max_length"])),
        "step": array_function(step),
    }


@pytest.mark.parametrize("beam", slow_after(2, [1, 3, 2, 7]))
@torch.no_grad()
def test_the_search_of_the_script_finds_what_the_packages_does(beam: int):
    lengths = set()
    with plain_torch():
        for seed in range(8):
            captioner = small_captioner(seed=seed)
            decoding = BeamSearch(beam_size=beam, max_length=SEARCH["max_length"])
            expected = decoding.generate(Ensemble([captioner]), [REGIONS], VOCABULARY)
            graphs = in_plain_torch(captioner)
            for number, [other] in enumerate(expected):
                caption = beam_search(graphs, SEARCH, start(graphs, np.array([number])), beam)
                assert caption.tokens == other.tokens
                assert caption.log_prob == pytest.approx(other.log_prob, rel=1e-4)
                np.testing.assert_allclose(caption.attention, other.attention, rtol=1e-3, atol=1e-5)
                np.testing.assert_allclose(caption.gates, other.gates, rtol=1e-3, atol=1e-5)
                lengths.add(len(caption.tokens))
    assert {1, 6} <= lengths


DRAWINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "small": {"size": (40, 30)},
    "odd": {"size": (333, 217)},
    "strip": {"size": (20, 900)},
    "wide": {"size": (900, 41)},
    "transparent": {"mode": "RGBA"},
    "grey": {"mode": "L"},
    "turned": {"exif": TURNED},
    "16 bits": {"mode": "I;16"},
}


@pytest.mark.parametrize("kind", DRAWINGS)
@pytest.mark.parametrize(("resize", "crop"), [(73, 64), (64, 64), (50, 64)])
@pytest.mark.parametrize("crop_mode", ["center", "squash"])
def test_the_script_sees_the_pixels_of_the_package(
    kind: str, resize: int, crop: int, crop_mode: CropMode, tmp_path: Path
):
    """Pillow's and torch's resampling round some pixels in other directions, twice: across, then down."""
    preprocessing = Preprocessing(resize, crop, (0.5,) * 3, (0.5,) * 3, crop_mode=crop_mode)
    path = draw(tmp_path, "drawing.png", **DRAWINGS[kind])
    card = {"preprocessing": {**preprocessing._asdict(), "longest": MAX_ASPECT_RATIO}}
    expected = preprocessing(open_image(path)).unsqueeze(0).numpy().astype(int)
    with Image.open(path) as opened:
        seen = preprocess(opened, card)
    assert seen.shape == expected.shape
    difference = np.abs(seen.astype(int) - expected)
    assert difference.max() <= 2
    assert difference.mean() < 0.1


@pytest.mark.parametrize("sentence", ["Zwei Hunde spielen auf der Wiese.", "两只狗在草地上玩耍 run。"])
@pytest.mark.parametrize("tokenizer", [WordTokenizer(), CharacterTokenizer(), SubwordTokenizer()])
def test_the_script_joins_tokens_to_the_sentence_of_the_package(tokenizer: Tokenizer, sentence: str):
    tokenizer.train([sentence], 40)
    words = tokenizer.tokenize(sentence)
    card = {"vocabulary": words, "special": {"eos": -1}, "detokenizer": tokenizer.joining()}
    assert len(words) > 2
    assert sentence_of([*range(len(words)), -1], card) == tokenizer.detokenize(words)
