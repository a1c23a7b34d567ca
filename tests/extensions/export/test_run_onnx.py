"""The script that is handed on sees what the package sees, and searches as it does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy import ndarray
from PIL import Image
from small_models import DECODERS, VOCABULARY, small_captioner
from torch import nn

from showattendtell.data.images import MAX_ASPECT_RATIO, CropMode, Preprocessing, open_image
from showattendtell.data.tokenizers import SubwordTokenizer
from showattendtell.data.vocabulary import EOS, Vocabulary
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Ensemble
from showattendtell.decoding.image_captioner import Calibration, ImageCaptioner, calibrate_captions, unit_mean
from showattendtell.extensions.export.checking import by_pytorch, score_writers
from showattendtell.extensions.export.graphs import InitGraph, StepGraph, graphs_of
from showattendtell.extensions.export.loading import ExportModel, metadata_of
from showattendtell.extensions.export.run_onnx import assess as script_assess
from showattendtell.extensions.export.run_onnx import beam_search, preprocess, start
from showattendtell.extensions.trust.confidence import principal_directions
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.encoder import Encoder
from showattendtell.models.kernels.parallel import plain_torch
from showattendtell.types import Caption, Dataset, Example

SEARCH: dict[str, Any] = {
    "special": {"pad": 0, "start": 1, "eos": 2, "unk": 3},
    "suppressed_tokens": [0, 1],
    "languages": {},
    "max_length": 6,
    "preprocessing": {"pixels": "uint8"},
}
REGIONS = 3 * torch.randn(8, 4, 6, generator=torch.Generator().manual_seed(0))


class Grids(nn.Module):
    """In the place of an encoder, where the regions are there already."""

    def prepare_regions(self, regions: torch.Tensor) -> torch.Tensor:
        return regions


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

    def encode(pixels: ndarray) -> list[ndarray]:
        return [REGIONS[pixels].numpy()]

    return {
        "encode": encode,
        "begin": array_function(InitGraph(captioner, SEARCH["max_length"])),
        "step": array_function(step),
    }


@pytest.mark.parametrize("beam", [1, 2, 3, 7])
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
                caption = beam_search(graphs, SEARCH, start(graphs, SEARCH, np.array([number])), beam)
                assert caption.tokens == other.tokens
                assert caption.log_prob == pytest.approx(other.log_prob, rel=1e-4)
                np.testing.assert_allclose(caption.attention, other.attention, rtol=1e-3, atol=1e-5)
                np.testing.assert_allclose(caption.gates, other.gates, rtol=1e-3, atol=1e-5)
                lengths.add(len(caption.tokens))
    assert {1, 6} <= lengths


@torch.no_grad()
def test_the_script_is_as_sure_as_the_package():
    captioner, close = small_captioner(seed=3), {"rel": 1e-4}
    model = ImageCaptioner(Grids(), captioner, VOCABULARY, BeamSearch(beam_size=3, max_length=6))  # type: ignore[arg-type]
    mean, directions = principal_directions(unit_mean(REGIONS))
    calibration = Calibration(torch.tensor([0.4, -0.1, 0.2]), mean, directions, torch.tensor(torch.inf))
    unlikeness = calibration(REGIONS)
    calibration.threshold = unlikeness.median()
    with plain_torch():
        captions = model.generate(REGIONS)
        expected = calibrate_captions(captioner, calibration, REGIONS, captions)
        graphs = in_plain_torch(captioner)
        graphs["unlikeness"] = lambda regions: [calibration(torch.from_numpy(regions)).numpy()]
        card = {**SEARCH, "calibration": {"scaling": [0.4, -0.1, 0.2], "threshold": calibration.threshold.item()}}
        for number, [other] in enumerate(expected):
            started = start(graphs, card, np.array([number]))
            caption = beam_search(graphs, card, started, 3)
            confidence, unsure = script_assess(graphs, card, started, caption)
            assert confidence == pytest.approx(other.confidence, **close)
            assert unsure == other.unsure
            plain, never = script_assess(graphs, SEARCH, started, beam_search(graphs, SEARCH, started, 3))
            assert plain == pytest.approx(captions[number][0].confidence, **close)
            assert not never
    assert 0 < sum(one.unsure for [one] in expected) < len(expected)


def german_model() -> ImageCaptioner:
    """A model of German and English whose tokens are parts of words. Its captions are as long as they may be, and
    mostly of whole words."""
    torch.manual_seed(0)
    tokenizer = SubwordTokenizer()
    tokenizer.train(["Ein Hund läuft über die grüne Wiese."] * 2, size=60)
    assert tokenizer.tokens is not None
    vocabulary = Vocabulary.build([], 60, tokenizer, ["de", "en"])
    encoder = Encoder("test_efficientnet", "last", "random", size=64, resize=64)
    decoder = DECODERS["lstm"](vocabulary_size=len(vocabulary), region_dim=encoder.region_dim)
    captioner = Captioner(SoftAttention(encoder.region_dim, decoder.hidden_dim), decoder)
    for parameter in captioner.parameters():
        nn.init.normal_(parameter, std=0.8)
    with torch.no_grad():
        for token, word in enumerate(vocabulary.words):
            captioner.decoder.word_scores.bias[token] += 5 * (word.startswith("▁") and len(word) > 2)
        captioner.decoder.word_scores.bias[EOS] = -1e9
    return ImageCaptioner(encoder, captioner, vocabulary, BeamSearch(max_length=8)).eval()


def test_captions_of_a_split_are_scored_as_text_in_the_language_of_the_model(tmp_path: Path):
    """The German references are the model's own captions, with a capital letter and a full stop more."""
    module, examples = german_model(), list[Example]()
    (tmp_path / "best.ckpt").touch()
    with plain_torch():
        graphs = {name: graph.module for name, graph in graphs_of(module, "uint8", 8).items()}
        card = metadata_of(module, tmp_path / "best.ckpt", "uint8", 8)
        model = ExportModel("german", module, {}, {}, card)  # type: ignore[arg-type]
        writer, arrays = by_pytorch(module, 3, 8), {name: array_function(graph) for name, graph in graphs.items()}
        for kind in ("small", "odd", "plain"):
            path = str(photograph(tmp_path, kind))
            caption = module.vocabulary.text(writer(model.preprocess(path)).tokens)
            german, english = Caption((), (), f"{caption.title()}.", "de"), Caption(("dog",), (), "A dog.", "en")
            examples.append(Example(kind, path, (english, german)))
        untranslated = Example("other", examples[0].path, (english,))
        dataset = Dataset("german", {"test": (untranslated, *examples)})
        writers = {
            "PyTorch": writer,
            "graphs": lambda pixels: beam_search(arrays, card, start(arrays, card, pixels), 3),
        }
        scores = score_writers(writers, model, dataset, "test")
    for name in writers:
        assert scores[name]["bleu4"] == pytest.approx(100, abs=1e-3), name
        assert scores[name]["cider"] > 100, name


