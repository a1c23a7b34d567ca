"""Products by oneDNN against those of torch, and the choice between them."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from showattendtell.errors import UserError
from showattendtell.losses.caption import SoftLoss, total
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.kernels import products
from showattendtell.models.kernels.products import Linear, linear, matmul, replace_linear_layers

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


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[float | None], str]]:
    """The choice of a new process in which oneDNN is so many times as fast; None: no timing is allowed."""
    monkeypatch.delenv(products.MATMUL, raising=False)
    monkeypatch.setenv("SHOWATTENDTELL_CACHE", str(tmp_path / "cache"))

    def choose(gain: float | None = None) -> str:
        products.library.cache_clear()
        monkeypatch.setattr(products, "onednn_gain", lambda: pytest.fail("timed") if gain is None else gain)
        return products.library()

    yield choose
    products.library.cache_clear()


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


def test_matrices_may_be_views(onednn: list):
    rows, matrix = numbers(7, 12).T, numbers(10, 7)[::2]
    torch.testing.assert_close(linear(rows, matrix), rows @ matrix.T)
    torch.testing.assert_close(matmul(rows, matrix.T), rows @ matrix.T)
    assert len(onednn) == 2


@pytest.mark.parametrize(
    ("rows", "dtype"), [(9, torch.float64), (9, torch.bfloat16), (1, torch.float32), (0, torch.float32)], ids=str
)
def test_other_precisions_and_single_rows_are_left_to_torch(onednn: list, rows: int, dtype: torch.dtype):
    inputs, matrix = numbers(rows, 7).to(dtype), numbers(5, 7).to(dtype)
    assert torch.equal(linear(inputs, matrix), F.linear(inputs, matrix))
    assert onednn == []


def test_small_products_are_left_to_torch(onednn: list, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(products, "MIN_MULTIPLICATIONS", 4 * 5 * 7)
    for rows in (3, 4):
        linear(numbers(rows, 7), numbers(5, 7))
    assert onednn == [(4, 7)]


def test_an_autocast_is_respected(onednn: list):
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(numbers(9, 7), numbers(5, 7)).dtype == torch.bfloat16
    assert onednn == []


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


def test_the_layers_of_a_network_keep_their_weights(onednn: list):
    network = nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3))
    inputs, names = numbers(9, 7), list(network.state_dict())
    expected = network(inputs)
    replace_linear_layers(network)
    torch.testing.assert_close(network(inputs), expected)
    assert list(network.state_dict()) == names
    assert len(onednn) == 2


def test_an_exported_layer_is_that_of_torch(onednn: list):
    program = torch.export.export(Linear(7, 5).requires_grad_(False), (numbers(9, 7),))
    calls = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert calls == {"aten.linear.default"}
    assert onednn == []


@pytest.mark.parametrize(("gain", "expected"), [(2.2, "onednn"), (1.0, "torch")])
def test_the_faster_library_is_used_and_stored(choose: Callable, gain: float, expected: str):
    assert choose(gain) == expected
    assert choose() == expected


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (torch, "__version__", "2.99"),
        (torch, "get_num_threads", lambda: 99),
        (products, "processor_model", lambda: "Z80"),
    ],
)
def test_another_torch_processor_or_number_of_threads_is_timed_again(
    choose: Callable, monkeypatch: pytest.MonkeyPatch, place: object, name: str, value: object
):
    assert choose(2.2) == "onednn"
    with monkeypatch.context() as changed:
        changed.setattr(place, name, value)
        assert choose(1.0) == "torch"
    assert choose() == "onednn"


@pytest.mark.parametrize("content", ["", "[1]", "[" * 10**5, '{"KEY": "mkl"}', "\xff"], ids=lambda content: content[:9])
def test_a_damaged_file_is_replaced(choose: Callable, tmp_path: Path, content: str):
    choose(2.2)
    file = tmp_path / "cache/matmul.json"
    (key,) = json.loads(file.read_text())
    file.write_text(content.replace("KEY", key), encoding="latin-1")
    assert choose(1.0) == "torch"
    assert json.loads(file.read_text()) == {key: "torch"}
    assert [path.name for path in file.parent.iterdir()] == ["matmul.json"]


def test_without_a_folder_to_write_to_it_is_timed_again(choose: Callable, monkeypatch: pytest.MonkeyPatch):
    for folder in ("/proc/none", "/dev/null", "~nobody-of-this-name/cache"):
        monkeypatch.setenv("SHOWATTENDTELL_CACHE", folder)
        assert choose(2.2) == "onednn"
        assert choose(1.0) == "torch"


def test_both_libraries_are_timed():
    assert 0.05 < products.onednn_gain(8, 16, 16) < 20


def test_the_choice_can_be_fixed(choose: Callable, monkeypatch: pytest.MonkeyPatch):
    choose(2.2)
    for name in ("torch", "onednn"):
        monkeypatch.setenv(products.MATMUL, name)
        assert choose() == name
    monkeypatch.setenv(products.MATMUL, "mkl")
    with pytest.raises(UserError, match="SHOWATTENDTELL_MATMUL=mkl is not one of torch, onednn"):
        choose()
