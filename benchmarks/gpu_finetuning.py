"""Fine-tuning, feature extraction and captioning on a GPU, from JPEG files, with EfficientNet-lite0 at 288 pixels.

The photographs of a folder are repeated until they are enough. Each has 5 captions of random words, as long as those
of Flickr8k. Ours is `CaptioningModule` (soft attention) with the batches of `train`, 64 captions each, in bfloat16. The
port's way is that of sgrvinod/a-PyTorch-Tutorial-to-Image-Captioning: resized photographs in a file of HDF5, one worker
process, one image per caption, float32, and the decoder of the textbook. Rates of training count the images that the
encoder processes, forward and backward. The rate of the first epoch includes the start of the worker processes, the
others do not. The last rows say where the time goes.
"""

import gc
import logging
import os
import time
import traceback
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torchvision import io

from benchmarks.decoding import draw_photographs
from benchmarks.gpu_step import add_options as add_device
from benchmarks.gpu_step import open_device
from benchmarks.harness.figures import Figure
from benchmarks.harness.script import CannotRunError, Results, main
from benchmarks.harness.timing import interleave, medians, seconds_of
from benchmarks.implementations import Implementation, Trainer, textbook_optimizer
from benchmarks.sampler import draw_lengths
from benchmarks.textbook import textbook_loss
from showattendtell import CaptioningModule
from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.datamodules.datasets import PackedRows, PixelSource
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.errors import first_line
from showattendtell.features.extract import Extraction, write_features
from showattendtell.inference.captioning import caption_all
from showattendtell.inference.pipeline import CaptioningPipeline
from showattendtell.inference.predictions import generate_captions
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.encoder import Encoder
from showattendtell.runtime.distributed import num_readers
from showattendtell.text.vocabulary import SPECIAL, Vocabulary
from showattendtell.types import Caption, Dataset, Example

NETWORK, SIDE = "tf_efficientnet_lite0", 288
IMAGES, CAPTIONED, DRAWN, CAPTIONS_PER_IMAGE, BATCH_SIZE = 6000, 3000, 20, 5, 64
VOCABULARY_SIZE, WIDTH, BEAM_SIZE, WORDS = 10_000, 512, 3, 12
EPOCHS, TRAINING_SECONDS = 2, 60
WARM_UP, PORT_BATCHES, READ_BATCHES, ROUND_SECONDS = 3, 40, 150, 3
GOAL = 1500


class Case(NamedTuple):
    """The photographs with their captions, and the device."""

    dataset: Dataset
    vocabulary: Vocabulary
    device: torch.device

    @property
    def examples(self) -> tuple[Example, ...]:
        return self.dataset.split("train")

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def data(self, encoder: Encoder, **options: Any) -> CaptionDataModule:
        return CaptionDataModule(
            self.dataset, self.vocabulary, partial(PixelSource, encoder.preprocessing), BATCH_SIZE, seed=0, **options
        )

    def wait(self) -> None:
        """Wait for the GPU."""
        if self.on_gpu:
            torch.cuda.synchronize()


def add_options(parser: ArgumentParser) -> None:
    add_device(parser)
    default = "$SHOWATTENDTELL_SHARED/flickr8k/images"
    parser.add_argument("--photographs", default="", metavar="DIR", help=f"folder of JPEGs (*.jpg); default: {default}")


def measure(options: Namespace) -> Results:
    device, figures = open_device(options), list[Figure]()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    with TemporaryDirectory() as folder:
        files = find_files(options.photographs) or draw_photographs(Path(folder), DRAWN)
        case = make_case(files, device)
        for section in SECTIONS:
            try:
                figures += section(case)
            except Exception as error:  # the other sections are still measured
                traceback.print_exc()
                figures.append(Figure(section.__name__, None, note=first_line(error)))
            gc.collect()  # ends the worker processes
    note = f"{len(files)} photographs, {len(case.examples)} images, {num_readers()} worker processes by default"
    if case.on_gpu:
        note += f", at most {torch.cuda.max_memory_allocated() / 1e9:.1f} GB of GPU memory in tensors"
    return Results([], figures, [note])


def find_files(folder: str) -> list[Path]:
    shared = os.environ.get("SHOWATTENDTELL_SHARED")
    found = sorted(Path(folder or f"{shared}/flickr8k/images").glob("*.jpg"))[:IMAGES]
    if folder and not found:
        raise CannotRunError(f"{folder} has no file *.jpg")
    return found