def photograph(folder: Path, kind: str) -> Path:
    """A drawing with edges and slopes, as a file of some kind."""
    sizes = {"small": (40, 30), "odd": (333, 217), "strip": (20, 900), "wide": (900, 41)}
    width, height = sizes.get(kind, (320, 240))
    across, down = np.meshgrid(np.arange(width), np.arange(height))
    pixels = np.stack([across % 256, (3 * down) % 256, 255 * ((across // 7 + down // 5) % 2)], axis=2)
    image, path = Image.fromarray(pixels.astype(np.uint8)), folder / f"{kind}.png"
    if kind == "transparent":
        image.putalpha(Image.fromarray((across % 256).astype(np.uint8)))
    if kind == "grey":
        image = image.convert("L")
    exif = Image.Exif()
    if kind == "turned":
        exif[0x0112] = 6
    if kind == "16 bits":
        image = Image.fromarray((200 * across).astype(np.uint16))
    image.save(path, exif=exif)
    return path


@pytest.mark.parametrize("kind", ["plain", "small", "odd", "strip", "wide", "transparent", "grey", "turned", "16 bits"])
@pytest.mark.parametrize(("resize", "crop"), [(73, 64), (64, 64), (50, 64)])
@pytest.mark.parametrize("crop_mode", ["center", "squash"])
def test_the_script_sees_the_pixels_of_the_package(
    kind: str, resize: int, crop: int, crop_mode: CropMode, tmp_path: Path
):
    """Pillow's and torch's resampling round some pixels in other directions, twice: across, then down. The long side of
    a strip is squashed in two steps."""
    preprocessing = Preprocessing(resize, crop, (0.5,) * 3, (0.5,) * 3, crop_mode=crop_mode)
    path = photograph(tmp_path, kind)
    card = {"preprocessing": {**preprocessing._asdict(), "longest": MAX_ASPECT_RATIO, "pixels": "uint8"}}
    expected = preprocessing(open_image(path)).unsqueeze(0).numpy().astype(int)
    with Image.open(path) as opened:
        seen = preprocess(opened, card)
    assert seen.shape == expected.shape
    difference = np.abs(seen.astype(int) - expected)
    assert difference.max() <= (4 if (kind, crop_mode) == ("strip", "squash") else 2)
    assert difference.mean() < (0.2 if crop_mode == "squash" else 0.1)
