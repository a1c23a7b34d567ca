"""Scheduled sampling: train on the model's own words (Bengio et al. 2015, "Scheduled Sampling for Sequence
Prediction with Recurrent Neural Networks")."""

import torch
from torch import Tensor

from showattendtell.data.vocabulary import PAD, START
from showattendtell.decoding.ensemble import Ensemble
from showattendtell.decoding.sampling import draw
from showattendtell.models.captioner import Captioner, eval_mode


@torch.no_grad()
def mix_words(
    captioner: Captioner, regions: Tensor, image_index: Tensor, tokens: Tensor, probability: float
) -> Tensor | None:
    """Return the input tokens (B, T): `<start>`, then the caption's words, each replaced with `probability` by a word
    sampled from p given the inputs so far.

    The captioner is in evaluation mode. Return None (no replacement) if the probability is 0.

    Args:
        image_index: (B,) the image of each caption.
        tokens: (B, T) the captions.
    """
    if not probability:
        return None
    order = image_index.argsort(stable=True)
    with eval_mode(captioner):
        decoder = Ensemble([captioner]).start([regions])
        states, rows = (
            decoder.init_state().index_select(image_index[order]),
            torch.arange(len(image_index), device=image_index.device),
        )
        read, never = [torch.full_like(image_index, START)], torch.tensor([PAD, START], device=image_index.device)
        for words in tokens[order].T[:-1]:
            output, states = decoder.step(states, rows, read[-1])
            scores = output.scores.index_fill(1, never, -torch.inf)
            own = draw(scores.softmax(dim=1)).squeeze(1)
            read.append(own.where(torch.rand_like(scores[:, 0]) < probability, words))
    mixed = torch.stack(read, dim=1)[order.argsort()]
    return mixed.masked_fill(tokens == PAD, PAD)
