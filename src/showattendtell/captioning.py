"""From images to captions: where encoder, captioner, decoding and vocabulary meet, to write or to be trained."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from showattendtell.decode.decoding import Decoding
from showattendtell.decode.speaker import Speaker
from showattendtell.encoder import Encoder
from showattendtell.model.captioner import Captioner
from showattendtell.records import Generated, Trace
from showattendtell.text.vocabulary import Vocabulary


class ImageCaptioner(nn.Module):
    """A captioner with the encoder whose regions it reads and the words that it knows.

    Args:
        encoder: gives regions where pixels are given.
        decoding: how captions are written.
    """

    def __init__(self, encoder: Encoder, captioner: Captioner, vocabulary: Vocabulary, decoding: Decoding):
        super().__init__()
        self.encoder, self.captioner, self.vocabulary, self.decoding = encoder, captioner, vocabulary, decoding

    @property
    def device(self) -> torch.device:
        return next(self.captioner.parameters()).device

    def regions(self, images: Tensor) -> Tensor:
        """Stored grids (I, L, D) as they are, pixels (I, 3, H, W) through the encoder; with places, float32."""
        return self.encoder.locate((self.encoder(images) if images.ndim == 4 else images).float())

    def trace(self, images: Tensor, owners: Tensor, tokens: Tensor) -> Trace:
        """Scores and attention of given captions, each word given the words before it."""
        return self.captioner(self.regions(images), owners, tokens)

    def write(self, images: Tensor) -> list[list[Generated]]:
        """Captions of pixels or grids, written free-running; of each image the best first."""
        return Choir([self]).write([images])


class Choir:
    """Models with one vocabulary that write as one, in the way that the first has been given.

    Their weights are prepared once: for captions after a change of theirs, make another. Where the decoding is to read
    mirror images as well, all of them see each image twice.
    """

    def __init__(self, models: Sequence[ImageCaptioner]):
        self._decoding = models[0].decoding
        self._models = (*models, *models) if self._decoding.mirrored else tuple(models)
        self._speaker = Speaker([model.captioner for model in self._models], self._decoding.precision)

    @torch.no_grad()
    def write(self, images: Sequence[Tensor]) -> list[list[Generated]]:
        """Captions of the same images as each of the models takes them, of each image the best first.

        Args:
            images: of each model, and behind them, where mirror images are read as well, these of each model.
        """
        regions = [model.regions(seen) for model, seen in zip(self._models, images, strict=True)]
        return self._decoding.write(self._speaker, regions, self._models[0].vocabulary)
