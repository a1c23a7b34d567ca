import threading

import numba
import pytest
import torch
from torch import Tensor

from showattendtell.model import additive
from showattendtell.model.additive import decay, sum_of_tanh

SHAPES = [(1, 1, 1, 1), (3, 2, 5, 7), (2, 5, 49, 64), (7, 1, 196, 33)]
"""R, K, L, A."""


def sums(shape: tuple[int, int, int, int], scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """p (R, L, A), q (R, K, A) and u (A,) in double precision."""
    images, captions, regions, width = shape
    generator = torch.Generator().manual_seed(0)
    sizes = ((images, regions, width), (images, captions, width), (width,))
    return tuple(scale * torch.randn(*size, generator=generator, dtype=torch.double) for size in sizes)  # type: ignore


def literally(p: Tensor, q: Tensor, u: Tensor) -> Tensor:
    return torch.tanh(p.unsqueeze(1) + q.unsqueeze(2)) @ u


def gradients(scores: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    pull = torch.linspace(-1, 1, scores.numel(), dtype=scores.dtype).view_as(scores)
    return torch.autograd.grad((scores * pull).sum(), parts)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_scores_and_gradients_are_those_of_the_equation(shape: tuple[int, int, int, int], threads: int):
    exact = tuple(part.requires_grad_() for part in sums(shape))
    rounded = tuple(part.detach().float().requires_grad_() for part in exact)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = sum_of_tanh(decay(rounded[0]), decay(rounded[1]), rounded[2])
        expected = literally(*exact)
        torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)
        for got, want in zip(gradients(found, rounded), gradients(expected, exact), strict=True):
            torch.testing.assert_close(got, want.float(), rtol=1e-4, atol=1e-4)
    finally:
        torch.set_num_threads(before)


def test_in_double_precision_the_gradient_is_that_of_small_differences():
    p, q, u = (part.requires_grad_() for part in sums((2, 2, 3, 4)))
    assert torch.autograd.gradcheck(lambda p, q, u: sum_of_tanh(decay(p), decay(q), u), (p, q, u))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("p", "q"), [(30, 30), (39, -39), (-35, 35.5), (1e4, 3), (-1e4, -1e4), (39, 1e9), (0, -50)])
def test_large_sums_are_neither_infinite_nor_wrong(p: float, q: float, dtype: torch.dtype):
    keys, queries = torch.full((1, 1, 8), p, dtype=dtype), torch.full((1, 1, 8), q, dtype=dtype)
    parts = tuple(part.requires_grad_() for part in (keys, queries, torch.ones(8, dtype=dtype)))
    found = sum_of_tanh(decay(parts[0]), decay(parts[1]), parts[2])
    torch.testing.assert_close(found, 8 * torch.tanh(torch.tensor(p + q, dtype=dtype)).view(1, 1, 1), atol=1e-4, rtol=0)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(found.sum(), parts))


def test_no_step_stores_what_every_caption_makes_of_every_region():
    kept = []
    shape = (2, 5, 49, 64)
    keys, queries, weights = (part.float().requires_grad_() for part in sums(shape))
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()), lambda kept: kept):
        sum_of_tanh(decay(keys), decay(queries), weights)
    assert max(kept) == keys.numel()


def test_two_threads_may_score_at_once():
    p, q, u = (part.float() for part in sums((4, 3, 20, 16)))
    expected = literally(p, q, u)
    found: list[Tensor] = []
    threads = [
        threading.Thread(target=lambda: found.extend(sum_of_tanh(decay(p), decay(q), u) for _ in range(20)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    for scores in found:
        torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)


def test_where_nothing_may_be_written_the_loops_are_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch):
    compiled = numba.njit

    def without_place(cache: bool = False, **settings: object) -> object:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return compiled(**settings)

    monkeypatch.setattr(numba, "njit", without_place)
    p, q, u = (part.float() for part in sums((1, 2, 3, 4)))
    found = torch.empty(1, 2, 3)
    loops = additive._compile(additive._sum)
    loops(decay(p).numpy(), decay(q).numpy(), found.numpy(), u.numpy())
    torch.testing.assert_close(2 * found - u.sum(), literally(p, q, u))
