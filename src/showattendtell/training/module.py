"""LightningModule that combines model, loss, decoding and metrics, and how the loss of a step is computed."""

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pkgutil import resolve_name
from typing import Any, NoReturn

import pytorch_lightning as lightning
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.datamodules.datasets import ImageBatch
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Decoding
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import MetricError, UserError
from showattendtell.losses.caption import LossOutput, SoftLoss, negative_log_likelihood, total
from showattendtell.losses.self_critical import SelfCriticalLoss
from showattendtell.metrics.attention import WordClasses, attention_statistics
from showattendtell.metrics.classes import METEOR, CIDErD, CorpusBLEU, Diversity, Endings
from showattendtell.metrics.means import Means, perplexity
from showattendtell.models.captioner import Captioner
from showattendtell.models.encoder import Encoder
from showattendtell.models.interfaces import Attention, Decoder
from showattendtell.models.kernels import device_module
from showattendtell.results.tables import print_scores
from showattendtell.runtime.distributed import gather, rank
from showattendtell.settings import Fraction, NonNegativeFloat, PositiveInt, checked
from showattendtell.text.vocabulary import EOS, PAD, Vocabulary
from showattendtell.training.optimizers import Schedule, parameter_groups
from showattendtell.training.recipe import DROPOUT, Recipe, cosine_of_recipe, loss_of_recipe, restore
from showattendtell.types import AttentionTargets, Batch, BatchShard, ShardedBatch

TRAINED = "training_sums"
"""Entry of a checkpoint with the sums of the training metrics of the epoch so far, by process."""

LOGGED: tuple[str, ...] = ("bleu1", "bleu2", "bleu3", "bleu4", "bleu4_with_penalty", "cider")
LOGGED += ("unended", "dangling", "words", "distinct_captions")
"""Scores of generated captions that are logged."""

SHOWN = ("bleu1", "bleu2", "bleu3", "bleu4", "meteor", "cider", "loss_per_word", "perplexity")
"""Scores that `trainer.test` and `trainer.validate` print; loggers get all."""


QUIET = (
    r"Checkpoint directory .* exists and is not empty",
    r"Found \d+ module\(s\) in eval mode",  # the frozen encoder
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    r"The number of training batches .* is smaller than the logging interval",  # metrics are logged per epoch
    r"The '.*_dataloader' does not have many workers",  # grids are read from memory
    r"It is recommended to use `self.log\(.*sync_dist=True\)`",  # every process logs values that all processes share
    r"You're resuming from a checkpoint that ended before the epoch ended",  # handled by CaptionDataModule
    r"The ``compute`` method of metric \w+ was called before",  # a process without captions; others have some
)
"""Known-harmless warnings of Lightning and torchmetrics."""

for message in QUIET:
    warnings.filterwarnings("ignore", message)


