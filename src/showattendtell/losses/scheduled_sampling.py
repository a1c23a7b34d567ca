"""Scheduled sampling (Bengio et al. 2015): input words that are sampled from the model during training."""

import torch
from torch import Tensor

from showattendtell.data.vocabulary import PAD, START
from showattendtell.decoding.decoding import Ensemble
from showattendtell.decoding.sampling import multinomial
from showattendtell.models.captioner import Captioner, eval_mode


@torch.no_grad()
def mix_words(
    captioner: Captioner, regions: Tensor, image_index: Tensor, tokens: Tensor, probability: float, offset: int = 0
) -> Tensor | None:
    """Return the input tokens (B, T) of scheduled sampling (Bengio et al. 2015); None if the probability is 0.

    They are `<start>`, then the caption's words, each replaced with `probability` by a word that is sampled from the
    model given the inputs so far. The model is in evaluation mode.

    Args:
        offset: the number of tokens before the words of a caption, which are never replaced.
    """
    if not probability:
        return None
    order = image_index.argsort(stable=True)  # the decoder takes captions in the order of their images
    with eval_mode(captioner):
        decoder = Ensemble([captioner]).make_decoder([regions])
        states = decoder.init_state().index_select(image_index[order])
        rows = torch.arange(len(image_index), device=image_index.device)
        inputs = [torch.full_like(image_index, START)]
        suppressed = torch.tensor([PAD, START], device=image_index.device)
        for step, words in enumerate(tokens[order].T[:-1]):
            output, states = decoder.step(states, rows, inputs[-1])
            if step < offset:
                inputs.append(words)
                continue
            scores = output.scores.index_fill(1, suppressed, -torch.inf)
            sampled = multinomial(scores.softmax(dim=1)).squeeze(1)
            inputs.append(sampled.where(torch.rand_like(scores[:, 0]) < probability, words))
    mixed = torch.stack(inputs, dim=1)[order.argsort()]  # back in the order of the captions
    return mixed.masked_fill(tokens == PAD, PAD)
