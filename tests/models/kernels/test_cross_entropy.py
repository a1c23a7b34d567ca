import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from showattendtell.models.kernels import cross_entropy as module
from showattendtell.models.kernels.cross_entropy import OutputFeatures

WORDS, WIDTH, V = 9, 4, 13
TARGETS = torch.tensor([0, 3, 12, 3, 5, 7, 1, 2, 2])


def parts(dtype: torch.dtype, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = ((WORDS, WIDTH), (V, WIDTH), (V,))
    return tuple((scale * torch.randn(*size, generator=generator)).to(dtype).requires_grad_() for size in sizes)  # type: ignore


@pytest.mark.parametrize("together", [1, 30, 10**6])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_it_is_torchs_cross_entropy_whatever_is_computed_at_once(
    scale: float, smoothing: float, together: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "CHUNK_SCORES", {"cpu": together})
    values, matrix, bias = parts(torch.float64, scale)
    found, nll = OutputFeatures(values, matrix, bias).cross_entropy(TARGETS, smoothing)
    scores = values @ matrix.T + bias
    expected = F.cross_entropy(scores, TARGETS, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(nll, F.cross_entropy(scores, TARGETS, reduction="none").detach())
    pull = torch.linspace(-1, 2, WORDS).double()
    ours, theirs = (torch.autograd.grad((loss * pull).sum(), (values, matrix, bias)) for loss in (found, expected))
    torch.testing.assert_close(ours, theirs)


def test_the_gradient_is_that_of_small_differences():
    assert torch.autograd.gradcheck(
        lambda *given: OutputFeatures(*given).cross_entropy(TARGETS, label_smoothing=0.2).loss, parts(torch.float64)
    )


def test_of_what_is_kept_only_the_scores_have_their_size():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()), lambda kept: kept):
        OutputFeatures(*parts(torch.float32)).cross_entropy(TARGETS)
    assert sorted(kept)[-2:] == [V * WIDTH, WORDS * V]


def test_under_autocast_products_are_in_half_the_precision_and_sums_are_not():
    values, matrix, bias = parts(torch.float32)
    expected, _ = OutputFeatures(values, matrix, bias).cross_entropy(TARGETS)
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = OutputFeatures(values, matrix, bias).cross_entropy(TARGETS)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    found.sum().backward()
    assert values.grad is not None
    assert values.grad.dtype == torch.float32