class StepRunner:
    """Calls the encoder and the loss of each training step as they are.

    An extension replaces it by a subclass that computes the same faster on a kind of device: it registers a module as
    `steps`, see `models.kernels.registered`, with a class `Runner`.
    """

    def __init__(self, loss: SoftLoss, captioner: Captioner, encoder: Encoder):
        self._loss, self._captioner, self._encoder = loss, captioner, encoder

    def encode(self, pixels: Tensor) -> Tensor:
        """Encode pixels (I, 3, H, W) as grids (I, L, D) with a trainable encoder."""
        grids: Tensor = self._encoder(pixels)
        return grids

    def loss(
        self,
        regions: Tensor,
        image_index: Tensor,
        tokens: Tensor,
        shard: BatchShard,
        targets: AttentionTargets | None = None,
    ) -> LossOutput:
        """Return the loss of a batch; the arguments are those of `SoftLoss.forward` after the captioner."""
        output: LossOutput = self._loss(self._captioner, regions, image_index, tokens, shard, targets)
        return output

    def keep_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Prepare the gradients of an earlier batch for those of the next one, which are added to them."""

    def describe(self) -> str:
        """Return what to print when the training ends, if anything."""
        return ""


def step_runner(device: torch.device) -> type[StepRunner]:
    """Return the class that computes training steps on a device."""
    steps = device_module("steps", device)
    runner: type[StepRunner] = steps.Runner if steps else StepRunner
    return runner


class CaptioningModule(ImageCaptioner, lightning.LightningModule):
    """Trains a captioner; captions the validation images after every epoch and scores the captions.

    Encoder and vocabulary come from the data module unless they are given. `hidden_dim`, `embedding_dim` and `dropout`
    configure a decoder that is given by name. The defaults are those of `conf/experiment/flickr8k.yaml`.

    Args:
        attention: an option of `conf/attention`, a function of D and n such as an attention class, or an `Attention`;
            by default that of the decoder's option, which is soft for most.
        decoder: an option of `conf/decoder`, a function of `vocabulary_size` and `region_dim`, or a `Decoder`.
        hidden_dim: n, width of the decoder's state.
        embedding_dim: m, width of the word embeddings.
        dropout: dropout rate of the decoder, 0 to 1; by default 0.3 for `lstm`, with which more places have dropout
            than in its class, and that of its class for others.
        lr: learning rate of AdamW, the default optimizer.
        encoder: computes regions if the data module gives pixels; its weights are stored in the checkpoint.
        vocabulary: the model's vocabulary.
        captioner: attention and decoder; replaces `attention` to `dropout`.
        loss: the training loss; by default that of the attention, with label smoothing.
        decoding: decoding method for validation images; by default greedy search.
        optimizer: function from parameter groups to an optimizer.
        schedule: factor on the learning rate at each step; by default a cosine after a tenth of warm-up.
        metadata: additional entries of a checkpoint: plain numbers, strings, lists and dicts.
        self_critical: loss that rewards sampled captions, if any.
    """

    loss: SoftLoss

    @checked
    def __init__(
        self,
        attention: str | Attention | Callable[[int, int], Attention] | None = None,
        decoder: str | Decoder | Callable[..., Decoder] = "lstm",
        hidden_dim: PositiveInt = 512,
        embedding_dim: PositiveInt = 256,
        dropout: Fraction | None = None,
        lr: NonNegativeFloat = 1.1e-3,
        *,
        encoder: Encoder | None = None,
        vocabulary: Vocabulary | None = None,
        captioner: Captioner | None = None,
        loss: SoftLoss | None = None,
        decoding: Decoding | None = None,
        optimizer: Callable[..., Optimizer] | None = None,
        schedule: Schedule | None = None,
        metadata: Mapping[str, Any] | None = None,
        self_critical: SelfCriticalLoss | None = None,
    ):
        if "lightning.pytorch" in sys.modules:  # whose Trainer would refuse the module, without saying why
            advice = "CaptioningModule needs the Trainer of pytorch_lightning: import pytorch_lightning as L"
            warnings.warn(advice, stacklevel=3)
        super().__init__(encoder, captioner, vocabulary, decoding or BeamSearch())  # type: ignore[arg-type]  # see setup
        self.self_critical, self.metadata = self_critical, dict(metadata or {})
        self.loss = loss  # type: ignore[assignment]  # see setup
        self.make_optimizer = optimizer or partial(AdamW, lr=lr, weight_decay=0.01, fused=True)
        self.schedule = schedule or cosine_of_recipe
        self.step_nll: Tensor | None = None
        """-log p per word of the last training step whose loss computed it."""
        self._train_means, self._val_means = Means(), Means()
        scores = {"bleu": CorpusBLEU(), "cider": CIDErD(), "endings": Endings(), "diversity": Diversity()}
        self._scores: Any = nn.ModuleDict({**scores, "meteor": METEOR()})  # METEOR starts Java, in `trainer.test` alone
        self._recipe: Recipe | None = None
        if captioner is None:
            widths: dict[str, Any] = {"hidden_dim": hidden_dim, "embedding_dim": embedding_dim}
            if dropout is not None:
                widths["dropout"] = dropout
            places = DROPOUT if decoder == "lstm" else {}
            self._recipe = Recipe(attention, decoder, **{**places, **widths})
            self.save_hyperparameters({**self._recipe.names, **widths, "lr": lr}, logger=False)
        if encoder is not None and vocabulary is not None:
            self._build()

    def _build(self) -> None:
        """Build the parts that depend on the encoder and the vocabulary."""
        if self._recipe is not None:
            self.captioner = self._recipe.build(self.encoder, self.vocabulary)
        if self.loss is None:
            self.loss = loss_of_recipe(resolve_name(self.captioner.attention.loss))
        self.loss.check(self.captioner)
        self.steps = StepRunner(self.loss, self.captioner, self.encoder)
        self._word_classes = WordClasses(self.vocabulary)

    def setup(self, stage: str) -> None:
        """Take encoder and vocabulary from the data module, or check that they match this model's.

        Raises:
            UserError: there are none, or the data module's differ from this model's; or Lightning was given
                `torch.compile(module)`.
        """
        if "training_step" in vars(self):  # where Lightning puts the compiled method
            raise UserError(
                "pass CaptioningModule itself instead of torch.compile(module): its recurrence is compiled already, by "
                "numba or Triton, and dynamo cannot trace that"
            )
        for metric in (self._train_means, self._val_means, *self._scores.values()):  # of a run that was interrupted
            metric.reset()
        data = getattr(self.trainer, "datamodule", None)
        encoder, vocabulary = getattr(data, "encoder", None), getattr(data, "vocabulary", None)
        if self.captioner is None:
            self.encoder, self.vocabulary = self.encoder or encoder, self.vocabulary or vocabulary
            if self.encoder is None or self.vocabulary is None:
                raise UserError(
                    "CaptioningModule has no encoder or no vocabulary; train with a data module such as "
                    "ShapesDataModule, or pass encoder=... and vocabulary=..."
                )
            self._build()
        if encoder is not None and encoder is not self.encoder and encoder.describe() != self.encoder.describe():
            raise UserError("the data module has another encoder than the model; pass it encoder=model.encoder")
        if vocabulary is not None and vocabulary.words != self.vocabulary.words:
            raise UserError("the data module has other words than the model; pass it vocabulary=model.vocabulary")
        if stage != "fit":
            return
        if self.loss.supervision_weight:
            if not self.selective:
                raise UserError(
                    "loss.supervision_weight compares attention maps with boxes, and the map of attention=none is "
                    "constant; leave it out"
                )
            if isinstance(data, CaptionDataModule):
                data.add_targets(self.encoder.grid)

    def extra_repr(self) -> str:
        """Return the parts that are built with the encoder and vocabulary of the data module, until they are there."""
        if self._recipe is None or self.captioner is not None:
            return ""
        named = ", ".join(f"{name}={value}" for name, value in self.hparams.items())
        return f"{named}\nlayers are built with the encoder and the vocabulary of the data module"

    @property
    def selective(self) -> bool:
        """Return whether attention depends on the image and the words."""
        return self.captioner.attention.selective

    @property
    def backbone(self) -> NoReturn:
        """Refuse Lightning's `BackboneFinetuning`, which reads this: grids of a frozen encoder are not computed anew.

        Raises:
            UserError: always.
        """
        raise UserError(
            "BackboneFinetuning cannot train the encoder; start from a trained model with init_from=... "
            "encoder.trainable=true instead"
        )

    def on_fit_start(self) -> None:
        self.train()  # a pipeline of this module has put it into evaluation mode, and Lightning keeps the mode
        self.steps = step_runner(self.device)(self.loss, self.captioner, self.encoder)

    def on_fit_end(self) -> None:
        if (description := self.steps.describe()) and rank() == 0:
            print(description)
        self.steps = StepRunner(self.loss, self.captioner, self.encoder)  # CUDA graphs cannot be copied

    def training_step(self, sharded_batch: ShardedBatch[Batch], batch_idx: int) -> Tensor:
        """Return the loss of a part of a batch, weighted so that the mean over processes equals the batch loss."""
        batch, shard = sharded_batch
        output = self._step(batch, shard, self._is_logged(batch_idx))
        loss = total(output.terms)
        if shard.weight:
            captions, words = len(batch.tokens), (batch.tokens != PAD).sum()
            means: dict[str, Any] = {name: (value, captions) for name, value in output.metrics.items()}
            means["loss"] = (loss, captions)
            if output.nll is not None:
                self.step_nll = output.nll.detach() * captions / words
                means["loss_per_word"] = (self.step_nll, words)
            self._train_means.update(means)
        return shard.weight * loss

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Add the norm of all gradients before clipping to the means of the epoch, at every step that is logged."""
        if self._is_logged(self.global_step):
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            norm = torch.nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])
            if norm.isfinite():  # mixed precision skips other steps
                self._train_means.update({"gradient_norm": (norm, 1)})

    def _is_logged(self, step: int) -> bool:
        interval: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        return interval > 0 and step % interval == 0

    def encode(self, pixels: Tensor) -> Tensor:
        """Encode pixels (I, 3, H, W) as grids (I, L, D)."""
        is_trained = self.training and self.encoder.trainable
        return self.steps.encode(pixels) if is_trained else super().encode(pixels)

    def on_before_backward(self, loss: Tensor) -> None:
        if self.trainer.accumulate_grad_batches > 1:
            self.steps.keep_gradients(self.parameters())

    def _step(self, batch: Batch, shard: BatchShard, log_nll: bool) -> LossOutput:
        """Return the terms of a step; reference captions that the loss does not use are scored for logging only."""
        regions, critic = self.regions(batch.images), self.self_critical
        inputs = regions, batch.image_index, batch.tokens, shard, batch.targets
        if critic is None:
            return self.steps.loss(*inputs)
        weight, output = critic.reward.likelihood, LossOutput(None, {}, {})
        if weight or log_nll:
            with torch.set_grad_enabled(weight > 0):
                output = self.steps.loss(*inputs)
        rewards = critic(self.captioner, regions, batch)
        terms = {name: weight * value for name, value in output.terms.items() if weight} | rewards.terms
        return LossOutput(output.nll, terms, {**output.metrics, **rewards.metrics})

    def on_train_epoch_end(self) -> None:
        """Log the epoch's training metrics.

        Lightning's own aggregation is not stored in its checkpoints, so an epoch that resumes from one would lack the
        earlier steps.
        """
        self._log_means("train", self._train_means)

    def validation_step(self, batch: Batch | ImageBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        if isinstance(batch, ImageBatch):
            self._score_captions(batch, dataloader_idx)
            return
        outputs = self(batch.images, batch.image_index, batch.tokens)
        words = int((batch.tokens != PAD).sum())
        nll = negative_log_likelihood(outputs, batch.tokens).sum() / words
        means: dict[str, Any] = {"loss_per_word": (nll, words)}
        maps, gates = attention_statistics(outputs, batch.tokens), self._word_classes.betas(outputs, batch.tokens)
        means |= {f"attention_{name}": value for name, value in maps.items()}
        means |= {f"beta_{name}": value for name, value in gates.items()}
        self._val_means.update(means)

    def _score_captions(self, batch: ImageBatch, dataloader_idx: int) -> None:
        tokens = [captions[0].tokens for captions in self.generate(batch.images)]
        loaders: Any = self.trainer.test_dataloaders if self.trainer.testing else self.trainer.val_dataloaders
        loader = loaders[dataloader_idx] if isinstance(loaders, list) else loaders
        # Lightning needs a batch in every process. Those without one caption the first one again, which is not scored.
        if rank() >= len(loader.dataset):
            return
        captions = [self.vocabulary.decode(caption) for caption in tokens]
        for name in ("bleu", "cider", "meteor") if self.trainer.testing else ("bleu", "cider"):
            self._scores[name].update(captions, batch.references)
        self._scores["endings"].update(captions, [EOS in caption for caption in tokens])
        self._scores["diversity"].update(captions)

    test_step = validation_step

    def predict_step(self, batch: ImageBatch, batch_idx: int, dataloader_idx: int = 0) -> dict[str, str]:
        """Return each image's caption by image name."""
        best = [captions[0].tokens for captions in self.generate(batch.images)]
        return {name: self.vocabulary.text(tokens) for name, tokens in zip(batch.names, best, strict=True)}

    def on_validation_epoch_end(self) -> None:
        self._log_evaluation("val")

    def on_test_epoch_end(self) -> None:
        self._log_evaluation("test")

    def _log_evaluation(self, stage: str) -> None:
        means = self._log_means(stage, self._val_means)
        scores = {"cider": self._scores["cider"].compute()}
        for name in ("bleu", "endings", "diversity"):
            scores |= self._scores[name].compute()
        logged, missing = {name: scores[name].item() for name in LOGGED}, dict[str, str]()
        if stage == "test":
            try:
                logged["meteor"] = self._scores["meteor"].compute().item()
            except MetricError as error:
                missing["meteor"] = str(error)
        self.log_dict({f"{stage}/{name}": score for name, score in logged.items()})
        for metric in self._scores.values():
            metric.reset()
        loop = self.trainer.test_loop if stage == "test" else self.trainer.validate_loop
        if loop.verbose and self.trainer.state.fn in ("validate", "test") and rank() == 0:
            nll = float(means["loss_per_word"])
            shown = {**logged, "loss_per_word": nll, "perplexity": perplexity(nll)}
            print_scores([{name: shown[name] for name in SHOWN if name in shown}], missing, f"{stage} images")
        loop.verbose = False  # Lightning would print all metrics, in a column for each loader

    def _log_means(self, stage: str, means: Means) -> dict[str, Tensor]:
        computed = means.compute()
        for name, mean in computed.items():
            self.log(f"{stage}/{name}", mean.float(), prog_bar=(stage, name) == ("train", "loss"))
        means.reset()
        return computed

    def configure_optimizers(self) -> Any:
        optimizer: Any = self.make_optimizer(parameter_groups(self.captioner, self.encoder, self.encoder.learning_rate))
        optimizer._step_supports_amp_scaling = False  # Lightning unscales gradients before it clips them
        if math.isinf(self.trainer.estimated_stepping_batches):
            raise UserError(
                "trainer: the learning rate schedule needs a last step; set trainer.max_epochs or trainer.max_steps, "
                "and trainer.max_time to end it earlier"
            )
        num_steps = int(self.trainer.estimated_stepping_batches)
        scheduler = LambdaLR(optimizer, lambda step: self.schedule(step, num_steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint.update(self.metadata)
        if self._recipe is not None:
            data = getattr(self._trainer, "datamodule", None)
            checkpoint.update(self._recipe.metadata(self.encoder, self.vocabulary, data))
        checkpoint[TRAINED] = gather({str(rank()): self._train_means.own_sums()})

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.captioner is None:  # `load_from_checkpoint`
            if not checkpoint.get("hyper_parameters"):
                raise UserError("this checkpoint was written by `train`; load it with showattendtell.load(PATH)")
            self.encoder, self.vocabulary = restore(checkpoint, self.encoder, self.vocabulary)
            self._build()
        else:
            self._train_means.load(checkpoint.get(TRAINED, {}).get(str(rank()), {}))
