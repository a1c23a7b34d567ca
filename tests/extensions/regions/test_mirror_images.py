"""Mirror images of stored regions."""

from pathlib import Path

import numpy as np
import pytest
import torch
from detected_shapes import DIM, draw, write_detections
from omegaconf import DictConfig, OmegaConf
from PIL import Image
from small_models import VOCABULARY, small_captioner

from showattendtell.config.compose import compose
from showattendtell.config.instantiate import build
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.image_captioner import ImageCaptioner, ImageCaptionerEnsemble
from showattendtell.errors import UserError
from showattendtell.inference.captioning import stored_regions
from showattendtell.inference.loading import LoadedModel
from showattendtell.inference.pipeline import CaptioningPipeline

SIZES = {"train": 2, "val": 1, "test": 2}


@pytest.fixture
def regions_config(tmp_path: Path) -> DictConfig:
    """The training configuration of a model of detected regions, with the files that it names."""
    write_detections(tmp_path / "detections.tsv", draw(tmp_path, **SIZES))
    settings = [*(f"dataset.{split}={size}" for split, size in SIZES.items()), f"dataset.root={tmp_path}/shapes"]
    settings += ["encoder=regions", f"encoder.features={tmp_path}/detections.tsv", f"encoder.dim={DIM}"]
    settings += ["encoder.max_regions=12", f"cache={tmp_path}"]
    return compose("train", settings)


def mirroring_pipeline(config: DictConfig) -> CaptioningPipeline:
    encoder = build(config.encoder)
    captioner = small_captioner(region_dim=encoder.region_dim)
    captioner.padded = True
    module = ImageCaptioner(encoder, captioner, VOCABULARY, BeamSearch(mirrored=True, max_length=5)).eval()
    return CaptioningPipeline("regions", [LoadedModel(module, config, {})])


def test_the_regions_of_a_detector_have_no_mirror_images(regions_config: DictConfig):
    dataset, command = build(regions_config.dataset), OmegaConf.create({"dataset": {}, "split": "test"})
    with pytest.raises(UserError, match=r"decoding\.mirrored needs mirror images, and regions of a detector have none"):
        stored_regions(mirroring_pipeline(regions_config), dataset, command, dataset.split("test"))


def test_stored_mirror_images_are_read_as_they_are_given(regions_config: DictConfig):
    pipeline, generator = mirroring_pipeline(regions_config), torch.Generator().manual_seed(0)
    regions, mirrors = (torch.rand(2, 12, DIM + 4, generator=generator) for _ in range(2))
    pictures = [(name, Image.new("RGB", (8, 8))) for name in "ab"]
    expected = ImageCaptionerEnsemble([pipeline.models[0].module]).generate([regions, mirrors])
    written = list(pipeline.describe(pictures, [regions, mirrors]))
    assert [one.captions[0].tokens for one in written] == [captions[0].tokens for captions in expected]
    log_probs = [captions[0].log_probs.numpy() for captions in expected]
    for one, log_p in zip(written, log_probs, strict=True):
        np.testing.assert_allclose(one.captions[0].log_probs, log_p, atol=1e-5)
