"""The LightningModule: the one file where model, loss, decoding and metrics meet."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytorch_lightning as lightning
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from showattendtell.captioning import ImageCaptioner
from showattendtell.decode.decoding import Decoding
from showattendtell.encoder import Encoder
from showattendtell.errors import UserError
from showattendtell.loss import Loss, SoftLoss, negative_log_likelihood, total
from showattendtell.metrics.bleu import bleu
from showattendtell.metrics.endings import judge_endings
from showattendtell.metrics.measured import pair_up
from showattendtell.metrics.overlap import measure_cider
from showattendtell.model.captioner import Captioner
from showattendtell.model.precision import without_autocast
from showattendtell.optimize import Schedule, parameter_groups
from showattendtell.processes import gather, mean_over_processes, rank
from showattendtell.records import Batch, Part, Share
from showattendtell.self_critical import Rewards, SelfCritical
from showattendtell.splits import Scene
from showattendtell.text.vocabulary import EOS, PAD, Vocabulary
from showattendtell.watch import Figure, RunningMeans, WordClasses, pool, pool_processes, watch_maps


class Written(NamedTuple):
    """A caption that was written for an image, whether it came to its `<eos>`, and what people say of the image."""

    words: list[str]
    ended: bool
    references: list[tuple[str, ...]]


class Step(NamedTuple):
    """What a training step minimises, the sum of its terms, and what tells how training goes.

    nll  -log p of people's captions, the mean over captions; None where they were not read
    """

    terms: dict[str, Tensor]
    figures: dict[str, Tensor]
    nll: Tensor | None


TRAINED = "trained"
"""A checkpoint's entry of the figures over the part of the epoch that has been trained on."""