def make_case(files: list[Path], device: torch.device) -> Case:
    vocabulary = Vocabulary([*SPECIAL, *(f"word{number}" for number in range(VOCABULARY_SIZE - len(SPECIAL)))])
    words, lengths = vocabulary.words[len(SPECIAL) :], draw_lengths(IMAGES * CAPTIONS_PER_IMAGE)
    examples = [
        Example(str(image), str(path), tuple(Caption(words[image : image + length - 1]) for length in own))
        for image, (path, own) in enumerate(
            zip(islice(cycle(files), IMAGES), lengths.reshape(IMAGES, CAPTIONS_PER_IMAGE).tolist(), strict=True)
        )
    ]
    return Case(Dataset("photographs", {"train": tuple(examples), "val": tuple(examples[:1])}), vocabulary, device)


def make_encoder(trainable: bool = False) -> Encoder:
    return Encoder(NETWORK, "last", "random", size=SIDE, resize=SIDE, trainable=trainable)


class Rate:
    """Images per second since it was created, or since `restart`."""

    def __init__(self, case: Case):
        self.case = case
        self.restart()

    def restart(self) -> None:
        self.case.wait()
        self.images, self.started = 0, time.perf_counter()

    @property
    def value(self) -> float:
        self.case.wait()
        return self.images / (time.perf_counter() - self.started)


class Epochs(Callback):
    """Measures the rate of each epoch."""

    def __init__(self, case: Case):
        self.rate, self.rates = Rate(case), list[float]()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.rate.images += len(batch.content.images)

    def on_train_epoch_end(self, *_: Any) -> None:
        self.rates.append(self.rate.value)
        self.rate.restart()


def train(case: Case, **limits: Any) -> list[float]:
    """Return the images per second of each epoch."""
    torch.manual_seed(0)
    encoder = make_encoder(trainable=True)
    module = CaptioningModule(hidden_dim=WIDTH, embedding_dim=WIDTH, encoder=encoder, vocabulary=case.vocabulary)
    epochs = Epochs(case)
    trainer = lightning.Trainer(
        accelerator="gpu" if case.on_gpu else "cpu",
        devices=1,
        precision="bf16-mixed" if case.on_gpu else "32-true",
        max_time={"seconds": TRAINING_SECONDS},
        limit_val_batches=0,
        gradient_clip_val=5.0,
        callbacks=[epochs],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        **limits,
    )
    trainer.fit(module, case.data(encoder))
    return epochs.rates


def time_training(case: Case) -> Iterator[Figure]:
    rates = train(case, max_epochs=EPOCHS)
    for number, rate in enumerate(rates, 1):
        yield Figure(f"training, epoch {number}", rate, "images/s", goal=GOAL)


