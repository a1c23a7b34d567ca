"""The bundled model doubts its captions of COCO's photographs without people and dogs, and few of Flickr8k's."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torchmetrics.functional.classification import binary_auroc

from showattendtell import load
from showattendtell.data.images import read_pixels
from showattendtell.inference.pipeline import CaptioningPipeline

SHARED = Path(os.environ.get("SHOWATTENDTELL_SHARED", "none"))
COCO, FLICKR = SHARED / "coco_mini", SHARED / "flickr8k"

NAMED = {
    "man",
    "woman",
    "boy",
    "girl",
    "person",
    "people",
    "men",
    "women",
    "boys",
    "girls",
    "child",
    "children",
    "baby",
}
NAMED |= {"kid", "kids", "guy", "lady", "player", "players", "crowd", "group", "someone", "couple", "rider", "toddler"}
NAMED |= {"skateboarder", "snowboarder", "surfer", "biker", "climber", "team", "dog", "dogs", "puppy"}


def without_people_and_dogs() -> list[Path]:
    found = []
    for split in ("train2017", "val2017"):
        content = json.loads((COCO / f"annotations/instances_{split}.json").read_text())
        avoided = {category["id"] for category in content["categories"] if category["name"] in ("person", "dog")}
        images = {one["image_id"] for one in content["annotations"] if one["category_id"] in avoided}
        found += [COCO / split / one["file_name"] for one in content["images"] if one["id"] not in images]
    return found


@torch.no_grad()
def unlikeness(captioner: CaptioningPipeline, photographs: Sequence[Path]) -> torch.Tensor:
    module, calibration = captioner.models[0].module, captioner.calibration
    assert calibration
    batches = [photographs[start : start + 16] for start in range(0, len(photographs), 16)]
    seen = (torch.stack([module.encoder.preprocessing(read_pixels(path)) for path in batch]) for batch in batches)
    return torch.cat([calibration(module.regions(pixels)) for pixels in seen])


@pytest.mark.slow
@pytest.mark.skipif(not COCO.is_dir() or not FLICKR.is_dir(), reason="needs COCO and Flickr8k; see CONTRIBUTING.md")
def test_unlike_photographs_are_doubted():
    captioner, unlike = load(), without_people_and_dogs()
    names = (FLICKR / "Flickr_8k.testImages.txt").read_text().split()
    test = [FLICKR / "images" / names[number * len(names) // 300] for number in range(300)]
    inside, outside = unlikeness(captioner, test), unlikeness(captioner, unlike)
    labels = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))]).int()
    area = binary_auroc(torch.cat([inside, outside]), labels)
    outputs = list(captioner.stream(unlike))
    naming = [output for output in outputs if NAMED & {*output.words}]
    assert len(unlike) == 79
    assert area > 0.92
    assert len(naming) > 60
    assert sum(not output.unsure for output in naming) <= 15
    assert captioner.calibration
    assert (inside > captioner.calibration.threshold).float().mean() < 0.1
