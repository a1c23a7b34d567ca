"""The timed implementations compute the same, and the lower bound counts the necessary operations."""

from collections.abc import Sequence

import pytest
import torch
from benchmarks.implementations import IMPLEMENTATIONS, NOT_COMPILED, OURS, TEXTBOOK, Trainer, make_step, package_loss
from benchmarks.lower_bound import Product, operations, products
from benchmarks.textbook import textbook_loss
from benchmarks.workload import Workload
from torch.utils.flop_counter import FlopCounterMode

from showattendtell.data.vocabulary import EOS, PAD, START
from showattendtell.models.kernels import parallel as loops

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


def test_all_implementations_have_the_same_losses():
    batch = TINY.batch()
    trainers = [Trainer(IMPLEMENTATIONS[name], TINY.captioner()) for name in (TEXTBOOK, OURS, NOT_COMPILED)]
    for trainer in trainers:
        for _ in range(30):
            trainer.step(*batch)
    theirs, *others = (torch.tensor(trainer.losses) for trainer in trainers)
    assert theirs[-1] < theirs[0]
    for ours in others:
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)


def test_without_a_compiler_no_loop_is_compiled(monkeypatch: pytest.MonkeyPatch):
    def refuse(loop: object) -> None:
        raise RuntimeError("compiled")

    monkeypatch.setattr(loops, "compiled", refuse)
    make_step(NOT_COMPILED, TINY)()
    with pytest.raises(RuntimeError, match="compiled"):
        make_step(OURS, TINY)()


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


def test_the_lower_bound_counts_words_without_padding_and_every_image_once():
    alone, five = (Workload(2, captions_per_image=each, mixed_lengths=False) for each in (1, 5))
    once = ("keys", "first h and c", "first h and c, second layer")
    for one, other in zip(products(alone), products(five), strict=True):
        assert other.operations == one.operations * (1 if one.name in once else 5)
    assert operations(alone) == sum(product.operations for product in products(alone))


def test_a_product_has_two_operations_for_each_pair_and_direction():
    assert Product("", 2, 3, 4).operations == 2 * 24 * 3
    assert Product("", 2, 3, 4, backward=1).operations == 2 * 24 * 2


def test_captions_of_a_batch_end_where_their_lengths_say():
    tokens = Workload().tokens()
    for row, length in zip(tokens, Workload().lengths, strict=True):
        assert row[length - 1] == EOS
        assert (row[length:] == PAD).all()
        assert not torch.isin(row[: length - 1], torch.tensor([PAD, START, EOS])).any()
    assert 11 < sum(Workload().lengths) / Workload().captions < 13
