"""Baseline: the same model as in tutorials, with every projection at every step of every caption."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from showattendtell.models.captioner import Captioner, shift_right
from showattendtell.text.vocabulary import EOS, PAD, START


class TextbookStep(NamedTuple):
    """Logits (B, V), alpha (B, L), beta (B,), and the LSTM's new h and c (B, n)."""

    logits: Tensor
    weights: Tensor
    gate: Tensor
    hidden: Tensor
    cell: Tensor


def textbook_step(captioner: Captioner, copied: Tensor, words: Tensor, hidden: Tensor, cell: Tensor) -> TextbookStep:
    """Compute a step of captions with one copy each of their image's regions (B, L, D), all of which are projected."""
    attention, decoder = captioner.attention, captioner.decoder
    score = attention.score
    energy = score.score(torch.tanh(score.key(copied) + score.query(hidden).unsqueeze(1))).squeeze(-1)
    weights = energy.softmax(dim=1)
    gate = torch.sigmoid(attention.gate(hidden))
    context = gate * (weights.unsqueeze(2) * copied).sum(dim=1)
    embedded = decoder.embedding(words)
    gates = decoder.read_word(embedded) + decoder.hidden_gates(hidden) + decoder.context_gates(context)
    admit, forget, output, candidate = gates.chunk(4, dim=1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(admit) * torch.tanh(candidate)
    hidden = torch.sigmoid(output) * torch.tanh(cell)
    summed = embedded + decoder.hidden_output(hidden) + decoder.context_output(context)
    logits = decoder.word_scores(decoder.output_dropout(summed))
    return TextbookStep(logits, weights, gate.squeeze(1), hidden, cell)


def textbook_loss(captioner: Captioner, regions: Tensor, image_index: Tensor, tokens: Tensor) -> Tensor:
    """Return the loss of `SoftLoss()`, computed as in popular ports.

    Captions are sorted, longest first, each with a copy of its image's regions. A step computes the captions that have
    not ended, and stores scores and alphas in padded tensors. The scores are packed for the cross-entropy.

    Args:
        regions: (I, L, D).
        image_index: (B,) the image of each caption.
        tokens: (B, T) the targets, with `<pad>` after `<eos>`.
    """
    lengths, order = (tokens != PAD).sum(dim=1).sort(descending=True)
    targets, copied, decoder = tokens[order], regions[image_index[order]], captioner.decoder
    words = shift_right(targets)
    hidden, cell = decoder.first_state(copied.mean(dim=1))
    predictions = copied.new_zeros(len(targets), int(lengths[0]), decoder.embedding.num_embeddings)
    alphas = copied.new_zeros(len(targets), int(lengths[0]), copied.shape[1])
    for t in range(int(lengths[0])):
        running = int((lengths > t).sum())
        step = textbook_step(captioner, copied[:running], words[:running, t], hidden[:running], cell[:running])
        hidden, cell = step.hidden, step.cell
        predictions[:running, t] = step.logits
        alphas[:running, t] = step.weights
    scores = pack_padded_sequence(predictions, lengths.cpu(), batch_first=True).data
    labels = pack_padded_sequence(targets, lengths.cpu(), batch_first=True).data
    penalty = (1 - alphas.sum(dim=1)).square().sum(dim=1)
    return F.cross_entropy(scores, labels, reduction="sum") / len(targets) + penalty.mean()


@torch.no_grad()
def textbook_beam(captioner: Captioner, regions: Tensor, beam_size: int, max_length: int) -> list[int]:
    """Return the caption of one image (1, L, D) by beam search as in tutorials.

    Every beam projects its own copy of the regions at every step, and all words of all beams are ranked. The result is
    the most likely finished caption, or else the most likely open one.
    """
    copied, beams = regions, [([], 0.0)]
    hidden, cell = captioner.decoder.first_state(copied.mean(dim=1))
    finished: list[tuple[list[int], float]] = []
    for _ in range(max_length):
        last = torch.tensor([words[-1] if words else START for words, _ in beams])
        step = textbook_step(captioner, copied, last, hidden, cell)
        log_p = step.logits.log_softmax(dim=1)
        log_p[:, [PAD, START]] = -torch.inf
        totals = (log_p + torch.tensor([total for _, total in beams]).unsqueeze(1)).flatten()
        best, chosen = totals.topk(2 * beam_size)
        grown = []
        for rank, (total, index) in enumerate(zip(best.tolist(), chosen.tolist(), strict=True)):
            parent, word = divmod(index, log_p.shape[1])
            if word != EOS:
                grown.append(([*beams[parent][0], word], total, parent))
            elif rank < beam_size:
                finished.append(([*beams[parent][0], word], total))
        kept = grown[:beam_size]
        beams = [(words, total) for words, total, _ in kept]
        rows = torch.tensor([parent for _, _, parent in kept])
        hidden, cell, copied = step.hidden[rows], step.cell[rows], copied[rows]
        if finished and max(total for _, total in finished) >= beams[0][1]:
            break
    return max(finished or beams, key=lambda caption: caption[1])[0]
