"""Calibrated confidence of generated captions. Sizes are those of `showattendtell.types`."""

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from showattendtell.data.vocabulary import PAD
from showattendtell.decoding.decoding import Captions
from showattendtell.models.calibration import Calibration
from showattendtell.models.captioner import Captioner


@torch.no_grad()
def assess(captioner: Captioner, calibration: Calibration, regions: Tensor, captions: Captions) -> Captions:
    """Return the captions of images with their calibrated log p, and the mark of doubt.

    Hard attention that samples its regions draws others than for the captions.

    Args:
        regions: (I, L, D) of the images.
        captions: of each image.
    """
    said = [torch.tensor(caption.tokens) for of_image in captions for caption in of_image]
    unsure = (calibration(regions) > calibration.threshold).tolist()
    if not said:
        return captions
    tokens = pad_sequence(said, batch_first=True, padding_value=PAD).to(regions.device)
    image_index = torch.tensor([image for image, of_image in enumerate(captions) for _ in of_image])
    trace = captioner(regions, image_index.to(regions.device), tokens)
    targets = tokens.flatten()[trace.places]
    log_probs = calibration.calibrate(trace.logits.log_softmax(dim=1)).gather(1, targets.unsqueeze(1)).squeeze(1)
    rows = iter(trace.at_steps(log_probs).cpu())
    return [
        [one._replace(calibrated_log_probs=next(rows)[: len(one.tokens)], unsure=doubt) for one in of_image]
        for of_image, doubt in zip(captions, unsure, strict=True)
    ]
