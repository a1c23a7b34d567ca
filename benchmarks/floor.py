"""The floor of a training step: its matrix products' floating-point operations over the rate at which this machine does
such products."""

import time
from typing import NamedTuple

import torch
from torch.utils.flop_counter import register_flop_formula

from benchmarks.workload import Work
from showattendtell.models.kernels.products import linear


class Product(NamedTuple):
    """(rows, inner) times (inner, columns); `backward` products as large follow for the gradients, one where the first
    factor needs none."""

    name: str
    rows: int
    inner: int
    columns: int
    backward: int = 2

    @property
    def operations(self) -> int:
        """A multiplication and an addition for each of rows x inner x columns, forward and backward."""
        return 2 * self.rows * self.inner * self.columns * (1 + self.backward)


def products(work: Work) -> list[Product]:
    """Of a step without padding, the regions projected once an image, in the letters of `showattendtell.types`."""
    words, regions = sum(work.lengths), work.regions
    d, m, n, a = work.region_dim, work.embedding, work.hidden, work.attention
    return [
        Product("keys", work.images * regions, d, a, backward=1),
        Product("first h and c", work.images, d, 2 * n, backward=1),
        Product("first h and c, second layer", 2 * work.images, n, n),
        Product("query", words, n, a),
        Product("scores", words * regions, a, 1),
        Product("context", words * regions, 1, d, backward=1),
        Product("gate", words, n, 1),
        Product("LSTM's gates", words, m + n + d, 4 * n),
        Product("deep output", words, n + d, m),
        Product("vocabulary", words, m, work.vocabulary),
    ]


@register_flop_formula(torch.ops.mkldnn._linear_pointwise)
def onednn_operations(inputs: torch.Size, matrix: torch.Size, *_: object, **__: object) -> int:
    """The operations of one product, for `FlopCounterMode`, which knows only torch's own."""
    return 2 * inputs.numel() * matrix[0]


def operations(work: Work) -> int:
    return sum(product.operations for product in products(work))


class MatrixRate:
    """Floating-point operations a second of the step's larger products. Each call does every one of them three times;
    the best of all calls counts, since other work on the machine only ever takes away."""

    def __init__(self, work: Work, dtype: torch.dtype):
        large = sorted(products(work), key=lambda product: min(product[1:4]))[-3:]
        self._factors = [
            (torch.rand(rows, inner, dtype=dtype), torch.rand(columns, inner, dtype=dtype))
            for _, rows, inner, columns, _ in large
        ]
        self.best = 0.0

    def __call__(self) -> None:
        for first, second in 3 * self._factors:
            started = time.perf_counter()
            linear(first, second)
            seconds = time.perf_counter() - started
            self.best = max(self.best, 2 * first.numel() * len(second) / seconds)