class PortDataset(TorchDataset):
    """The port's data set: an image of the file for each caption."""

    def __init__(self, path: Path, tokens: Tensor, encoder: Encoder):
        import h5py

        self.images, self.tokens, self.preprocessing = h5py.File(path)["images"], tokens, encoder.preprocessing

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, caption: int) -> tuple[Tensor, Tensor]:
        pixels = torch.FloatTensor(self.images[caption // CAPTIONS_PER_IMAGE] / 255.0)
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in self.preprocessing[2:4])
        return (pixels - mean) / std, self.tokens[caption]


class PortModel(nn.Module):
    """Encoder in training mode, and the decoder of the textbook."""

    def __init__(self) -> None:
        super().__init__()
        self.network = make_encoder(trainable=True).network.train()
        dim = self.network.num_features
        decoder = LSTMDecoder(VOCABULARY_SIZE, dim, WIDTH, WIDTH)
        self.captioner = Captioner(SoftAttention(dim, WIDTH), decoder)


def port_loss(model: PortModel, pixels: Tensor, tokens: Tensor) -> Tensor:
    regions = model.network.forward_features(pixels).flatten(2).transpose(1, 2)
    return textbook_loss(model.captioner, regions, torch.arange(len(tokens), device=tokens.device), tokens)


def time_port(case: Case) -> Iterator[Figure]:
    import h5py

    torch.manual_seed(0)
    needed = min(IMAGES, (WARM_UP + PORT_BATCHES) * BATCH_SIZE // CAPTIONS_PER_IMAGE + 1)
    examples, encoder = case.examples[:needed], make_encoder()
    said = [caption for example in examples for caption in example.captions]
    packed = PackedRows(case.vocabulary.encode(caption.words) for caption in said)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "images.hdf5"
        with h5py.File(path, "w") as file:
            file["images"] = PixelSource(encoder.preprocessing, examples)(range(needed)).numpy()
        loader = DataLoader(
            PortDataset(path, packed.pad(range(len(said))), encoder),
            BATCH_SIZE,
            shuffle=True,
            num_workers=1,
            multiprocessing_context="fork",
            pin_memory=case.on_gpu,
            drop_last=True,
        )
        trainer = Trainer(Implementation(port_loss, textbook_optimizer), PortModel().to(case.device))
        rate = Rate(case)
        for number, batch in enumerate(islice(loader, WARM_UP + PORT_BATCHES), 1):
            trainer.training_step(*(part.to(case.device) for part in batch))
            rate.images += BATCH_SIZE
            if number == WARM_UP:
                rate.restart()
        yield Figure("training, the port's way", rate.value, "images/s")


def time_extraction(case: Case) -> Iterator[Figure]:
    with TemporaryDirectory() as folder:
        write = partial(write_features, case.dataset, make_encoder(), Path(folder) / "store", False, Extraction())
        yield Figure("extraction, float32", len(case.examples) / seconds_of(write), "images/s", goal=GOAL)


def time_captions(case: Case) -> Iterator[Figure]:
    torch.manual_seed(0)
    decoding, encoder = BeamSearch(beam_size=BEAM_SIZE, max_length=WORDS), make_encoder()
    module = CaptioningModule(encoder=encoder, vocabulary=case.vocabulary, decoding=decoding).to(case.device).eval()
    examples = case.examples[:CAPTIONED]
    pipeline, files = CaptioningPipeline.from_module(module), [example.path for example in examples]
    images = [PixelSource(encoder.preprocessing, examples)]
    seconds = seconds_of(lambda: generate_captions(pipeline.models, images, examples, seed=0))
    search = f"{BEAM_SIZE} beams, {WORDS} words"
    yield Figure(f"captions of evaluate, {search}", len(examples) / seconds, "images/s", goal=GOAL)
    seconds = seconds_of(lambda: list(caption_all([pipeline], files, [])))
    yield Figure(f"captions of caption, {search}", len(files) / seconds, "images/s", goal=GOAL)


def time_reading(case: Case) -> Iterator[Figure]:
    encoder = make_encoder(trainable=True)
    source, number = PixelSource(encoder.preprocessing, case.examples), min(BATCH_SIZE, IMAGES)
    source(range(number))
    seconds = seconds_of(lambda: source(range(number)))
    yield Figure("decoding alone, 1 process", number / seconds, "images/s")
    readers, rate = max(1, num_readers()), Rate(case)
    for number, part in enumerate(islice(case.data(encoder, num_workers=readers).train_dataloader(), READ_BATCHES), 1):
        rate.images += len(part.content.images)
        if number == WARM_UP:
            rate.restart()
    yield Figure(f"decoding alone, worker processes: {readers}", rate.value, "images/s")
    if case.on_gpu:
        files = [io.read_file(example.path) for example in case.examples[:number]]
        seconds = time_one(case, lambda: io.decode_jpeg(files, io.ImageReadMode.RGB, case.device))
        yield Figure("decoding alone by torchvision on the GPU, not resized", number / seconds, "images/s")


def time_encoder(case: Case) -> Iterator[Figure]:
    encoder = make_encoder(trainable=True).to(case.device)
    pixels = torch.randint(256, (BATCH_SIZE, 3, SIDE, SIDE), dtype=torch.uint8)
    host = pixels.pin_memory() if case.on_gpu else pixels
    yield Figure("transfer of a batch", 1000 * time_one(case, lambda: host.to(case.device, copy=True)), "ms", "lower")
    images = pixels.to(case.device)
    half = partial(torch.autocast, case.device.type, torch.bfloat16)

    def step(context: Callable[[], AbstractContextManager[object]]) -> None:
        with context():
            encoder(images).float().square().mean().backward()
        case.wait()

    variants: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "float32": nullcontext,
        "bfloat16": half,
        "bfloat16, cudnn.benchmark": partial(with_benchmark, half),
    }
    times = interleave({name: partial(step, context) for name, context in variants.items()}, ROUND_SECONDS)
    for name, seconds in medians(times).items():
        yield Figure(f"encoder alone, {name}", BATCH_SIZE / seconds, "images/s")


@contextmanager
def with_benchmark(context: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """Let cuDNN try its algorithms."""
    torch.backends.cudnn.benchmark = True
    try:
        with context():
            yield
    finally:
        torch.backends.cudnn.benchmark = False


def time_one(case: Case, work: Callable[[], object]) -> float:
    """Return the median seconds of a call."""

    def timed() -> None:
        work()
        case.wait()

    return medians(interleave({"": timed}, seconds=1))[""]


SECTIONS = (time_training, time_extraction, time_captions, time_port, time_reading, time_encoder)

if __name__ == "__main__":
    main(measure, threads=len(os.sched_getaffinity(0)), more_options=add_options)
