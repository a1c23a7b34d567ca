"""Knowledge distillation: learn from the word distributions (Hinton et al. 2015) and the captions (Kim and Rush 2016)
of trained models.

Sizes are those of `showattendtell.types`; N is the number of words of a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from omegaconf import DictConfig
from torch import Tensor

from showattendtell.data.formats import find_caption_files, read_all
from showattendtell.data.tokenizers import Tokenizer, tokenize
from showattendtell.data.vocabulary import PAD, Vocabulary
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError, listed
from showattendtell.inference.finding import find_model
from showattendtell.inference.loading import load_models
from showattendtell.losses.caption import LossOutput
from showattendtell.models.encoder import Encoder
from showattendtell.runtime.files import sha256
from showattendtell.settings import PositiveFloat, Probability, Texts
from showattendtell.training.module import TrainingExtra
from showattendtell.types import Batch, Caption, Dataset


def with_generated(
    dataset: Dataset, tokenizer: Tokenizer, files: str | Sequence[str], keep_references: bool = False
) -> Dataset:
    """Return the data set with generated captions of the training images in place of their reference captions, or
    after them.

    Args:
        files: paths or patterns of caption files, such as the results of `evaluate`; each gives every training image
            one or more captions.

    Raises:
        UserError: a file lacks a caption of a training image.
    """
    train = dataset.split("train")
    captions = {example.image: list(example.captions) if keep_references else [] for example in train}
    for path, file in read_all(find_caption_files(files)).items():
        missing = dict.fromkeys(captions)
        for image, image_captions in captions.items():
            for sentence in file.captions.get(image, ()):
                if plain := tokenize(sentence):
                    missing.pop(image, None)
                    words = tokenizer.tokenize(sentence)
                    image_captions.append(Caption(words, (), sentence.strip(), plain))
        if missing:
            raise UserError(
                f"{path} has no caption or an empty one of {len(missing):,} of {len(captions):,} training images "
                f"({listed([*missing])}); write it by evaluate split=train decoding.min_length=1"
            )
    train_examples = tuple(example._replace(captions=tuple(captions[example.image])) for example in train)
    return dataset._replace(splits={**dataset.splits, "train": train_examples})


@dataclass(frozen=True)
class Distillation(TrainingExtra):
    """Training on the output of trained models: on their word distributions, their captions, or both.

    teacher: a checkpoint, or an ensemble of several, as [a.ckpt,b.ckpt], with the vocabulary and the encoder of the
        model that is trained. Their mean word probabilities are learned.
    weight: w, the weight of the teacher's word distributions; that of the captions' likelihood is 1 - w.
    temperature: T; above 1, words that the teacher finds unlikely matter more.
    captions: a result file of evaluate split=train, or several, as [a.json,b.json] or a quoted pattern; their captions
        of the training images replace the reference captions.
    keep_references: train on these captions and on the reference captions.
    """

    teacher: Texts | None = None
    weight: Probability = 0.5
    temperature: PositiveFloat = 1.0
    captions: Texts | None = None
    keep_references: bool = False

    def change_data(self, dataset: Dataset, tokenizer: Tokenizer) -> Dataset:
        if not self.captions:
            return dataset
        return with_generated(dataset, tokenizer, self.captions, self.keep_references)

    def change_module(self, module: Any, config: DictConfig) -> dict[str, Any]:
        """Add the divergence from the teachers, if there are any; return the hashes of their weights."""
        if self.teacher is None:
            return {}
        paths = [self.teacher] if isinstance(self.teacher, str) else self.teacher
        with torch.random.fork_rng(devices=[]):  # loading draws initial weights, and must not change the student's
            models = load_models(paths, "cpu", module.decoding)
        module.terms.append(DistillationLoss([model.module for model in models], self.weight, self.temperature))
        return {"teachers": [sha256(find_model(path)) for path in paths]}


class DistillationLoss:
    """Replace the likelihood of each word by a sum with the divergence from the teachers (Hinton et al. 2015, Sec. 2):

        -(1 - w) log p(y_t) + w T^2 KL(q_T || p_T)     p_T proportional to p^(1/T), q_T to q^(1/T)

    p is the student's distribution, given the sampled locations with hard attention, and q the mean of the teachers'.
    All read the same captions (teacher forcing) and the same views of the images. Other terms of the loss stay as they
    are. The teachers are in evaluation mode and have no gradients. This is not an `nn.Module`, so that they are
    neither in checkpoints nor put into training mode with the student.

    Memory: about eight float32 tensors of N x V, whatever the number of teachers; the cross-entropy of the reference
    captions alone keeps one.

    Args:
        teachers: trained models; one that is listed twice gets double weight.
        weight: w, 0 to 1.
        temperature: T, above 0.
    """

    def __init__(self, teachers: Sequence[ImageCaptioner], weight: float = 0.5, temperature: float = 1.0):
        self.teachers = [teacher.eval().requires_grad_(False) for teacher in teachers]
        self.weight, self.temperature = weight, temperature

    def check(self, student: Any) -> None:
        """Check that a `CaptioningModule` can learn from the teachers.

        Raises:
            UserError: the vocabulary or the encoder is another one, or attention or loss are not supported.
        """
        if student.self_critical is not None and not student.self_critical.reward.likelihood:
            raise UserError(
                "distillation.teacher is part of the loss on captions, which reward.likelihood=0 leaves out; set it "
                "above 0, or leave distillation.teacher out of this stage"
            )
        for teacher in self.teachers:
            if _identity(teacher.vocabulary) != _identity(student.vocabulary):
                raise UserError(
                    f"distillation.teacher has another vocabulary ({len(teacher.vocabulary):,} words) than this model "
                    f"({len(student.vocabulary):,}); train both on the same data set with the same tokenizer and "
                    "vocabulary.size"
                )
            if differences := _differences(teacher.encoder, student.encoder):
                raise UserError(
                    f"distillation.teacher was trained on other features than this model (different: "
                    f"{', '.join(differences)}); train both with the same encoder"
                )

    def __call__(self, output: LossOutput, batch: Batch) -> LossOutput:
        """Return the loss of a batch with the divergence, from its loss on the captions."""
        outputs, words = output.outputs, batch.tokens.flatten()
        assert outputs is not None
        for teacher in self.teachers:
            teacher.to(words.device)
        steps = outputs.indices % len(words)  # hard attention has the whole batch once per sample
        log_q = _soften(self._log_probs(batch)[steps], self.temperature)
        log_p = _soften(outputs.logits, self.temperature)
        word_divergence = F.kl_div(log_p, log_q, reduction="none", log_target=True).sum(dim=1)
        divergence = outputs.at_steps(word_divergence.masked_fill(words[steps] == PAD, 0.0)).sum(dim=1).mean()
        terms = {
            **output.terms,
            "likelihood": (1 - self.weight) * output.terms["likelihood"],
            "distillation": self.weight * self.temperature**2 * divergence,
        }
        return output._replace(terms=terms, metrics={**output.metrics, "distillation": divergence.detach()})

    @torch.no_grad()
    def _log_probs(self, batch: Batch) -> Tensor:
        """Return log sum_k q_k of the words at all steps, (B * T, V): log q up to a constant."""
        outputs = (teacher(batch.images, batch.image_index, batch.tokens) for teacher in self.teachers)
        log_probs = (output.at_steps(_soften(output.logits)).flatten(0, 1) for output in outputs)
        return reduce(torch.logaddexp, log_probs)


def _soften(scores: Tensor, temperature: float = 1.0) -> Tensor:
    """Return log softmax(s / T) of scores (N, V), in float32 at least."""
    dtype = torch.promote_types(scores.dtype, torch.float32)
    return (scores.to(dtype) / temperature).log_softmax(dim=1)


def _identity(vocabulary: Vocabulary) -> tuple[object, ...]:
    return vocabulary.words, vocabulary.tokenizer.settings(), vocabulary.tokenizer.state()


def _differences(teacher: Encoder, student: Encoder) -> list[str]:
    """Return the names of what differs in the regions of two encoders. Of a student that trains its encoder, the
    teacher gets pixels, and encodes them itself."""
    own, others = student.describe(), teacher.describe()
    names = ("pixels", "preprocessing") if student.trainable else {**others, **own}
    return [name for name in names if others.get(name) != own.get(name)]
