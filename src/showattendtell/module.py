"""The LightningModule: the one file where model, loss, decoding and metrics meet."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import pytorch_lightning as lightning
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from showattendtell.captioning import ImageCaptioner
from showattendtell.decode.decoding import Decoding
from showattendtell.encoder import Encoder
from showattendtell.errors import UserError
from showattendtell.loss import Loss, SoftLoss, negative_log_likelihood
from showattendtell.metrics.bleu import bleu
from showattendtell.model.captioner import Captioner
from showattendtell.optimize import Schedule, parameter_groups
from showattendtell.processes import gather, rank
from showattendtell.records import Batch
from showattendtell.splits import Scene
from showattendtell.text.vocabulary import PAD, Vocabulary
from showattendtell.watch import Figure, WordClasses, pool, watch_maps


class CaptioningModule(ImageCaptioner, lightning.LightningModule):
    """Trains a captioner; every epoch it captions the validation images on its own and scores what it wrote.

    Args:
        encoder: gives regions where the data module gives pixels; its weights travel in the checkpoint either way.
        decoding: how the validation images are captioned.
        optimizer: called with the parameter groups.
        card: entries of a checkpoint that say what it is, in plain numbers, strings, lists and dicts.
    """

    def __init__(
        self,
        encoder: Encoder,
        captioner: Captioner,
        vocabulary: Vocabulary,
        loss: SoftLoss,
        decoding: Decoding,
        optimizer: Callable[..., Optimizer],
        schedule: Schedule,
        card: Mapping[str, Any],
    ):
        super().__init__(encoder, captioner, vocabulary, decoding)
        self.loss, self.card = loss, dict(card)
        self.make_optimizer, self.schedule = optimizer, schedule
        self._word_classes = WordClasses(vocabulary)
        self._written: dict[str, tuple[list[str], list[tuple[str, ...]]]] = {}
        self._figures: defaultdict[str, list[Figure]] = defaultdict(list)

    @property
    def selective(self) -> bool:
        """Whether there are attention maps that could move."""
        return self.captioner.attention.selective

    def training_step(self, batch: Batch, index: int) -> Tensor:
        loss = self.loss(self.captioner, self.regions(batch.images), batch.owners, batch.tokens)
        total = loss.total
        if not total.isfinite():
            raise UserError("the loss is no longer a number; lower optimizer.lr and train again")
        captions, words = len(batch.tokens), int((batch.tokens != PAD).sum())
        self.log("train/loss", total, on_epoch=True, on_step=False, prog_bar=True, batch_size=captions)
        self.log("train/nll_per_word", loss.nll * captions / words, on_epoch=True, on_step=False, batch_size=words)
        for name, figure in loss.figures.items():
            self.log(f"train/{name}", figure, on_epoch=True, on_step=False, batch_size=captions)
        if self.global_step % self.trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            self._log_gradients(loss)
        return total

    def _log_gradients(self, loss: Loss) -> None:
        """The norm of each term's gradient, before any clipping."""
        parameters = [parameter for parameter in self.captioner.parameters() if parameter.requires_grad]
        for name, term in loss.terms.items():
            if term.requires_grad:
                parts = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
                norm = torch.nn.utils.get_total_norm([part for part in parts if part is not None])
                self.log(f"train/gradient_norm_{name}", norm, on_epoch=True, on_step=False, batch_size=1)

    def validation_step(self, batch: Batch | Scene, index: int, dataloader_idx: int = 0) -> None:
        if isinstance(batch, Scene):
            for name, captions, references in zip(batch.names, self.write(batch.images), batch.references, strict=True):
                self._written[name] = (self.vocabulary.decode(captions[0].tokens), references)
            return
        trace = self.trace(*batch)
        words = int((batch.tokens != PAD).sum())
        nll = negative_log_likelihood(trace, batch.tokens).sum() / words
        self._figures["nll_per_word"].append(Figure(nll, words))
        for name, figure in watch_maps(trace, batch.tokens).items():
            self._figures[f"attention_{name}"].append(figure)
        for name, figure in self._word_classes.betas(trace, batch.tokens).items():
            self._figures[f"beta_{name}"].append(figure)

    def on_validation_epoch_end(self) -> None:
        self._log_figures()
        hypotheses, references = zip(*gather(self._written).values(), strict=True)
        self._written = {}
        scores = bleu(hypotheses, references)
        self.log_dict({f"val/bleu{n}": 100 * score for n, score in enumerate(scores.without_penalty, start=1)})
        self.log("val/bleu4_with_penalty", 100 * scores.with_penalty[3])
        self.log("val/distinct_captions", float(len({tuple(words) for words in hypotheses})))

    def _log_figures(self) -> None:
        """The validation captions' figures over all processes, of which some may have had no batch."""
        own = {name: pool(figures) for name, figures in self._figures.items()}
        self._figures.clear()
        by_process = list(gather({str(rank()): own}).values())
        for name in dict.fromkeys(name for figures in by_process for name in figures):
            mean, of = pool(figures[name] for figures in by_process if name in figures)
            if of:
                self.log(f"val/{name}", mean.float())

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer(parameter_groups(self.captioner, self.encoder, self.encoder.learning_rate))
        optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]  # Lightning unscales, as it clips
        total = int(self.trainer.estimated_stepping_batches)
        scheduler = LambdaLR(optimizer, lambda step: self.schedule(step, total))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint.update(self.card)
