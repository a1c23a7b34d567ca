"""A folder that has small ones of all things that the documentation's commands name, under those very names."""

import csv
import json
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from documentation import ROOT, Command, blocks
from PIL import Image, ImageDraw

SPLITS = {"train": 24, "dev": 6, "test": 6}
SHOWN = "3385593926_d3e9c21170.jpg"
"""A photograph that the documentation shows."""

SENTENCES = [
    "Two dogs run over the green grass.",
    "A man holds a red ball.",
    "A brown dog jumps into the water.",
    "Two people walk on a beach at sunset.",
    "A bird stands on a wooden post.",
]
ANNOTATION = """<annotation><filename>{name}</filename>
<size><width>160</width><height>120</height><depth>3</depth></size>
<object><name>1</name>
<bndbox><xmin>20</xmin><ymin>20</ymin><xmax>100</xmax><ymax>90</ymax></bndbox></object></annotation>"""
SHORT = ["trainer.max_epochs=1", "trainer.limit_train_batches=2", "trainer.limit_val_batches=1"]
FEW_SCENES = ["dataset.train=40", "dataset.val=10", "dataset.test=10"]
NARROW = ["decoder.embedding_dim=16", "decoder.hidden_dim=32"]
FEW_PIXELS = ["encoder.size=64", "encoder.resize=64"]

OWN = "# mypackage.py\n"
"""How a block begins that is a part of the user's module."""

Run = Callable[..., Any]


def furnish(folder: Path, run: Run) -> None:
    """Photographs, data sets, caption files and trained models."""
    rng = random.Random(1)
    _write_flickr8k(folder / "DIR", rng)
    _write_own(folder / "my-photos", rng, 40)
    for name in ("photo.jpg", "holiday/a.jpg", "holiday/b.jpg"):
        _draw(folder / name, rng)
    for number in range(20):
        _draw(folder / f"named/a-dog-runs-over-{number}-balls.jpg", rng)
    write_module(folder)
    for name in ("figures", "studies"):
        shutil.copytree(ROOT / "docs" / name, folder / "docs" / name)
    _write_scored(folder)
    _train(folder, run)


def write_module(folder: Path) -> None:
    """`mypackage.py` as docs/extending.md has it."""
    parts = [block for block in blocks(ROOT / "docs/extending.md", "python") if block.startswith(OWN)]
    (folder / "mypackage.py").write_text("\n\n".join(parts))


def quick(command: Command) -> list[str]:
    """The arguments with others before and behind them that make an end of it in seconds."""
    given = command.arguments
    if command.name not in ("train", "prepare") or any(argument.startswith("resume=runs") for argument in given):
        return given
    before = [] if command.name == "prepare" else [*SHORT, *NARROW]
    named = " ".join(given)
    if not any(word in named for word in ("dataset=", "experiment=", "dataset.root=")):
        before += FEW_SCENES
    elif "encoder.size=" not in named:
        before += FEW_PIXELS
    behind = ["hydra.sweeper.n_trials=2"] if "sweep=" in named else []
    return [*(["-m"] if "-m" in given else []), *before, *(word for word in given if word != "-m"), *behind]


def _draw(path: Path, rng: random.Random) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    colours = [tuple(rng.randrange(256) for _ in range(3)) for _ in range(2)]
    image = Image.new("RGB", (160, 120), colours[0])
    ImageDraw.Draw(image).ellipse((20, 20, 100, 90), fill=colours[1])
    image.save(path)


def _write_flickr8k(folder: Path, rng: random.Random) -> None:
    """As it is distributed, with the boxes of Flickr30k Entities."""
    names = [SHOWN, *(f"{number}_ab.jpg" for number in range(1001, 1000 + sum(SPLITS.values())))]
    captions = []
    for name in names:
        _draw(folder / "images" / name, rng)
        captions += [f"{name}#{number}\t{said}\n" for number, said in enumerate(rng.sample(SENTENCES, 5))]
    (folder / "Flickr8k.token.txt").write_text("".join(captions))
    first = 0
    for split, size in SPLITS.items():
        listed = "".join(f"{name}\n" for name in names[first : first + size])
        (folder / f"Flickr_8k.{split}Images.txt").write_text(listed)
        first += size
    with zipfile.ZipFile(folder / "entities.zip", "w") as archive:
        for name in names:
            number = name.partition("_")[0]
            archive.writestr(f"Annotations/{number}.xml", ANNOTATION.format(name=name))
            archive.writestr(f"Sentences/{number}.txt", "[/EN#1/people A man] holds a red ball .\n")


def _write_own(folder: Path, rng: random.Random, number: int) -> None:
    """A table of captions beside a folder of images."""
    rows = [(f"{index}.jpg", said) for index in range(number) for said in rng.sample(SENTENCES, 2)]
    for name in dict(rows):
        _draw(folder / "images" / name, rng)
    with (folder / "captions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "caption"), *rows])


def _write_scored(folder: Path) -> None:
    """People's captions in COCO's form and as plain text, and what two models say of the same images."""
    numbers = range(1, len(SENTENCES) + 1)
    images = [{"id": number, "file_name": f"COCO_val2014_{number:012}.jpg"} for number in numbers]
    said = [{"id": n, "image_id": n, "caption": text} for n, text in zip(numbers, SENTENCES, strict=True)]
    (folder / "captions_val2014.json").write_text(json.dumps({"images": images, "annotations": said}))
    written = [{"image_id": number, "caption": "a dog runs over the grass"} for number in numbers]
    (folder / "results.json").write_text(json.dumps(written))
    for name in ("ref0", "ref1", "ours.txt", "theirs.txt"):
        (folder / name).write_text("".join(f"{text}\n" for text in SENTENCES))


def _train(folder: Path, run: Run) -> None:
    """Models of three attentions under every name that is documented, with their results."""
    recipe = [*SHORT, *NARROW, *FEW_PIXELS, "experiment=flickr8k_lite0", "dataset.root=DIR"]
    for name, choice in (("soft", "attention=soft"), ("hard", "attention=hard"), ("none", "attention=none")):
        _do(run, "train", *recipe, choice, f"hydra.run.dir=runs/{name}")
    for name in ("soft", "hard"):
        _do(run, "evaluate", f"checkpoint=runs/{name}/best.ckpt", "metrics=[bleu,cider]")
    for copy in ("...", "a", "b", "demo", "flickr8k-soft/2026-01-31_12-00-00-000000"):
        shutil.copytree(folder / "runs/soft", folder / "runs" / copy)
    for copy, name in (("SOFT", "soft"), ("HARD", "hard")):
        shutil.copytree(folder / "runs" / name, folder / copy)
    for copy in ("soft-cider-2", "staged/1-likelihood", "staged/2-cider"):
        shutil.copytree(folder / "runs/soft", folder / "runs" / copy)
    for recipe, name in (("soft", "soft"), ("hard", "hard"), ("soft_cider", "soft"), ("hard_cider", "hard")):
        for seed in range(1, 4):
            finished = folder / f"runs/paper-flickr8k/{recipe}/{seed}"
            shutil.copytree(folder / "runs" / name, finished)
            (finished / "results-test.json").rename(finished / "results-test-beam3.json")


def _do(run: Run, *arguments: str) -> None:
    done = run(*arguments)
    assert done.status == 0, done.err
