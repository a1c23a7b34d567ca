"""What the commands that show models share, as far as it needs no model."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from showattendtell.config.schemas import model_groups
from showattendtell.errors import UserError
from showattendtell.inference.captioning import caption_all
from showattendtell.loading.hub import BUNDLED, note_about


@pytest.mark.parametrize(
    ("checkpoint", "compare", "names"),
    [
        ("runs/first/best.ckpt", [], ["first/best.ckpt"]),
        (["runs/a/best.ckpt", "./b.ckpt"], "best.ckpt", ["a/best.ckpt + b.ckpt", "best.ckpt"]),
        ("soft/1/best.ckpt", "hard/1/best.ckpt", ["soft/1/best.ckpt", "hard/1/best.ckpt"]),
    ],
)
def test_models_are_named_by_the_ends_of_their_paths(
    checkpoint: str | list[str], compare: str | list[str], names: list[str]
):
    assert list(model_groups(checkpoint, compare)) == names


def test_models_need_different_names():
    with pytest.raises(UserError, match=r"names=\[a,a\] must have a different name for each model"):
        model_groups("a.ckpt", ["b.ckpt"], ["a", "a"])


def test_the_note_of_a_model_is_that_of_its_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert note_about([BUNDLED]).startswith(f"{BUNDLED} was trained on 6,000 photographs, mostly of people and dogs")
    monkeypatch.chdir(tmp_path)
    for name, card in {
        "own": "---\nnote: knows\\x07 birds\n---\n# Own\n",
        "bad": "---\nnote: [\n---\n",
        "none": "# A",
    }.items():
        Path(name).mkdir()
        Path(name, "config.json").touch()
        Path(name, "README.md").write_text(card)
    Path("best.ckpt").touch()
    assert note_about(["best.ckpt", "own", "bad", "none"]) == "own knows\\x07 birds"
    Path(BUNDLED).mkdir()
    Path(BUNDLED, "config.json").touch()
    assert note_about([BUNDLED]) == ""


class Silent:
    """A captioner that says nothing but the red of the first pixel."""

    def __init__(self, device: str = "cpu"):
        self.device, self.batches = torch.device(device), list[int]()

    def pixels(self, photograph: Image.Image) -> list[torch.Tensor]:
        return [torch.tensor(photograph.getpixel((0, 0)))]

    def describe(self, pictures: list[tuple[str, Image.Image]], images: list[torch.Tensor]) -> list[int]:
        self.batches.append(len(pictures))
        return images[0][:, 0].tolist()


@pytest.mark.parametrize(("device", "batches"), [("cpu", 9 * [8] + [6]), ("cuda", [64, 14])])
def test_photographs_keep_their_order_whichever_thread_opens_them(
    device: str, batches: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("showattendtell.inference.captioning.num_readers", lambda: 3)
    for number in range(80):
        side = 400 if number % 7 == 0 else 8  # some take longer than others
        Image.new("RGB", (side, side), (number, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "5.png").write_text("no image")
    sources, errors, captioner = [str(tmp_path / f"{number}.png") for number in range(80)], list[str](), Silent(device)
    sources[60] = "nowhere.png"
    written = list(caption_all([captioner], sources, errors))
    assert written == [(number, [number]) for number in range(80) if number not in (5, 60)]
    assert captioner.batches == batches
    assert ["5.png cannot be read" in errors[0], "nowhere.png does not exist" in errors[1]] == [True, True]
