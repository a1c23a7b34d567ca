"""Products by oneDNN against those of torch, and the choice between them."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from showattendtell.errors import UserError
from showattendtell.losses.caption import SoftLoss, total
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.kernels import products
from showattendtell.models.kernels.products import Linear, linear

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Products by oneDNN; returns the shapes of the inputs that it gets."""
    shapes, multiply = [], products._onednn

    def counted(inputs: Tensor, *others: Tensor) -> Tensor:
        shapes.append(tuple(inputs.shape))
        return multiply(inputs, *others)

    monkeypatch.setattr(products, "library", lambda: "onednn")
    monkeypatch.setattr(products, "_onednn", counted)
    monkeypatch.setattr(products, "MIN_MULTIPLICATIONS", 0)
    return shapes


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("shape", [(9, 7), (2, 3, 7), (2, 2, 2, 7)], ids=str)
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no bias"])
def test_a_product_and_its_gradients_are_those_of_torch(onednn: list, shape: tuple[int, ...], with_bias: bool):
    def run(multiply: Callable) -> list[Tensor]:
        given = [numbers(*shape), numbers(5, 7), *([numbers(5)] if with_bias else [])]
        given = [tensor.requires_grad_() for tensor in given]
        output = multiply(*given)
        output.square().sum().backward()
        return [output, *(tensor.grad for tensor in given)]

    torch.testing.assert_close(run(linear), run(F.linear))
    rows = torch.Size(shape[:-1]).numel()
    assert onednn == [(rows, 7), (rows, 5), (5, rows)]


def test_a_model_learns_the_same_with_both_libraries(onednn: list, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    captioner = Captioner(SoftAttention(6, 8), LSTMDecoder(11, 6, 7, 8, dropout=0.0))
    regions, index = numbers(3, 5, 6), torch.tensor([0, 0, 1, 1, 2, 2])
    tokens = torch.randint(4, 11, (6, 5), generator=torch.Generator().manual_seed(0))

    def run() -> list[Tensor]:
        model = copy.deepcopy(captioner)
        loss = total(SoftLoss()(model, regions, index, tokens).terms)
        loss.backward()
        return [loss.detach(), *(parameter.grad for parameter in model.parameters())]

    found = run()
    assert len(onednn) > 20
    monkeypatch.setattr(products, "library", lambda: "torch")
    torch.testing.assert_close(found, run())


def test_an_exported_layer_is_that_of_torch(onednn: list):
    program = torch.export.export(Linear(7, 5).requires_grad_(False), (numbers(9, 7),))
    calls = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert calls == {"aten.linear.default"}
    assert onednn == []


@pytest.mark.parametrize(
    ("given", "processor", "expected"),
    [("", "AMD EPYC", "onednn"), ("", "Intel(R) Xeon(R)", "torch"), ("torch", "AMD EPYC", "torch")],
)
def test_the_library_is_that_of_the_processor_unless_it_is_given(
    monkeypatch: pytest.MonkeyPatch, given: str, processor: str, expected: str
):
    monkeypatch.setenv(products.MATMUL, given)
    monkeypatch.setattr(products, "processor_model", lambda: processor)
    assert products.library.__wrapped__() == expected


def test_an_unknown_library_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(products.MATMUL, "mkl")
    with pytest.raises(UserError, match="SHOWATTENDTELL_MATMUL=mkl is not one of torch, onednn"):
        products.library.__wrapped__()
