"""The timed implementations compute the same, and the lower bound counts the necessary operations."""

from collections.abc import Sequence

import pytest
import torch
from benchmarks.implementations import package_loss
from benchmarks.lower_bound import products
from benchmarks.textbook import textbook_loss
from benchmarks.workload import Workload
from torch.utils.flop_counter import FlopCounterMode

TINY = Workload(3, 2, regions=4, region_dim=5, vocabulary=30, embedding=3, hidden=6, attention=7)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_the_textbook_has_the_loss_and_the_gradients_of_the_package(dtype: torch.dtype, tolerance: float):
    captioner, batch = TINY.captioner().to(dtype), TINY.batch()
    batch = batch._replace(regions=batch.regions.to(dtype))
    found = []
    for loss in (textbook_loss, package_loss):
        captioner.zero_grad()
        value = loss(captioner, *batch)
        value.backward()
        found.append([value.detach(), *(parameter.grad for parameter in captioner.parameters())])
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


class OneWord(Workload):
    """Captions of only `<eos>`."""

    lengths: Sequence[int] = property(lambda workload: [1] * workload.captions)


def test_the_operations_of_one_step_are_those_that_torch_counts_in_the_textbook_s():
    workload = OneWord(*TINY._replace(images=4, captions_per_image=1))
    with FlopCounterMode(display=False) as counted:
        textbook_loss(workload.captioner(), *workload.batch()).backward()
    by_name = {product.name: product.operations for product in products(workload)}
    read_elementwise = by_name.pop("context")
    assert counted.get_total_flops() == sum(by_name.values())
    assert read_elementwise == 2 * (4 * 4 * 5) * 2