class CaptioningModule(ImageCaptioner, lightning.LightningModule):
    """Trains a captioner; every epoch it captions the validation images on its own and scores what it wrote.

    Args:
        encoder: gives regions where the data module gives pixels; its weights travel in the checkpoint either way.
        decoding: how the validation images are captioned.
        optimizer: called with the parameter groups.
        card: entries of a checkpoint that say what it is, in plain numbers, strings, lists and dicts.
        self_critical: what rewards captions that the model writes itself, if that is learned from.
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
        self_critical: SelfCritical | None = None,
    ):
        super().__init__(encoder, captioner, vocabulary, decoding)
        self.loss, self.self_critical, self.card = loss, self_critical, dict(card)
        self.make_optimizer, self.schedule = optimizer, schedule
        self._word_classes = WordClasses(vocabulary)
        self._written: dict[str, Written] = {}
        self._trained = RunningMeans()
        self._figures: defaultdict[str, list[Figure]] = defaultdict(list)

    @property
    def selective(self) -> bool:
        """Whether there are attention maps that could move."""
        return self.captioner.attention.selective

    def training_step(self, part: Part[Batch], index: int) -> Tensor:
        """The loss of a part of a batch, so weighted that the mean over processes is that of the batch."""
        batch, share = part
        self.loss.progress = self.global_step / self._num_steps
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        step = self._step(batch, share, people_told=index % every == 0)
        if share.weight:
            self._watch(step, batch.tokens)
        if self.global_step % every == 0:
            self._watch_gradients(step, share.weight)
        return share.weight * total(step.terms)

    def _step(self, batch: Batch, share: Share, people_told: bool) -> Step:
        """Where nothing is learned from people's captions they are read only to be told of."""
        regions, critic = self.regions(batch.images), self.self_critical
        weight = 1.0 if critic is None else critic.reward.likelihood
        step = Step({}, {}, None)
        if weight or people_told:
            with torch.set_grad_enabled(weight > 0):
                people: Loss = self.loss(self.captioner, regions, batch.owners, batch.tokens, share)
            terms = {name: weight * term for name, term in people.terms.items()} if weight else {}
            step = Step(terms, dict(people.figures), people.nll)
        if critic is not None:
            rewards: Rewards = critic(self.captioner, regions, batch)
            step.terms["reward"] = rewards.loss
            step.figures.update(rewards.figures)
        return step

    def _watch(self, step: Step, tokens: Tensor) -> None:
        captions, words = len(tokens), (tokens != PAD).sum()
        self._trained.add("loss", total(step.terms), captions)
        if step.nll is not None:
            self._trained.add("nll_per_word", step.nll * captions / words, words)
        for name, figure in step.figures.items():
            self._trained.add(name, figure, captions)

    def _watch_gradients(self, step: Step, weight: float) -> None:
        """The norm of each term's gradient, before any clipping."""
        parameters = [parameter for parameter in self.captioner.parameters() if parameter.requires_grad]
        for name, term in step.terms.items():
            if term.requires_grad:
                with without_autocast(self.device):  # where the step's own backward pass is, too
                    parts = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
                whole = [mean_over_processes(weight * part) for part in parts if part is not None]
                self._trained.add(f"gradient_norm_{name}", torch.nn.utils.get_total_norm(whole))

    def log_training(self) -> None:
        """Log the epoch's figures of training.

        Lightning would gather them itself, but a checkpoint of its does not have them, and an epoch that goes on from
        one would lack the steps before.
        """
        self._log_figures("train", self._trained.figures())
        self._trained.clear()

    def validation_step(self, batch: Batch | Scene, index: int, dataloader_idx: int = 0) -> None:
        if isinstance(batch, Scene):
            for name, captions, references in zip(batch.names, self.write(batch.images), batch.references, strict=True):
                tokens = captions[0].tokens
                self._written[name] = Written(self.vocabulary.decode(tokens), EOS in tokens, references)
            return
        trace = self.trace(batch.images, batch.owners, batch.tokens)
        words = int((batch.tokens != PAD).sum())
        nll = negative_log_likelihood(trace, batch.tokens).sum() / words
        self._figures["nll_per_word"].append(Figure(nll, words))
        for name, figure in watch_maps(trace, batch.tokens).items():
            self._figures[f"attention_{name}"].append(figure)
        for name, figure in self._word_classes.betas(trace, batch.tokens).items():
            self._figures[f"beta_{name}"].append(figure)

    def on_validation_epoch_end(self) -> None:
        self._log_figures("val", {name: pool(figures) for name, figures in self._figures.items()})
        self._figures.clear()
        hypotheses, ended, references = zip(*gather(self._written).values(), strict=True)
        self._written = {}
        scores = bleu(hypotheses, references)
        self.log_dict({f"val/bleu{n}": 100 * score for n, score in enumerate(scores.without_penalty, start=1)})
        self.log("val/bleu4_with_penalty", 100 * scores.with_penalty[3])
        self.log("val/cider", measure_cider(pair_up(hypotheses, references)).by_image.mean())
        endings = judge_endings(hypotheses, ended)
        self.log_dict({"val/unended": endings.unended, "val/dangling": endings.dangling, "val/words": endings.words})
        self.log("val/distinct_captions", float(len({tuple(words) for words in hypotheses})))

    def _log_figures(self, stage: str, own: dict[str, Figure]) -> None:
        for name, (mean, of) in pool_processes(own).items():
            if of:
                self.log(f"{stage}/{name}", mean.float(), prog_bar=(stage, name) == ("train", "loss"))

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer(parameter_groups(self.captioner, self.encoder, self.encoder.learning_rate))
        optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]  # Lightning unscales, as it clips
        if math.isinf(self.trainer.estimated_stepping_batches):
            raise UserError(
                "trainer: training has no last step, by which rates go; set trainer.max_epochs or trainer.max_steps, "
                "and trainer.max_time to end it earlier"
            )
        self._num_steps = int(self.trainer.estimated_stepping_batches)
        scheduler = LambdaLR(optimizer, lambda step: self.schedule(step, self._num_steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint.update(self.card)
        checkpoint[TRAINED] = {name: tuple(figure) for name, figure in pool_processes(self._trained.figures()).items()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if rank() == 0:  # it has what all had
            figures = {name: Figure(*figure) for name, figure in checkpoint[TRAINED].items()}
            self._trained.resume(figures, self.device)
