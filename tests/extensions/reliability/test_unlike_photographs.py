"""The bundled model doubts its captions of COCO's photographs without people and dogs, and few of Flickr8k's."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from repository import SHARED
from torchmetrics.functional.classification import binary_auroc

from showattendtell import load
from showattendtell.images.reading import read_pixels
from showattendtell.inference.pipeline import CaptioningPipeline

COCO, FLICKR = SHARED / "coco_mini", SHARED / "flickr8k"

NAMED = """
man woman boy girl person people men women boys girls child children baby kid kids guy lady player players crowd group
someone couple rider toddler skateboarder snowboarder surfer biker climber team dog dogs puppy
"""


def photographs_of_coco() -> tuple[list[Path], list[Path]]:
    """Those without people and dogs by their instances, and those with."""
    without, others = list[Path](), list[Path]()
    for split in ("train2017", "val2017"):
        content = json.loads((COCO / f"annotations/instances_{split}.json").read_text())
        avoided = {category["id"] for category in content["categories"] if category["name"] in ("person", "dog")}
        images = {one["image_id"] for one in content["annotations"] if one["category_id"] in avoided}
        for one in content["images"]:
            (others if one["id"] in images else without).append(COCO / split / one["file_name"])
    return without, others


@torch.no_grad()
def unlikeness(captioner: CaptioningPipeline, photographs: Sequence[Path]) -> torch.Tensor:
    module, calibration = captioner.models[0].module, captioner.confidence
    batches = [photographs[start : start + 16] for start in range(0, len(photographs), 16)]
    seen = (torch.stack([module.encoder.preprocessing(read_pixels(path)) for path in batch]) for batch in batches)
    return torch.cat([calibration(module.regions(pixels)) for pixels in seen])


@pytest.mark.slow
@pytest.mark.skipif(not COCO.is_dir() or not FLICKR.is_dir(), reason="needs COCO and Flickr8k; see CONTRIBUTING.md")
def test_unlike_photographs_are_doubted():
    """The figures of docs/extensions/reliability.md, which `pytest -s` prints."""
    captioner, (unlike, others) = load(), photographs_of_coco()
    calibration = captioner.confidence
    names = (FLICKR / "Flickr_8k.testImages.txt").read_text().split()
    test = [FLICKR / "images" / names[number * len(names) // 300] for number in range(300)]
    inside, outside, beside = (unlikeness(captioner, photographs) for photographs in (test, unlike, others))
    labels = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))]).int()
    area = binary_auroc(torch.cat([inside, outside]), labels)
    outputs = list(captioner.stream([*test, *unlike]))
    by_log_prob = binary_auroc(torch.tensor([-float(one.log_probs.mean()) for one in outputs]), labels)
    naming = [output for output in outputs[len(test) :] if {*NAMED.split()} & {*output.words}]
    unmarked = sum(not output.not_sure for output in naming)
    marked = [(values > calibration.threshold).float().mean() for values in (inside, beside)]
    print(f"\nAUROC of the distance {area:.3f}, of the mean log-probability {by_log_prob:.3f}")
    print(f"{len(naming)} of {len(unlike)} captions name people or dogs, {unmarked} of them without a mark")
    print(f"marked: {marked[0]:.1%} of Flickr8k's test photographs, {marked[1]:.1%} of COCO's with people or dogs")
    lower = outside.sort(descending=True).values[len(unlike) - 6]  # 5 of them are not beyond it
    stricter = [(values > lower).float().mean() for values in (inside, beside)]
    print(f"with 5 of {len(unlike)} below the threshold: {stricter[0]:.1%} and {stricter[1]:.1%}")
    assert len(unlike) == 79
    assert area > 0.92
    assert len(naming) > 60
    assert unmarked <= 15
    assert marked[0] < 0.1
