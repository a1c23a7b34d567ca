import threading

import numba
import pytest
import torch
from torch import Tensor

from showattendtell.models.kernels import parallel as loops
from showattendtell.models.kernels.attention import AdditiveScores, RegionPairs, decay
from showattendtell.models.kernels.parallel import CaptionGroups

SHAPES = [(1, 1, 1, 1), (3, 2, 5, 7), (2, 5, 49, 64), (7, 1, 196, 33)]
"""R, K, L, A."""


def sums(shape: tuple[int, int, int, int], scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """p (R, L, A), q (R * K, A) and u (A,) in double precision."""
    images, captions, regions, width = shape
    generator = torch.Generator().manual_seed(0)
    sizes = ((images, regions, width), (images * captions, width), (width,))
    return tuple(scale * torch.randn(*size, generator=generator, dtype=torch.double) for size in sizes)  # type: ignore


def owners_of(images: int, captions: int) -> Tensor:
    """The image of each caption, in no order."""
    return torch.randperm(images * captions, generator=torch.Generator().manual_seed(1)) % images


def literally(p: Tensor, q: Tensor, u: Tensor, image_index: Tensor) -> Tensor:
    return torch.tanh(p[image_index] + q.unsqueeze(1)) @ u


def scores(p: Tensor, q: Tensor, u: Tensor, image_index: Tensor) -> Tensor:
    return AdditiveScores.apply(CaptionGroups(image_index, len(p)), p, decay(p), q, u) - u.sum()


def gradients(found: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    pull = torch.linspace(-1, 1, found.numel(), dtype=found.dtype).view_as(found)
    return torch.autograd.grad((found * pull).sum(), parts)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_scores_and_gradients_are_those_of_the_equation(shape: tuple[int, int, int, int], scale: float, threads: int):
    exact = tuple(part.requires_grad_() for part in sums(shape, scale))
    rounded = tuple(part.detach().float().requires_grad_() for part in exact)
    image_index, before = owners_of(*shape[:2]), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found, expected = scores(*rounded, image_index), literally(*exact, image_index)
        torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5 * scale)
        for got, want in zip(gradients(found, rounded), gradients(expected, exact), strict=True):
            torch.testing.assert_close(got, want.float(), rtol=1e-4, atol=1e-4 * scale)
    finally:
        torch.set_num_threads(before)


def test_in_double_precision_the_gradient_is_that_of_small_differences():
    parts = tuple(part.requires_grad_() for part in sums((2, 2, 3, 4)))
    assert torch.autograd.gradcheck(lambda p, q, u: scores(p, q, u, owners_of(2, 2)), parts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("p", "q"),
    [
        (30, 30),
        (42, -42.5),
        (-35, 35.5),
        (1e4, 3),
        (-1e4, -1e4),
        (39, 1e9),
        (0, -50),
        (60, -59.5),
        (44.5, -42.9),
        (-1e3, 1e3),
    ],
)
def test_large_sums_are_neither_infinite_nor_wrong(p: float, q: float, dtype: torch.dtype):
    keys, queries = torch.full((1, 1, 8), p, dtype=dtype), torch.full((1, 8), q, dtype=dtype)
    parts = tuple(part.requires_grad_() for part in (keys, queries, torch.ones(8, dtype=dtype)))
    found = scores(*parts, torch.tensor([0]))
    torch.testing.assert_close(found, 8 * torch.tanh(torch.tensor(p + q, dtype=dtype)).view(1, 1), atol=1e-4, rtol=0)
    to_keys, to_queries, _ = torch.autograd.grad(found.sum(), parts)
    slope = 1 - torch.tanh(torch.tensor(p + q, dtype=dtype)) ** 2
    for gradient in (to_keys, to_queries):
        torch.testing.assert_close(gradient.flatten(), slope.expand(8), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("furthest_p", "furthest_q", "taken"), [(42, 32, True), (1e6, 32, True), (44, 34, False)])
def test_regions_that_saturate_are_taken_by_the_loops_all_the_same(furthest_p: float, furthest_q: float, taken: bool):
    p, q, u = sums((2, 5, 49, 64))
    p, q = furthest_p * p / p.abs().max(), furthest_q * q / q.abs().max()
    exact = tuple(part.requires_grad_() for part in (p, q, u))
    rounded = tuple(part.detach().float().requires_grad_() for part in exact)
    image_index = owners_of(2, 5)
    pairs = RegionPairs(CaptionGroups(image_index, 2), rounded[0], decay(rounded[0]), rounded[2])
    assert (pairs._decays(rounded[1]) is not None) == taken
    found, expected = scores(*rounded, image_index), literally(*exact, image_index)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-4)
    for got, want in zip(gradients(found, rounded), gradients(expected, exact), strict=True):
        torch.testing.assert_close(got, want.float(), rtol=1e-4, atol=1e-3)


def test_keys_that_are_no_numbers_are_none_of_any_caption():
    p, q, u = (part.float() for part in sums((2, 3, 5, 4)))
    p[0, 2, 1] = torch.nan
    image_index = owners_of(2, 3)
    torch.testing.assert_close(scores(p, q, u, image_index), literally(p, q, u, image_index), equal_nan=True)


def test_a_tensor_of_the_backward_pass_that_changes_is_noticed():
    parts = tuple(part.float().requires_grad_() for part in sums((2, 2, 3, 4)))
    found = scores(*(part * 1 for part in parts[:2]), changed := parts[2] * 1, owners_of(2, 2))
    changed.detach().zero_()
    with pytest.raises(RuntimeError, match="inplace"):
        found.sum().backward()


def test_no_step_stores_what_every_caption_makes_of_every_region():
    kept = []
    shape = (2, 5, 49, 64)
    parts = tuple(part.float().requires_grad_() for part in sums(shape))
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()), lambda kept: kept):
        scores(*parts, owners_of(2, 5))
    assert max(kept) <= parts[0].numel()


def test_two_threads_may_score_at_once():
    p, q, u = (part.float() for part in sums((4, 3, 20, 16)))
    image_index = owners_of(4, 3)
    expected = literally(p, q, u, image_index)
    found: list[Tensor] = []
    threads = [
        threading.Thread(target=lambda: found.extend(scores(p, q, u, image_index) for _ in range(20))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    for each in found:
        torch.testing.assert_close(each, expected, rtol=1e-5, atol=1e-5)


def test_where_nothing_may_be_written_the_loops_are_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch):
    njit = numba.njit

    def without_place(cache: bool = False, **settings: object) -> object:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**settings)

    monkeypatch.setattr(numba, "njit", without_place)
    p, q, u = (part.float() for part in sums((1, 2, 3, 4)))
    found = torch.empty(2, 3)
    kernel = loops.compiled.__wrapped__(loops.score)
    members = torch.tensor([0, 2]).numpy(), torch.tensor([0, 1]).numpy()
    kernel(0, 1, *members, 2, *(part.numpy() for part in (decay(p), decay(q), u, found)))
    torch.testing.assert_close(found - u.sum(), literally(p, q, u, torch.tensor([0, 0])))
