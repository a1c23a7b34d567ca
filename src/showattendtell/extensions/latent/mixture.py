"""Words whose probability is a mixture over the regions, and its cross-entropy:

    p(v) = sum_i alpha_i p(v | a_i)     p(v | a_i) = e^(s_v + r_iv) / Z_i     Z_i = sum_v e^(s_v + r_iv)

The scores of the words without a region, s, and what region i adds to them, r_i, are sums of the deep output. So no
tensor has the L x V scores of every word: e^s is computed per word, e^r_i once per image, and products of these
matrices give Z (N, L) and p (N, V), for L multiply-adds per score instead of the w of the output layer. If the likely
words of s and those of r_i are so far apart that Z vanishes, it counts as `SMALLEST`, and log p is a lower bound.

Sizes are those of `showattendtell.types`; w is the width of the output layer's input, N the number of words, C the
number of target words of each, and k the number of words that are processed together.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from showattendtell.models.interfaces import CaptionGrid
from showattendtell.models.kernels import to_multiply, without_autocast
from showattendtell.models.kernels.cross_entropy import CrossEntropy, OutputFeatures
from showattendtell.models.kernels.products import linear, matmul

MAX_SCORES = {"cpu": 2**21, "cuda": 2**26}
"""The largest number of scores of regions that are kept at once, on the CPU 2^21 (8 MB) because of its caches."""

SMALLEST = 1e-30
"""The smallest normalizer, relative to the largest e^s e^r."""


class MixtureFeatures(NamedTuple):
    """Inputs of the output layer for N words whose probability is a mixture over the regions.

    The input of word n with region i is values[n] + parts[image_index[n], i].

    values       (N, w) the part of the word
    matrix, bias (V, w) and (V,)
    parts        (I, L, w) what each region adds
    image_index  (N,) the image of each word
    num_captions the number B of captions if each has T words, in the order of `Packing.with_padding`; else None
    log_weights  (N, L) log alpha
    suppressed   tokens that have p = 0; the others are normalized without them
    log_q        (N, L) log q of the inference network of variational attention
    """

    values: Tensor
    matrix: Tensor
    bias: Tensor
    parts: Tensor
    image_index: Tensor
    log_weights: Tensor
    num_captions: int | None = None
    suppressed: tuple[int, ...] = ()
    log_q: Any = None

    def select(self, words: Tensor) -> "MixtureFeatures":
        """Return the features of some words, from their indices or a mask."""
        return self._replace(
            values=self.values[words],
            image_index=self.image_index[words],
            log_weights=self.log_weights[words],
            num_captions=None,
            log_q=None if self.log_q is None else self.log_q[words],
        )

    def without(self, tokens: tuple[int, ...]) -> "MixtureFeatures":
        """Return the features with p = 0 for these tokens."""
        return self._replace(suppressed=tokens)

    def product_by_image(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """Return x M of every row x (N, p) with the matrix of its image, of (I, p, q)."""
        order, counts, groups = self._layout()
        pieces = zip(rows[order].split(counts), matrices[groups], strict=True)
        return torch.cat([matmul(x, matrix) for x, matrix in pieces])[order.argsort()]

    def _layout(self) -> tuple[Tensor, list[int], Tensor | slice]:
        """Return an order of the words in which those of a group share an image, the number of words of each group, and
        the groups' images.

        The groups are the images. With padding they are the captions, so that no shape depends on data, which would
        synchronize a GPU.
        """
        device = self.image_index.device
        if self.num_captions is None:
            counts = self.image_index.bincount(minlength=len(self.parts)).tolist()
            return self.image_index.argsort(stable=True), counts, slice(None)
        steps = len(self.image_index) // self.num_captions
        order = torch.arange(len(self.image_index), device=device).view(steps, self.num_captions).T.flatten()
        return order, [steps] * self.num_captions, self.image_index[: self.num_captions]

    def at_maps(self, maps: Tensor) -> OutputFeatures:
        """Return the output-layer inputs of the words if they read sum_i m_i a_i, from maps m (N, L)."""
        return OutputFeatures(self.values + self.product_by_image(maps, self.parts), self.matrix, self.bias)

    def region_log_probs(self, targets: Tensor, with_mean: bool = False) -> tuple[Tensor, Tensor]:
        """Return log p(v | a_i) of the words `targets` (N, C) for each region, (N, L, C), and mean_v log p(v), (N,), of
        the mixture; without `with_mean` zeros."""
        order, counts, groups = self._layout()
        operands = to_multiply(self.values[order], self.parts[groups], self.matrix, self.bias)
        with without_autocast(targets.device):
            by_region, means = _Mixture.apply(*operands, self.log_weights[order], targets[order], counts, with_mean)
        inverse_order = order.argsort()
        return by_region[inverse_order], means[inverse_order]

    @torch.no_grad()
    def logits(self) -> Tensor:
        """Return log p(v) of all words, (N, V), without a gradient."""
        order, counts, groups = self._layout()
        scores = linear(self.values[order], self.matrix, self.bias)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        weights, parts = self.log_weights[order].split(counts), self.parts[groups]
        pieces = [
            table_log_probs(region_table(regions.unsqueeze(0), self.matrix.T), image_scores, log_weights)
            for image_scores, log_weights, regions in zip(scores.split(counts), weights, parts, strict=True)
        ]
        log_p = torch.cat(pieces)[order.argsort()]
        never = torch.tensor(self.suppressed, dtype=torch.long, device=log_p.device)
        return log_p.index_fill(1, never, -torch.inf).log_softmax(dim=1) if self.suppressed else log_p

    def cross_entropy(self, targets: Tensor, label_smoothing: float = 0.0) -> CrossEntropy:
        """Return the cross-entropy of the words `targets` (N,), like that of `OutputFeatures`."""
        never = torch.tensor(self.suppressed, dtype=targets.dtype, device=targets.device).expand(len(targets), -1)
        words = torch.cat([targets.unsqueeze(1), never], dim=1)  # (N, C)
        by_region, mean = self.region_log_probs(words, with_mean=label_smoothing > 0)
        log_p = (by_region + self.log_weights.unsqueeze(2)).logsumexp(dim=1)  # (N, C)
        nll = -log_p[:, 0]
        if self.suppressed:  # p(v) / (1 - sum of the excluded)
            nll = nll + torch.log1p(-log_p[:, 1:].exp().sum(dim=1))
        loss = torch.lerp(nll, -mean, label_smoothing) if label_smoothing else nll
        return CrossEntropy(loss, nll.detach())


def log_of(weights: Tensor) -> Tensor:
    """Return log alpha, finite also where alpha is 0."""
    return weights.clamp_min(torch.finfo(weights.dtype).tiny).log()


def region_table(parts: Tensor, words: Tensor) -> Tensor:
    """Return what each region adds to the scores of the words, for decoding: R = e^(r - max r) (I, L, V).

    Args:
        parts: (I, L, w) what each region adds to the input of the output layer.
        words: W^T (w, V) of the output layer.
    """
    [parts] = to_multiply(parts)
    scores = matmul(parts.to(words.dtype), words)
    return scores.sub_(scores.amax(dim=2, keepdim=True)).exp_().clamp_min_(torch.finfo(scores.dtype).tiny)


def table_log_probs(table: Tensor, scores: Tensor, log_weights: Tensor, grid: CaptionGrid | None = None) -> Tensor:
    """Return log p(v) (B, V) from the table of regions (I, L, V), the scores without a region, s (B, V), and log alpha
    (B, L).

    Args:
        grid: the captions of each image; by default all are of one image.
    """
    scores = scores - scores.amax(dim=1, keepdim=True)
    if grid is not None:
        scores, log_weights = scores[grid.rows], log_weights[grid.rows]
    scores, log_weights = (x.view(len(table), -1, x.shape[1]) for x in (scores, log_weights))
    z = (scores.exp().to(table.dtype) @ table.mT).to(scores.dtype).clamp_min_(SMALLEST)  # (I, K, L)
    ratios = (log_weights.exp() / z).to(table.dtype)
    log_p = (scores + _log((ratios @ table).to(scores.dtype))).flatten(0, 1)
    return log_p if grid is None else log_p[grid.positions]


class _Mixture(torch.autograd.Function):
    """log p(v | a_i) of target words, and mean_v log p(v), for words in the order of their images.

    With S = e^(s - max s) (k, V) and R = e^(r - max r) (L, V) of an image, everything is a product of S and R:

        Z = S R^T     log p(v | a_i) = s_v + r_iv - log Z_i     u = (alpha / Z) R     p(v) = S_v u_v

    Of a loss with the gradients g_ic of log p(y_c | a_i) and m of mean_v log p(v), with H = m / (V u) and
    e = (alpha / Z) (H R^T) (both without m, e are posteriors, averaged over v) and A = sum_c g_c + e:

        ds_v = sum_ic g_ic [v = y_c] + m / V - S_v ((A / Z) R)_v
        dr_iv = sum_kc g_kic [v = y_kc] + R_iv ((alpha / Z)^T H)_iv - R_iv ((A / Z)^T S)_iv     sums over words k
        dlog alpha_i = e_i
    """

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        parts: Tensor,
        matrix: Tensor,
        bias: Tensor,
        log_weights: Tensor,
        targets: Tensor,
        counts: list[int],
        with_mean: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return log p(v | a_i) (N, L, C) and mean_v log p(v) (N,).

        Args:
            counts: the number of words of each image.
        """
        logits = linear(values, matrix, bias)  # (N, V)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        largest = logits.amax(dim=1, keepdim=True).to(dtype)
        by_region = log_weights.new_empty(*log_weights.shape, targets.shape[1], dtype=dtype)
        normalizers, means = torch.empty_like(log_weights, dtype=dtype), by_region.new_zeros(len(values))
        for piece in _pieces(parts, matrix, counts):
            for rows, scores, exp_regions, top in piece:
                shifted = logits[rows].to(dtype) - largest[rows]  # (k, V)
                z = linear(shifted.exp().to(exp_regions.dtype), exp_regions).to(dtype).clamp_min_(SMALLEST)  # (k, L)
                normalizers[rows] = z
                words = targets[rows]  # (k, C)
                added = scores[:, words].to(dtype).movedim(0, 1) - top.unsqueeze(0)  # r_iv - max r, (k, L, C)
                by_region[rows] = shifted.gather(1, words).unsqueeze(1) + added - z.log().unsqueeze(2)
                if with_mean:
                    u = _product(log_weights[rows].exp() / z, exp_regions)  # (k, V)
                    means[rows] = shifted.mean(dim=1) + _log(u).mean(dim=1)
        ctx.save_for_backward(values, parts, matrix, logits, largest, log_weights, normalizers, targets)
        ctx.counts, ctx.with_mean = counts, with_mean
        return by_region, means

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_regions: Tensor, grad_means: Tensor) -> tuple[Tensor | None, ...]:
        values, parts, matrix, logits, largest, log_weights, normalizers, targets = ctx.saved_tensors
        dtype, num_words = normalizers.dtype, len(matrix)
        summed = grad_regions.sum(dim=2)  # A, (N, L)
        grad_log_weights = torch.zeros_like(log_weights)
        grad_logits, grad_parts = torch.empty_like(logits), torch.empty_like(parts)
        grad_matrix = torch.zeros_like(matrix)
        first = 0
        for piece in _pieces(parts, matrix, ctx.counts):
            grad_scores = []  # dr of the piece's images, (L, V) each
            for rows, _, exp_regions, _ in piece:
                exp_words = torch.exp(logits[rows].to(dtype) - largest[rows])  # S
                z, words, total = normalizers[rows], targets[rows], summed[rows]
                grad_added = torch.zeros(exp_regions.shape, dtype=dtype, device=z.device)
                if ctx.with_mean:
                    c = log_weights[rows].exp() / z  # alpha / Z
                    u = _product(c, exp_regions).clamp_min_(torch.finfo(dtype).tiny)
                    h = grad_means[rows].unsqueeze(1) / (num_words * u)
                    e = c * linear(h.to(exp_regions.dtype), exp_regions).to(dtype)
                    grad_log_weights[rows] = e
                    total = total + e
                    grad_added += _product(c.T, h.to(exp_regions.dtype))
                ratios = total / z  # A / Z
                grad_added -= _product(ratios.T, exp_words.to(exp_regions.dtype))
                grad_added *= exp_regions
                # g_kic to (L, V): words k that share a target are added up
                grad_added.index_add_(1, words.flatten(), grad_regions[rows].movedim(1, 0).flatten(1))
                grad_scores.append(grad_added.to(matrix.dtype))
                grad_s = -exp_words * _product(ratios, exp_regions)
                grad_s.scatter_add_(1, words, grad_regions[rows].sum(dim=1))
                if ctx.with_mean:
                    grad_s += grad_means[rows].unsqueeze(1) / num_words
                grad_logits[rows] = grad_s.to(logits.dtype)
            # r = W P: dP = W^T dr, dW = sum dr P^T
            grad_r, last = torch.stack(grad_scores), first + len(grad_scores)
            grad_parts[first:last] = matmul(grad_r, matrix)
            grad_matrix += matmul(grad_r.flatten(0, 1).T, parts[first:last].flatten(0, 1))
            first = last
        # s = W x + b
        grad_values, grad_matrix = matmul(grad_logits, matrix), grad_matrix + matmul(grad_logits.T, values)
        grad_bias = grad_logits.sum(dim=0, dtype=dtype).to(matrix.dtype)
        return grad_values, grad_parts, grad_matrix, grad_bias, grad_log_weights, None, None, None


