"""The kernels are held against the recurrence in double precision, which `test_unroll` holds against single steps.

They run on a GPU, or interpreted on the CPU if TRITON_INTERPRET=1 was set before Python started.
"""

import importlib.util
import os
import subprocess
import sys
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Ensemble
from showattendtell.losses.caption import SoftLoss, total
from showattendtell.losses.reinforce import HardLoss
from showattendtell.models import kernels
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.hard_attention import HardAttention
from showattendtell.models.interfaces import Packing
from showattendtell.models.kernels.cross_entropy import OutputFeatures
from showattendtell.models.kernels.parallel import CaptionGroups
from showattendtell.models.kernels.recurrence import _Recurrence
from showattendtell.text.vocabulary import EOS, PAD, SPECIAL, Vocabulary

ON_GPU, INTERPRETED = torch.cuda.is_available(), os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if ON_GPU else "cpu"
HAS_TRITON = importlib.util.find_spec("triton") is not None
runs_kernels = pytest.mark.skipif(
    not (HAS_TRITON and (ON_GPU or INTERPRETED)), reason="needs Triton, and a GPU or TRITON_INTERPRET=1"
)


@pytest.mark.slow
@pytest.mark.skipif(
    ON_GPU or INTERPRETED or not HAS_TRITON, reason="the kernels are tested in this process, or cannot be"
)
def test_interpreted_kernels():
    """Triton's own functions are compiled or interpreted once and for all when it is imported."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", __file__]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout


TOKENS = torch.tensor([[4, 5, EOS, PAD], [4, 5, 6, EOS], [7, EOS, PAD, PAD], [9, 9, 9, EOS], [4, EOS, PAD, PAD]])
IMAGES = torch.tensor([2, 0, 1, 0, 2])

SIZES = {"small": (7, 5, 6, 4), "odd": (19, 33, 17, 9), "one": (1, 1, 1, 1), "large": (260, 520, 530, 30)}
"""L, A, D and n."""


def make_arguments(sizes: tuple[int, int, int, int], gate: str, is_hard: bool) -> tuple[list[Any], list[Tensor]]:
    """Return the arguments of the recurrence: those of `_Recurrence` before the keys, and the rest, in float64."""
    L, A, D, n = sizes  # noqa: N806
    generator = torch.Generator().manual_seed(0)
    packing = Packing.with_padding(TOKENS)
    num_words, captions = sum(packing.sizes), len(TOKENS)
    width = 4 * n + A + {"none": 0, "scalar": 1, "channel": D}[gate]
    shapes = [(3, L, A), (3, L, D), (num_words, 4 * n), (captions, n), (captions, n), (width, n), (width,), (4 * n, D)]
    inputs = [torch.randn(*shape, generator=generator, dtype=torch.double) for shape in [*shapes, (A,)]]
    for matrix in (inputs[5], inputs[7]):
        matrix /= matrix.shape[1] ** 0.5
    given = use_expectation = None
    if is_hard:
        given = torch.randint(L, (num_words, 1), generator=generator)
        given[::3] = -1
        use_expectation = torch.tensor([True, False, False, True, False])
    return [packing, IMAGES[packing.order], given, use_expectation], inputs


def likeliest(weights: Tensor, given: Tensor | None) -> Tensor:
    sampled = weights.argmax(dim=-1)
    return sampled if given is None else torch.where(given >= 0, given, sampled)


def differentiate(results: tuple[Any, ...], inputs: list[Tensor]) -> list[Tensor]:
    """Return the results, and the gradients of a random sum of them."""
    hidden, context, scores, beta, sampled = results
    values = [hidden, context, scores.log_softmax(dim=1), beta]
    generator = torch.Generator().manual_seed(1)
    terms = [
        (value * torch.randn(value.shape, generator=generator, dtype=torch.double).to(value)).double().sum()
        for value in values
    ]
    gradients = torch.autograd.grad(torch.stack(terms).sum(), inputs)
    return [*values, *([] if sampled is None else [sampled]), *gradients]


GATES = ("none", "scalar", "channel")
CASES = [
    *product(["small"], GATES, [False, True]),
    ("odd", "channel", False),
    ("odd", "scalar", True),
    ("one", "scalar", False),
    ("large", "channel", False),
    ("large", "scalar", True),
]


@runs_kernels
@pytest.mark.parametrize(("size", "gate", "is_hard"), CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 0.05)])
def test_results_and_gradients(size, gate, is_hard, dtype, tolerance, monkeypatch):
    if INTERPRETED and (size == "large" or dtype == torch.bfloat16):
        pytest.skip("too slow, or no such numbers, without a GPU")
    from showattendtell.extensions.cuda import recurrence

    if INTERPRETED and size == "odd":  # several blocks of everything
        monkeypatch.setattr(recurrence, "MAX_CHANNELS", 16)
        monkeypatch.setattr(recurrence, "MAX_REGIONS", 8)
        monkeypatch.setattr(recurrence, "CONTEXT_CHANNELS", 8)
        monkeypatch.setattr(recurrence, "LSTM_UNITS", 4)
    (packing, images, given, use_expectation), exact = make_arguments(SIZES[size], gate, is_hard)
    exact = [part.requires_grad_() for part in exact]
    groups, sample = CaptionGroups(images, 3), likeliest if is_hard else None
    expected = differentiate(_Recurrence.apply(packing, groups, sample, given, use_expectation, *exact), exact)

    noise = torch.zeros(sum(packing.sizes), SIZES[size][0]) if is_hard else None
    options = [None if part is None else part.to(DEVICE) for part in (images, noise, given, use_expectation)]
    dtypes = [dtype] * 3 + [torch.float32] * 2 + [dtype] * 3 + [torch.float32]
    inputs = [part.detach().to(DEVICE, kind).requires_grad_() for part, kind in zip(exact, dtypes, strict=True)]
    steps = len(packing.sizes)
    found = differentiate(recurrence.GPURecurrence.apply(steps, *options, *inputs), inputs)
    assert len(found) == len(expected)
    for value, right in zip(found, expected, strict=True):
        error = (value.cpu().double() - right.double()).norm()
        assert error <= tolerance * right.double().norm() + 1e-6


KINDS: dict[str, tuple[Any, Any]] = {
    "soft": (SoftAttention, SoftLoss),
    "hard": (partial(HardAttention, gate="scalar", inverse_temperature=2.0), HardLoss),
    "three samples": (partial(HardAttention, estimator="rloo", num_samples=3), HardLoss),
}


def make_captioner(attention: Any) -> Captioner:
    torch.manual_seed(0)
    captioner = Captioner(attention(7, 6), LSTMDecoder(11, 7, embedding_dim=5, hidden_dim=6, dropout=0.0))
    with torch.no_grad():
        for parameter in captioner.attention.score.parameters():
            parameter.normal_()
    return captioner.to(DEVICE)


@runs_kernels
@pytest.mark.parametrize("kind", KINDS)
def test_losses_of_models(kind: str, monkeypatch: pytest.MonkeyPatch):
    """With locations that are the likeliest, so that both ways sample alike."""
    monkeypatch.setattr(HardAttention, "takes_likeliest", True)
    monkeypatch.setattr(HardAttention, "expectation_prob", 0.5, raising=False)
    attention, loss = KINDS[kind]
    regions = torch.randn(3, 9, 7, generator=torch.Generator().manual_seed(1))

    def gradients() -> dict[str, Tensor]:
        captioner, given = make_captioner(attention), regions.to(DEVICE).requires_grad_()
        torch.manual_seed(2)
        value = total(loss().to(DEVICE)(captioner, given, IMAGES.to(DEVICE), TOKENS.to(DEVICE)).terms)
        value.backward()
        learned = {name: part.grad for name, part in captioner.named_parameters()}
        found = {"loss": value, "regions": given.grad, **learned}
        return {name: part.detach().cpu() for name, part in found.items() if part is not None}

    found = gradients()
    monkeypatch.setattr(kernels, "device_module", lambda name, device: None)
    expected = gradients()
    assert found.keys() == expected.keys()
    for name, right in expected.items():
        torch.testing.assert_close(found[name], right, rtol=1e-3, atol=2e-5, msg=name)


@runs_kernels
@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
@pytest.mark.parametrize("num_words", [5, 3000])
def test_cross_entropy(num_words: int, label_smoothing: float, monkeypatch: pytest.MonkeyPatch):
    """Compared with torch's in double precision. A word with bias -inf is impossible."""
    torch.manual_seed(0)
    exact = [torch.randn(*shape).double().requires_grad_() for shape in ((6, 4), (num_words, 4), (num_words,))]
    if not label_smoothing:
        exact[2].data[1] = -torch.inf
    targets, gradient = torch.tensor([0, 3, 2, 4, 4, 0]), torch.randn(6)
    right = F.cross_entropy(F.linear(*exact), targets, reduction="none", label_smoothing=label_smoothing)
    expected = [right, *torch.autograd.grad((right * gradient.double()).sum(), exact)]
    inputs = [part.detach().float().to(DEVICE).requires_grad_() for part in exact]
    loss, nll = OutputFeatures(*inputs).cross_entropy(targets.to(DEVICE), label_smoothing)
    found = [loss, *torch.autograd.grad((loss * gradient.to(DEVICE)).sum(), inputs)]
    for value, true in zip(found, expected, strict=True):
        torch.testing.assert_close(value.cpu().double(), true, rtol=1e-4, atol=1e-5)
    nlls = F.cross_entropy(F.linear(*exact), targets, reduction="none")
    torch.testing.assert_close(nll.cpu().double(), nlls, rtol=1e-4, atol=1e-5)


