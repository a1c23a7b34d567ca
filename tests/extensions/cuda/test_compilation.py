"""The kernels are compiled for GPUs that this machine need not have, up to their machine code, and not run."""

import importlib.util
import os
from types import SimpleNamespace

import pytest
import torch

from showattendtell.extensions.cuda.kernels import MIN_CAPABILITY

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or torch.cuda.is_available() or "TRITON_INTERPRET" in os.environ,
    reason="needs Triton that compiles; with a GPU test_gpu.py runs the kernels",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "gate", "is_hard", "dtype"),
    [
        (90, "scalar", False, torch.bfloat16),
        (10 * MIN_CAPABILITY[0] + MIN_CAPABILITY[1], "none", False, torch.float32),
        (75, "channel", True, torch.float16),
        (120, "scalar", True, torch.float32),
    ],
)
def test_kernels_compile(capability, gate, is_hard, dtype, tmp_path, monkeypatch):
    import triton
    from triton.backends.compiler import GPUTarget

    from showattendtell.extensions.cuda import cross_entropy, recurrence

    written = {**vars(recurrence), **vars(cross_entropy)}
    kernels = {name: value for name, value in written.items() if name.endswith("_kernel")}
    compiled = set()

    def compile_only(kernel, *arguments, **options):
        compiled.add(kernel.__name__)
        return run(kernel, *arguments, **{**options, "warmup": True})

    run, target = triton.JITFunction.run, GPUTarget("cuda", capability, 32)
    driver = SimpleNamespace(get_current_target=lambda: target, get_current_device=int, get_current_stream=lambda _: 0)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    monkeypatch.setattr(triton.JITFunction, "run", compile_only)
    monkeypatch.setattr(torch, "empty", torch.zeros)  # what the kernels would write
    monkeypatch.setattr(recurrence, "_has_fast_tanh", lambda *_: capability >= 75 and dtype != torch.float32)
    for kernel in kernels.values():
        kernel.device_caches.clear()

    def zeros(*shape, kind=dtype):
        return torch.zeros(*shape, dtype=kind, requires_grad=True)

    captions, steps, (L, A, D, n) = 5, 2, (19, 33, 12, 9)  # noqa: N806
    words, width = captions * steps, 4 * n + A + {"none": 0, "scalar": 1, "channel": D}[gate]
    images = torch.zeros(captions, dtype=torch.long)
    sampling = (torch.zeros(words, L), None, images == 1) if is_hard else (None, None, None)
    states = [zeros(captions, n), zeros(captions, n, kind=torch.float32)]
    weights = [zeros(width, n), zeros(width), zeros(4 * n, D), zeros(A, kind=torch.float32)]
    inputs = [zeros(3, L, A), zeros(3, L, D), zeros(words, 4 * n), *states, *weights]
    hidden, context, *_ = recurrence.GPURecurrence.apply(steps, images, *sampling, *inputs)
    (hidden.sum() + context.sum()).backward()
    targets = torch.zeros(words, dtype=torch.long)
    loss, _ = cross_entropy.GPUCrossEntropy.apply(zeros(words, 8), zeros(3000, 8), zeros(3000), targets, 0.1)
    loss.sum().backward()
    recurrence.score_and_read(zeros(3, L, A), zeros(3, L, D), images, zeros(captions, A), weights[-1])
    assert compiled == set(kernels)
    assert len(list(tmp_path.rglob("*.cubin"))) >= len(kernels)