def _product(weights: Tensor, values: Tensor) -> Tensor:
    """Return a matrix product in the type of the values, as the type of the weights."""
    return matmul(weights.to(values.dtype), values).to(weights.dtype)


def _log(values: Tensor) -> Tensor:
    """Return the logarithm, finite also of 0; overwrites the sums."""
    return values.clamp_min_(torch.finfo(values.dtype).tiny).log_()


def _chunk_size(device: torch.device, num_regions: int, num_words: int) -> int:
    """Return the number of images whose L x V scores are kept at once."""
    return max(1, MAX_SCORES.get(device.type, 2**26) // (num_regions * num_words))


Piece = list[tuple[slice, Tensor, Tensor, Tensor]]


def _pieces(parts: Tensor, matrix: Tensor, counts: list[int]) -> Iterator[Piece]:
    """Yield several images at a time; of each the rows of its words, r (L, V), e^(r - max r) and max r (L, 1)."""
    size, first = _chunk_size(parts.device, parts.shape[1], len(matrix)), 0
    for start in range(0, len(parts), size):
        scores = linear(parts[start : start + size], matrix)  # (i, L, V)
        dtype = torch.promote_types(scores.dtype, torch.float32)
        top = scores.amax(dim=2, keepdim=True).to(dtype)
        exp_scores = torch.exp(scores - top).to(scores.dtype)
        piece = []
        for i, tensors in enumerate(zip(scores, exp_scores, top, strict=True)):
            last = first + counts[start + i]
            piece.append((slice(first, last), *tensors))
            first = last
        yield piece
