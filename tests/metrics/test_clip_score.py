"""CLIPScore, of a small CLIP model with random weights."""

import string
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from showattendtell.errors import UserError
from showattendtell.metrics.clip_score import load_clip, measure_clip_score

transformers = pytest.importorskip("transformers", reason="needs the extra `clip`")

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
WORDS = [*string.ascii_lowercase, *(f"{letter}</w>" for letter in string.ascii_lowercase)]
CAPTIONS = ["a dog", "a cat runs", "", "the red ball", "many words that go far beyond what the model reads at once"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP model of 32 x 32 pixels and 16 tokens as transformers keeps it, and photographs."""
    folder = tmp_path_factory.mktemp("clip")
    vocabulary = {word: number for number, word in enumerate([*WORDS, "<|startoftext|>", "<|endoftext|>"])}
    start, end = len(WORDS), len(WORDS) + 1
    tokens = {"bos_token_id": start, "eos_token_id": end, "pad_token_id": end}
    text = {"vocab_size": len(vocabulary), "max_position_embeddings": 16, **tokens, **SIZES}
    vision = {"image_size": 32, "patch_size": 8, **SIZES}
    torch.manual_seed(1)
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    transformers.CLIPModel(config).save_pretrained(folder / "model")
    size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    transformers.CLIPProcessor(
        transformers.CLIPImageProcessor(**size), transformers.CLIPTokenizer(vocab=vocabulary, merges=[])
    ).save_pretrained(folder / "model")
    generator = np.random.default_rng(1)
    for number in range(len(CAPTIONS)):
        pixels = generator.integers(0, 255, (40 + number, 60, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def paths(folder: Path) -> list[str]:
    return [str(folder / f"{number}.png") for number in range(len(CAPTIONS))]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_score_is_the_cosine_of_the_models_features(folder: Path, paths: list[str], sign: int):
    """Worked out for one caption and photograph at a time; 0 for a caption opposite to its image."""
    model = transformers.CLIPModel.from_pretrained(folder / "model").eval()
    processor = transformers.CLIPProcessor.from_pretrained(folder / "model")
    with torch.no_grad():
        model.visual_projection.weight *= sign
    for part in (model, processor):
        part.save_pretrained(folder / "turned")
    cosines = []
    for caption, path in zip(CAPTIONS, paths, strict=True):
        pixels = processor(images=Image.open(path).convert("RGB"), return_tensors="pt")["pixel_values"]
        tokens = processor(text=caption, truncation=True, max_length=16, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            seen = model.visual_projection(model.vision_model(pixels).pooler_output)[0].numpy()
            said = model.text_projection(model.text_model(tokens).pooler_output)[0].numpy()
        cosines.append(seen @ said / np.sqrt((seen @ seen) * (said @ said)))
    measured = measure_clip_score(CAPTIONS, paths, load_clip(str(folder / "turned")))
    assert measured == pytest.approx(100 * np.maximum(cosines, 0), abs=1e-3)
    assert len({round(float(cosine), 3) for cosine in cosines}) > 2


def test_nothing_but_a_whole_clip_model_is_taken(folder: Path, paths: list[str]):
    transformers.BertModel(transformers.BertConfig(vocab_size=9, **SIZES)).save_pretrained(folder / "bert")
    lacking = folder / "lacking"
    model = transformers.CLIPModel.from_pretrained(folder / "model")
    weights = {name: value for name, value in model.state_dict().items() if name != "text_projection.weight"}
    model.save_pretrained(lacking, state_dict=weights)
    (folder / "void").mkdir()
    for name, reason in {
        "bert": "it is of the kind bert",
        "lacking": "it lacks text_projection.weight",
        "void": "Unrecognized model",
        "0.png": "",
    }.items():
        with pytest.raises(UserError, match=f"the CLIP model .*{name} cannot be loaded .*{reason}.*give the folder"):
            measure_clip_score(CAPTIONS, paths, load_clip(str(folder / name)))


def test_without_transformers_it_is_reported_what_to_install(
    folder: Path, paths: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"pip install 'showattendtell\[clip\]'"):
        measure_clip_score(CAPTIONS, paths, load_clip(str(folder / "model")))
