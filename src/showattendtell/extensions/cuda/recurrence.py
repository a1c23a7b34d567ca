"""The fused recurrence on a GPU: the equations of `models.kernels.recurrence`, a step in five launches each way.

Forward, per step: a product of h; `score_kernel`, a program per caption and block of regions; `context_kernel`, a
program per caption and block of channels: the softmax, a sample, the weighted sum and the gate; a product of z;
`lstm_kernel`. Backward: `lstm_backward_kernel`; a product; `context_backward_kernel` and `query_backward_kernel`, which
are parallel as the two above; a product. After the last step `keys_backward_kernel` adds up the gradients of all steps
and reads the keys once. A program per caption alone would leave most of the card idle.

Keys and regions are read through the index of the image: nothing is copied per caption. Values are computed in
float32; matrices, keys, regions, h and z are stored in the precision of the products. Names are those of the equations,
and sizes those of `showattendtell.types`.
"""
# ruff: noqa: E741, N803, N806, SIM102

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

SCORE_REGIONS, CONTEXT_CHANNELS, KEY_REGIONS, LSTM_UNITS = 16, 64, 8, 256
"""Regions, channels or units of a program."""

MAX_CHANNELS, MAX_REGIONS = 512, 256
"""The largest numbers that a program reads at once."""


@triton.jit
def read(pointers, inside):  # type: ignore[no-untyped-def]
    return tl.load(pointers, mask=inside, other=0).to(tl.float32)


@triton.jit
def read_rows(matrix, first, l, L, a, A):  # type: ignore[no-untyped-def]
    """Return the elements in columns `a` of `A` and rows `l` of `L` of an image whose first row is `first`."""
    inside = (l[:, None] < L) & (a[None, :] < A)
    return read(matrix + (first + l[:, None]) * A + a[None, :], inside)


@triton.jit
def write(pointers, values, inside):  # type: ignore[no-untyped-def]
    tl.store(pointers, values.to(pointers.dtype.element_ty), mask=inside)