@runs_kernels
@pytest.mark.parametrize("gate", ["none", "scalar", "channel"])
def test_beam_search(gate: str, monkeypatch: pytest.MonkeyPatch):
    captioner = make_captioner(partial(SoftAttention, gate=gate)).eval()
    regions = torch.randn(3, 9, 7, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    vocabulary = Vocabulary([*SPECIAL, *"abcdefg"])

    def search() -> list[list[list[int]]]:
        captions = BeamSearch(beam_size=3, max_length=6).generate(Ensemble([captioner]), [regions], vocabulary)
        return [[candidate.tokens for candidate in candidates] for candidates in captions]

    found = search()
    monkeypatch.setattr(kernels, "device_module", lambda name, device: None)
    assert found == search()


@runs_kernels
def test_samples_follow_alpha():
    """Gumbel noise: of 20,000 samples each location has its share of alpha within 4 standard errors."""
    attention = make_captioner(partial(HardAttention, gate="none")).attention
    weights = torch.tensor([0.5, 0.3, 0.15, 0.05])
    noise = attention.noise(20_000, torch.zeros(1, 4, 1, device=DEVICE)).cpu()
    shares = (weights.log() + noise).argmax(dim=1).bincount(minlength=4) / 20_000
    assert (shares - weights).abs().max() < 4 * (0.25 / 20_000) ** 0.5
