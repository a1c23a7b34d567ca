"""Captions that are learned behind the model's own words (Bengio et al. 2015, "Scheduled Sampling for Sequence
Prediction with Recurrent Neural Networks")."""

import torch
from torch import Tensor

from showattendtell.decode.sampling import draw
from showattendtell.decode.speaker import Speaker
from showattendtell.model.captioner import Captioner, as_written
from showattendtell.text.vocabulary import PAD, START


@torch.no_grad()
def mix_words(
    captioner: Captioner, regions: Tensor, owners: Tensor, tokens: Tensor, probability: float
) -> Tensor | None:
    """What the captioner is to read before each word of the captions, (B, T): `<start>`, then at each place with this
    probability the word that it says itself there, drawn from p behind what it has read so far, or else the caption's.

    It speaks as it does outside training. None where the probability is 0: the captions' own words.

    Args:
        owners: (B,) the image of each caption.
        tokens: (B, T) the captions.
    """
    if not probability:
        return None
    order = owners.argsort(stable=True)
    with as_written(captioner):
        speech = Speaker([captioner]).before([regions])
        thoughts, rows = speech.begin().follow(owners[order]), torch.arange(len(owners), device=owners.device)
        read, never = [torch.full_like(owners, START)], torch.tensor([PAD, START], device=owners.device)
        for words in tokens[order].T[:-1]:
            said = speech.step(thoughts, rows, read[-1])
            thoughts, scores = said.thoughts, said.scores.index_fill(1, never, -torch.inf)
            own = draw(scores.softmax(dim=1)).squeeze(1)
            read.append(own.where(torch.rand_like(scores[:, 0]) < probability, words))
    mixed = torch.stack(read, dim=1)[order.argsort()]
    return mixed.masked_fill(tokens == PAD, PAD)