@triton.jit
def tanh(x, FAST: tl.constexpr):  # type: ignore[no-untyped-def]
    """`FAST`: one instruction, with a relative error of 2^-11, which is less than that of half precision."""
    if FAST:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def score_kernel(  # type: ignore[no-untyped-def]
    keys, images, from_hidden, weights, scores, L, A, query_at, stride,
    FAST: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Write e_l = u . tanh(p_l + q) of `ROWS` regions."""
    b, l = tl.program_id(0), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    first = tl.load(images + b).to(tl.int64) * L
    total = tl.zeros([ROWS], tl.float32)
    for start in range(0, A, WIDTH):
        a = start + tl.arange(0, WIDTH)
        q = read(from_hidden + b * stride + query_at + a, a < A)
        u = read(weights + a, a < A)
        p = read_rows(keys, first, l, L, a, A)
        total += tl.sum(tanh(p + q[None, :], FAST) * u[None, :], axis=1)
    write(scores + b * L + l, total, l < L)


@triton.jit
def context_kernel(  # type: ignore[no-untyped-def]
    regions, images, from_hidden, scores, noise, given, samples, use_expectation, alphas, sums, contexts, betas,
    L, D, beta_at, stride, GATE: tl.constexpr, HARD: tl.constexpr, ALL: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr
):  # fmt: skip
    """Write r = sum_l m_l a_l and z = beta r of `WIDTH` channels; the first program of a caption also writes alpha, the
    sample and a scalar beta. `ALL` is the number of regions as a power of 2, `GATE` the number of gates: 0, 1 or 2 for
    one per channel."""
    b, d = tl.program_id(0), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    every = tl.arange(0, ALL)
    e = tl.load(scores + b * L + every, mask=every < L, other=-float("inf"))
    largest = tl.max(e, axis=0)
    normalizer = tl.sum(tl.exp(e - largest), axis=0)
    is_first = tl.program_id(1) == 0
    if is_first:
        write(alphas + b * L + every, tl.exp(e - largest) / normalizer, every < L)
    first = tl.load(images + b).to(tl.int64) * L
    total = tl.zeros([WIDTH], tl.float32)
    is_sampled = False
    if HARD:
        # argmax_l (e_l + g_l) with Gumbel noise g is a sample of alpha
        noisy = e + read(noise + b * L + every, every < L)
        s = tl.argmax(noisy, axis=0).to(tl.int64)
        chosen = tl.load(given + b)
        s = tl.where(chosen >= 0, chosen, s)
        is_sampled = tl.load(use_expectation + b) == 0
        if is_first:
            tl.store(samples + b, s)
        if is_sampled:
            total = read(regions + (first + s) * D + d, d < D)
    if not is_sampled:
        for start in range(0, L, ROWS):
            l = start + tl.arange(0, ROWS)
            alpha = tl.load(scores + b * L + l, mask=l < L, other=-float("inf"))
            alpha = tl.exp(alpha - largest) / normalizer
            total += tl.sum(alpha[:, None] * read_rows(regions, first, l, L, d, D), axis=0)
    write(sums + b * D + d, total, d < D)
    if GATE == 1:
        beta = tl.sigmoid(tl.load(from_hidden + b * stride + beta_at).to(tl.float32))
        if is_first:
            tl.store(betas + b, beta)
        total = total * beta
    if GATE == 2:
        betas_d = tl.sigmoid(read(from_hidden + b * stride + beta_at + d, d < D))
        write(betas + b * D + d, betas_d, d < D)
        total = total * betas_d
    write(contexts + b * D + d, total, d < D)


@triton.jit
def lstm_kernel(  # type: ignore[no-untyped-def]
    word_gates, from_hidden, from_context, cell_before, activations, cells, hiddens, n, stride,
    FAST: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Write c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c') and the four activations."""
    b, j = tl.program_id(0), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = j < n
    x, h, z = word_gates + b * 4 * n + j, from_hidden + b * stride + j, from_context + b * 4 * n + j
    i = tl.sigmoid(_sum(x, h, z, inside))
    f = tl.sigmoid(_sum(x + n, h + n, z + n, inside))
    o = tl.sigmoid(_sum(x + 2 * n, h + 2 * n, z + 2 * n, inside))
    g = tanh(_sum(x + 3 * n, h + 3 * n, z + 3 * n, inside), FAST)
    c = f * read(cell_before + b * n + j, inside) + i * g
    stored = activations + b * 4 * n + j
    write(stored, i, inside)
    write(stored + n, f, inside)
    write(stored + 2 * n, o, inside)
    write(stored + 3 * n, g, inside)
    write(cells + b * n + j, c, inside)
    write(hiddens + b * n + j, o * tanh(c, FAST), inside)


@triton.jit
def _sum(x, y, z, inside):  # type: ignore[no-untyped-def]
    return read(x, inside) + read(y, inside) + read(z, inside)


@triton.jit
def lstm_backward_kernel(  # type: ignore[no-untyped-def]
    grad_hidden, loss_grad_hidden, activations, cells, cell_before, grad_cell, grad_from_hidden, n, stride,
    FAST: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Write the gradient of the gates, and that of c over that of c'."""
    b, j = tl.program_id(0), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = j < n
    stored = activations + b * 4 * n + j
    i = read(stored, inside)
    f = read(stored + n, inside)
    o = read(stored + 2 * n, inside)
    g = read(stored + 3 * n, inside)
    tanh_cell = tanh(read(cells + b * n + j, inside), FAST)
    grad_h = read(grad_hidden + b * n + j, inside) + read(loss_grad_hidden + b * n + j, inside)
    # h' = o tanh(c'):  dc' += dh' o (1 - tanh^2 c')
    grad_c = read(grad_cell + b * n + j, inside) + grad_h * o * (1 - tanh_cell * tanh_cell)
    before = read(cell_before + b * n + j, inside)
    written = grad_from_hidden + b * stride + j
    write(written, grad_c * g * i * (1 - i), inside)
    write(written + n, grad_c * before * f * (1 - f), inside)
    write(written + 2 * n, grad_h * tanh_cell * o * (1 - o), inside)
    write(written + 3 * n, grad_c * i * (1 - g * g), inside)
    write(grad_cell + b * n + j, grad_c * f, inside)


@triton.jit
def context_backward_kernel(  # type: ignore[no-untyped-def]
    regions, images, alphas, sums, betas, use_expectation, grad_context, loss_grad_context, loss_grad_scores,
    loss_grad_betas, grad_scores, grad_sums, grad_from_hidden, L, D, beta_at, stride, GATE: tl.constexpr,
    HARD: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Write de of `ROWS` regions from dz; the first program of a caption also writes dr and the gradient of the gate.

    dr = beta dz,  dm_l = a_l . dr,  dbeta = r . dz;  de_l = alpha_l (dm_l - sum_j alpha_j dm_j), and the sum is r . dr.
    A sample passes no gradient on.
    """
    b, l = tl.program_id(0), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_first = tl.program_id(1) == 0
    first = tl.load(images + b).to(tl.int64) * L
    beta = 1.0
    if GATE == 1:
        beta = tl.load(betas + b)
    is_expectation = True
    if HARD:
        is_expectation = tl.load(use_expectation + b) != 0
    along, along_gate = tl.zeros([1], tl.float32), tl.zeros([1], tl.float32)
    grad_maps = tl.zeros([ROWS], tl.float32)
    for start in range(0, D, WIDTH):
        d = start + tl.arange(0, WIDTH)
        r = read(sums + b * D + d, d < D)
        dz = read(grad_context + b * D + d, d < D) + read(loss_grad_context + b * D + d, d < D)
        dr = dz * beta
        if GATE == 2:
            channel_beta = read(betas + b * D + d, d < D)
            dr = dz * channel_beta
            if is_first:
                dbeta = dz * r + read(loss_grad_betas + b * D + d, d < D)
                write(grad_from_hidden + b * stride + beta_at + d, dbeta * channel_beta * (1 - channel_beta), d < D)
        if is_first:
            write(grad_sums + b * D + d, dr, d < D)
        along += tl.sum(dr * r, axis=0)
        along_gate += tl.sum(dz * r, axis=0)
        if is_expectation:
            grad_maps += tl.sum(read_rows(regions, first, l, L, d, D) * dr[None, :], axis=1)
    if GATE == 1:
        if is_first:
            dbeta = along_gate + tl.load(loss_grad_betas + b).to(tl.float32)
            one = tl.arange(0, 1)
            write(grad_from_hidden + b * stride + beta_at + one, dbeta * beta * (1 - beta), one < 1)
    de = read(loss_grad_scores + b * L + l, l < L)
    if is_expectation:
        de += read(alphas + b * L + l, l < L) * (grad_maps - along)
    write(grad_scores + b * L + l, de, l < L)


@triton.jit
def query_backward_kernel(  # type: ignore[no-untyped-def]
    keys, images, from_hidden, weights, grad_scores, grad_from_hidden, L, A, query_at, stride, FAST: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Write dq_a = u_a sum_l de_l (1 - tanh^2(p_l + q)) of `WIDTH` channels."""
    b, a = tl.program_id(0), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    first = tl.load(images + b).to(tl.int64) * L
    q = read(from_hidden + b * stride + query_at + a, a < A)
    total = tl.zeros([WIDTH], tl.float32)
    for start in range(0, L, ROWS):
        l = start + tl.arange(0, ROWS)
        de = read(grad_scores + b * L + l, l < L)
        t = tanh(read_rows(keys, first, l, L, a, A) + q[None, :], FAST)
        total += tl.sum(de[:, None] * (1 - t * t), axis=0)
    write(grad_from_hidden + b * stride + query_at + a, total * read(weights + a, a < A), a < A)


@triton.jit(do_not_specialize=["B", "T"])
def keys_backward_kernel(  # type: ignore[no-untyped-def]
    keys, images, from_hidden, weights, grad_scores, grad_keys, grad_weights, L, A, B, T, query_at, stride,
    FAST: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Write dp and this block's part of du, summed over the T words of the captions of an image."""
    image, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    l, a = block * ROWS + tl.arange(0, ROWS), tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    inside = (l[:, None] < L) & (a[None, :] < A)
    p = read_rows(keys, image * L, l, L, a, A)
    dp, du = tl.zeros([ROWS, WIDTH], tl.float32), tl.zeros([ROWS, WIDTH], tl.float32)
    for b in range(0, B):
        if tl.load(images + b) == image:
            for step in range(0, T):
                word = (step * B + b).to(tl.int64)
                q = read(from_hidden + word * stride + query_at + a, a < A)
                de = read(grad_scores + word * L + l, l < L)
                t = tanh(p + q[None, :], FAST)
                du += de[:, None] * t
                dp += de[:, None] * (1 - t * t)
    dp *= read(weights + a, a < A)[None, :]
    write(grad_keys + (image * L + l[:, None]) * A + a[None, :], dp, inside)
    write(grad_weights + (image * tl.num_programs(1) + block) * A + a, tl.sum(du, axis=0), a < A)


class GPURecurrence(torch.autograd.Function):
    """`recurrence._Recurrence` with the kernels of this module, for captions packed with their padding."""

    @staticmethod
    def forward(
        ctx: Any,
        steps: int,
        images: Tensor,
        noise: Tensor | None,
        given: Tensor | None,
        use_expectation: Tensor | None,
        keys: Tensor,
        regions: Tensor,
        word_gates: Tensor,
        first_hidden: Tensor,
        first_cell: Tensor,
        state_matrix: Tensor,
        bias: Tensor,
        context_matrix: Tensor,
        score_weights: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Return h (N, n), z (N, D), e (N, L), beta (N, G), and hard attention's locations (N, 1).

        Args:
            steps: T; the N = T B words are all first words, then all second words, and so on.
            images: (B,) the image of each caption.
            noise: hard attention: Gumbel noise (N, L), or zeros for the likeliest location.

        The other arguments are those of `_Recurrence`.
        """
        dtype, device = state_matrix.dtype, keys.device
        ctx.dtypes = [part.dtype for part in (keys, regions, word_gates, first_hidden, first_cell)]
        keys, regions = keys.detach().to(dtype).contiguous(), regions.detach().to(dtype).contiguous()
        images, word_gates = images.to(torch.int32), word_gates.contiguous()
        first_hidden, first_cell = first_hidden.to(dtype).contiguous(), first_cell.float().contiguous()
        weights = score_weights.detach().float().contiguous()
        (_, L, A), D, (B, n), N = keys.shape, regions.shape[2], first_hidden.shape, len(word_gates)
        width = len(state_matrix)
        num_gates = width - 4 * n - A
        # cuBLAS takes slow kernels for rows that are no multiple of 16 bytes
        stride = -(-width // 8) * 8
        matrix, padded_bias = state_matrix.new_zeros(stride, n), bias.new_zeros(stride)
        matrix[:width], padded_bias[:width] = state_matrix, bias
        single: Any = {"dtype": torch.float32, "device": device}
        from_hidden, contexts = keys.new_empty(N, stride), keys.new_empty(N, D)
        scores, alphas, sums = (torch.empty(N, size, **single) for size in (L, L, D))
        betas, cells = torch.empty(N, num_gates, **single), torch.empty(N, n, **single)
        activations, hiddens = keys.new_empty(N, 4 * n), keys.new_empty(N, n)
        from_context = keys.new_empty(B, 4 * n)
        samples = None
        if noise is not None:
            samples = torch.empty(N, 1, dtype=torch.long, device=device)
            given = torch.full_like(samples, -1) if given is None else given
        use_expectation = None if use_expectation is None else use_expectation.to(torch.int8).contiguous()
        settings: Any = {"GATE": min(num_gates, 2), "HARD": samples is not None}
        is_fast = _has_fast_tanh(dtype, device)
        hidden, cell = first_hidden, first_cell
        for step in range(steps):
            rows = slice(step * B, (step + 1) * B)
            torch.addmm(padded_bias, hidden, matrix.T, out=from_hidden[rows])
            score_kernel[B, triton.cdiv(L, SCORE_REGIONS)](
                keys, images, from_hidden[rows], weights, scores[rows], L, A, 4 * n, stride,
                FAST=is_fast, ROWS=SCORE_REGIONS, WIDTH=_block(A),
            )  # fmt: skip
            sampling = [None if part is None else part[rows] for part in (noise, given, samples)]
            context_kernel[B, triton.cdiv(D, CONTEXT_CHANNELS)](
                regions, images, from_hidden[rows], scores[rows], *sampling, use_expectation, alphas[rows], sums[rows],
                contexts[rows], betas[rows], L, D, 4 * n + A, stride, **settings, ALL=triton.next_power_of_2(L),
                ROWS=min(triton.next_power_of_2(L), MAX_REGIONS), WIDTH=CONTEXT_CHANNELS,
            )  # fmt: skip
            torch.mm(contexts[rows], context_matrix.T, out=from_context)
            lstm_kernel[B, triton.cdiv(n, LSTM_UNITS)](
                word_gates[rows], from_hidden[rows], from_context, cell, activations[rows], cells[rows], hiddens[rows],
                n, stride, FAST=is_fast, WIDTH=LSTM_UNITS, num_warps=2,
            )  # fmt: skip
            hidden, cell = hiddens[rows], cells[rows]
        ctx.steps, ctx.width, ctx.settings, ctx.is_fast = steps, width, settings, is_fast
        ctx.save_for_backward(
            keys, regions, images, use_expectation, from_hidden, weights, alphas, samples, sums, betas, contexts,
            activations, cells, hiddens, first_hidden, first_cell, matrix, context_matrix,
        )  # fmt: skip
        if samples is not None:
            ctx.mark_non_differentiable(samples)
        return hiddens, contexts, scores, betas, samples

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (keys, regions, images, use_expectation, from_hidden, weights, alphas, samples, sums, betas, contexts,
         activations, cells, hiddens, first_hidden, first_cell, matrix, context_matrix) = ctx.saved_tensors  # fmt: skip
        loss_hidden, loss_context, loss_scores, loss_betas = (part.contiguous() for part in gradients[:4])
        (num_images, L, A), D, (B, n), N = keys.shape, regions.shape[2], first_hidden.shape, len(cells)
        stride, is_fast = len(matrix), ctx.is_fast
        single: Any = {"dtype": torch.float32, "device": keys.device}
        grad_from_hidden = keys.new_empty(N, stride)
        grad_from_hidden[:, ctx.width :] = 0  # each step writes the other columns
        grad_scores, grad_sums = torch.empty(N, L, **single), torch.empty(N, D, **single)
        grad_hidden, grad_cell = torch.zeros_like(first_hidden), torch.zeros_like(first_cell)
        grad_context = keys.new_empty(B, D)
        for step in reversed(range(ctx.steps)):
            rows = slice(step * B, (step + 1) * B)
            cell_before = cells[rows.start - B : rows.start] if step else first_cell
            lstm_backward_kernel[B, triton.cdiv(n, LSTM_UNITS)](
                grad_hidden, loss_hidden[rows], activations[rows], cells[rows], cell_before, grad_cell,
                grad_from_hidden[rows], n, stride, FAST=is_fast, WIDTH=LSTM_UNITS, num_warps=2,
            )  # fmt: skip
            torch.mm(grad_from_hidden[rows, : 4 * n], context_matrix, out=grad_context)
            context_backward_kernel[B, triton.cdiv(L, SCORE_REGIONS)](
                regions, images, alphas[rows], sums[rows], betas[rows], use_expectation, grad_context,
                loss_context[rows], loss_scores[rows], loss_betas[rows], grad_scores[rows], grad_sums[rows],
                grad_from_hidden[rows], L, D, 4 * n + A, stride, **ctx.settings, ROWS=SCORE_REGIONS, WIDTH=_block(D),
            )  # fmt: skip
            query_backward_kernel[B, triton.cdiv(A, CONTEXT_CHANNELS)](
                keys, images, from_hidden[rows], weights, grad_scores[rows], grad_from_hidden[rows], L, A, 4 * n,
                stride, FAST=is_fast, ROWS=min(triton.next_power_of_2(L), MAX_REGIONS), WIDTH=CONTEXT_CHANNELS,
            )  # fmt: skip
            torch.mm(grad_from_hidden[rows], matrix, out=grad_hidden)
        blocks, channels = triton.cdiv(L, KEY_REGIONS), _block(A)
        grad_keys, grad_weights = torch.empty_like(keys), torch.empty(num_images * blocks, A, **single)
        keys_backward_kernel[num_images, blocks, triton.cdiv(A, channels)](
            keys, images, from_hidden, weights, grad_scores, grad_keys, grad_weights, L, A, B, ctx.steps, 4 * n, stride,
            FAST=is_fast, ROWS=KEY_REGIONS, WIDTH=channels,
        )  # fmt: skip
        grad_regions = None
        if ctx.needs_input_grad[6]:
            maps = alphas
            if samples is not None:
                one_hot = torch.zeros_like(alphas).scatter_(1, samples, 1.0)
                maps = torch.where(use_expectation.repeat(ctx.steps).unsqueeze(1) != 0, alphas, one_hot)
            maps, grad_sums = (part.unflatten(0, (-1, B)).transpose(0, 1) for part in (maps, grad_sums))  # (B, T, ...)
            grad_regions = torch.zeros(regions.shape, **single).index_add_(0, images, maps.mT @ grad_sums)
        grad_gates = grad_from_hidden[:, : 4 * n]
        grad_matrix = (grad_from_hidden.T @ torch.cat([first_hidden, hiddens[:-B]]))[: ctx.width]
        grad_bias = grad_from_hidden.sum(dim=0, dtype=torch.float32)[: ctx.width].to(matrix.dtype)
        inputs = (grad_keys, grad_regions, grad_gates, grad_hidden, grad_cell)
        grad_inputs = [part if part is None else part.to(dtype) for part, dtype in zip(inputs, ctx.dtypes, strict=True)]
        return *(None,) * 5, *grad_inputs, grad_matrix, grad_bias, grad_gates.T @ contexts, grad_weights.sum(dim=0)


def _block(width: int) -> int:
    return min(triton.next_power_of_2(width), MAX_CHANNELS)


def _has_fast_tanh(dtype: torch.dtype, device: torch.device) -> bool:
    is_nvidia = device.type == "cuda" and torch.version.cuda is not None
    return is_nvidia and dtype != torch.float32 and torch.cuda.get_device_capability(device) >= (7, 5)


def score_and_read(
    keys: Tensor, regions: Tensor, images: Tensor, query: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Return alpha (b, L) and r = sum_l alpha_l a_l (b, D) of one step, without gradients.

    Args:
        keys: p, (I, L, A); the regions a are (I, L, D).
        images: (b,) the image of each query q (b, A).
    """
    (_, L, A), D, size = keys.shape, regions.shape[2], len(query)
    images, query, weights = images.to(torch.int32), query.contiguous(), weights.float().contiguous()
    single: Any = {"dtype": torch.float32, "device": keys.device}
    scores, alphas, sums = (torch.empty(size, width, **single) for width in (L, L, D))
    score_kernel[size, triton.cdiv(L, SCORE_REGIONS)](
        keys, images, query, weights, scores, L, A, 0, A, FAST=False, ROWS=SCORE_REGIONS, WIDTH=_block(A),
    )  # fmt: skip
    context_kernel[size, triton.cdiv(D, CONTEXT_CHANNELS)](
        regions, images, query, scores, None, None, None, None, alphas, sums, torch.empty_like(sums), None, L, D, 0, A,
        GATE=0, HARD=False, ALL=triton.next_power_of_2(L), ROWS=min(triton.next_power_of_2(L), MAX_REGIONS),
        WIDTH=CONTEXT_CHANNELS,
    )  # fmt: skip
    return alphas, sums
