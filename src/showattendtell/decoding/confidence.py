"""Calibrated confidence of generated captions. Sizes are those of `showattendtell.types`."""

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from showattendtell.data.vocabulary import PAD
from showattendtell.decoding.decoding import Captions
from showattendtell.models.calibration import Calibration
from showattendtell.models.captioner import Captioner


@torch.no_grad()
def calibrate_captions(captioner: Captioner, calibration: Calibration, regions: Tensor, captions: Captions) -> Captions:
    """Return the captions of images with their calibrated log p, and whether the model is unsure.

    Hard attention that samples its regions draws others than for the captions.

    Args:
        regions: (I, L, D) of the images.
        captions: of each image.
    """
    sequences = [torch.tensor(caption.tokens) for image_captions in captions for caption in image_captions]
    unsure = (calibration(regions) > calibration.threshold).tolist()
    if not sequences:
        return captions
    tokens = pad_sequence(sequences, batch_first=True, padding_value=PAD).to(regions.device)
    image_index = torch.tensor([image for image, image_captions in enumerate(captions) for _ in image_captions])
    outputs = captioner(regions, image_index.to(regions.device), tokens)
    targets = tokens.flatten()[outputs.indices]
    log_probs = calibration.calibrate(outputs.logits.log_softmax(dim=1)).gather(1, targets.unsqueeze(1)).squeeze(1)
    rows = iter(outputs.at_steps(log_probs).cpu())
    return [
        [one._replace(calibrated_log_probs=next(rows)[: len(one.tokens)], unsure=is_unsure) for one in image_captions]
        for image_captions, is_unsure in zip(captions, unsure, strict=True)
    ]
