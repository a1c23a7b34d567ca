"""Lower bound of a training step's time: the floating-point operations of its matrix products, divided by the measured
rate of such products."""

from functools import partial
from typing import NamedTuple

import torch
from torch.utils.flop_counter import register_flop_formula

from benchmarks.harness.timing import seconds_of
from benchmarks.workload import Workload
from showattendtell.models.kernels.products import linear


class Product(NamedTuple):
    """A product (rows, inner) x (inner, columns), followed by `backward` products of equal size for the gradients: 1 if
    the first factor needs no gradient."""

    name: str
    rows: int
    inner: int
    columns: int
    backward: int = 2

    @property
    def operations(self) -> int:
        """Multiplications and additions, forward and backward."""
        return 2 * self.rows * self.inner * self.columns * (1 + self.backward)


def products(workload: Workload) -> list[Product]:
    """Return the products of a step without padding, with regions projected once per image.

    Letters are those of `showattendtell.types`.
    """
    words, regions = sum(workload.lengths), workload.regions
    d, m, n, a = workload.region_dim, workload.embedding, workload.hidden, workload.attention
    return [
        Product("keys", workload.images * regions, d, a, backward=1),
        Product("first h and c", workload.images, d, 2 * n, backward=1),
        Product("first h and c, second layer", 2 * workload.images, n, n),
        Product("query", words, n, a),
        Product("scores", words * regions, a, 1),
        Product("context", words * regions, 1, d, backward=1),
        Product("gate", words, n, 1),
        Product("LSTM gates", words, m + n + d, 4 * n),
        Product("deep output", words, n + d, m),
        Product("vocabulary", words, m, workload.vocabulary),
    ]


@register_flop_formula(torch.ops.mkldnn._linear_pointwise)
def onednn_operations(inputs: torch.Size, matrix: torch.Size, *_: object, **__: object) -> int:
    """Return the operations of a oneDNN product, for `FlopCounterMode`, which only counts torch's own."""
    return 2 * inputs.numel() * matrix[0]


def operations(workload: Workload) -> int:
    return sum(product.operations for product in products(workload))


class MatrixRate:
    """Rate of the step's three largest products in floating-point operations per second.

    Each call computes them three times. The best of all calls counts, because other load can only lower the rate.
    """

    def __init__(self, workload: Workload, dtype: torch.dtype):
        large = sorted(products(workload), key=lambda product: min(product[1:4]))[-3:]
        self._factors = [
            (torch.rand(rows, inner, dtype=dtype), torch.rand(columns, inner, dtype=dtype))
            for _, rows, inner, columns, _ in large
        ]
        self.best = 0.0

    def __call__(self) -> None:
        for first, second in 3 * self._factors:
            seconds = seconds_of(partial(linear, first, second))
            self.best = max(self.best, 2 * first.numel() * len(second) / seconds)
