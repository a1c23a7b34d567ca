"""Settings of each command. `--help` shows the descriptions of the attributes.

A command gets them as one object, which is built once after the configuration was checked. Settings that several
commands share are in base classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from showattendtell.errors import UserError
from showattendtell.settings import (
    Dpi,
    ImportPath,
    Inches,
    Node,
    Nodes,
    NonNegativeFloat,
    PictureStyle,
    Place,
    PositiveInt,
    Seed,
    Source,
    Text,
    Texts,
)

Split = Literal["train", "val", "test"]


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Settings of `train`.

    Attributes:
        seed: seed of the order of the captions, the initial weights and dropout.
        cache: the folder of the feature cache and of the images of dataset=shapes.
        init_from: a best.ckpt or the bundled model, from which weights, vocabulary and encoder are loaded; null starts
            with random weights.
        weight_init: random initial weights: default, each layer by its own rule; released, all layers by the rule of
            the released code.
        init_vocabulary: the words of a model that starts from a checkpoint: checkpoint, those that the checkpoint
            knows; or extended, those and the words of the training captions.
        monitor: the metric for best.ckpt and early stopping: bleu4 or cider of the validation captions, or loss, the
            loss per word of the reference captions; val/bleu4, val/cider and val/loss_per_word mean the same.
        brevity_penalty: log and monitor BLEU-4 with the brevity penalty.
        checkpoint_interval_minutes: minutes between two checkpoints within an epoch; 0 writes one after every step.
            Another is written before each validation. Training waits while a checkpoint is written.
        tags: words to find the run by; every logger gets them.
        resume: true resumes the newest unfinished run with the same settings, or starts a new run if there is none; a
            run's folder, or a checkpoint in it, resumes that run, with its settings.
    """

    seed: Seed
    cache: Place
    init_from: Source | None
    weight_init: Literal["default", "released"]
    init_vocabulary: Literal["checkpoint", "extended"]
    monitor: Literal["bleu4", "cider", "loss", "val/bleu4", "val/cider", "val/loss_per_word"]
    brevity_penalty: bool
    checkpoint_interval_minutes: NonNegativeFloat
    tags: Sequence[Text]
    resume: bool | Text = False
    encoder: Node
    features: Node
    tokenizer: Node
    vocabulary: Node
    augment: Node
    attention: Node
    decoder: Node
    loss: Node
    reward: Node
    distillation: Node
    optimizer: Node
    schedule: Node
    decoding: Node
    dataset: Node
    data: Node
    trainer: Node
    callbacks: Nodes
    logger: Nodes = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StoredSettings:
    """Settings of training that a checkpoint is read with; without `dataset` and `features` its images are unknown."""

    encoder: Node
    tokenizer: Node
    attention: Node
    decoder: Node
    dataset: Node | None = None
    features: Node | None = None
    cache: str | None = None
    seed: int = 1


@dataclass(frozen=True, kw_only=True)
class EvaluationDataSettings:
    """Settings of the data set that override those of training; null keeps the one of training.

    Attributes:
        root: the folder of the data set; by default that of training.
        entities: Flickr30k Entities, a zip or folder, for ground-truth boxes.
        instances: COCO's instances, a file or a list of files, for ground-truth boxes.
        skip_unreadable: skip images that cannot be read.
    """

    root: Place | None
    entities: Source | None
    instances: Source | Sequence[Source] | None
    skip_unreadable: bool | None


@dataclass(frozen=True, kw_only=True)
class InferenceAttentionSettings:
    """How attention is computed at inference.

    Attributes:
        inference_mode: hard attention uses a sample, the most probable region, or the expectation; by default as in
            training.
        map: the attention map of decoder=transformer: of the last layer, or of the layer of this number; by default as
            in training.
    """

    inference_mode: Literal["sample", "argmax", "expectation"] | None = None
    map: Literal["last"] | PositiveInt | None = None


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Settings of commands that read a checkpoint, and generate captions.

    Attributes:
        checkpoint: a best.ckpt or last.ckpt of training, the folder of a run for its best.ckpt, a folder written by
            save_pretrained, a bundled model, or one on the hub, as owner/name; or an ensemble of several with one
            vocabulary, as [a.ckpt,b.ckpt], which averages their probabilities and shows the maps of the first.
        seed: seed of random draws by hard attention and decoding=sample.
        device: cpu, cuda, cuda:1, ..., or auto for the GPU if there is one.
    """

    checkpoint: Texts
    seed: Seed
    device: Text
    attention: InferenceAttentionSettings
    decoding: Node


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings(ModelSettings):
    """Settings of `evaluate`.

    Attributes:
        split: the images to caption.
        metrics: which of bleu, meteor, rouge_l, cider and attention are computed; one that fails is reported as
            missing. attention, the pointing game and attention correctness, needs ground-truth boxes; if there are
            boxes it is always computed. metrics=[attention] generates no captions. Extensions have further ones, see
            docs/extensions/reliability.md. The import path of a class adds a metric of your own.
        clip: a CLIP model for CLIPScore, a folder or a name on the hub (needs the package transformers).
        output: the new result file; results-SPLIT.json or results-SPLIT-2.json, ... next to the checkpoint by default,
            attention-SPLIT.json for attention alone.
        cache: the folder of the feature cache; by default that of training.
    """

    split: Split
    metrics: Sequence[Text]
    clip: Text | None
    output: Text | None
    cache: Text | None
    dataset: EvaluationDataSettings
    tokenizer: Node | None = None


def as_list(names: str | Sequence[str]) -> list[str]:
    """Return the names in a setting that is one name or several."""
    return [names] if isinstance(names, str) else list(names)


def model_groups(
    checkpoint: str | Sequence[str], compare: str | Sequence[str], names: Sequence[str] | None = None
) -> dict[str, list[str]]:
    """Return the checkpoints of each pipeline of a command: those of `checkpoint`, an ensemble if there are several,
    and each of `compare` alone.

    Returns:
        The checkpoints by the name of the pipeline: from `names`, or the last two parts of their paths, or the whole
        paths, if these are not different.

    Raises:
        UserError: the names are not different, or not as many as models.
    """
    groups = [as_list(checkpoint), *([path] for path in as_list(compare))]
    titles = list(names or (" + ".join(str(Path(*Path(path).parts[-2:])) for path in group) for group in groups))
    if not names and len(set(titles)) < len(groups):
        titles = list(map(" + ".join, groups))
    if len(set(titles)) != len(titles) or len(titles) != len(groups):
        raise UserError(f"names=[{','.join(titles)}] must have a different name for each model; models: {len(groups)}")
    return dict(zip(titles, groups, strict=True))


@dataclass(frozen=True, kw_only=True)
class CaptioningSettings(ModelSettings):
    """Settings of commands that caption photographs.

    Attributes:
        compare: further checkpoints, as b.ckpt or [b.ckpt,c.ckpt]; each writes its own captions, and all are shown side
            by side.
        names: names to show for the models, as [soft,hard], that of checkpoint first; by default the ends of their
            paths.
    """

    compare: Text | Sequence[Text]
    names: Annotated[Sequence[Text], Field(min_length=1)] | None

    @property
    def groups(self) -> dict[str, list[str]]:
        """The checkpoints of each model or ensemble, by the name that is shown."""
        return model_groups(self.checkpoint, self.compare, self.names)

    @property
    def checkpoints(self) -> list[str]:
        """All checkpoints."""
        return list(chain.from_iterable(self.groups.values()))


@dataclass(frozen=True, kw_only=True)
class CaptionSettings(CaptioningSettings):
    """Settings of `caption`.

    Attributes:
        images: a photograph, the http or https URL of one, a folder, which is searched with its subfolders, or a list
            of these as [a.jpg,b.jpg]; images= may be left out.
        split: images of the checkpoint's own data set instead, as one page with their reference captions.
        num_images: how many images of the split, evenly spread; null for all.
        formats: output formats for photographs: jsonl and csv, a row for each caption; html, one page of all that shows
            a word's attention map on hover; png, svg and pdf, a picture of each with a panel for each word; gif and
            webp, the same as an animation; other options of the group format. By default [jsonl,csv,html]. A split is
            always one html page.
        width: width of a picture in inches; by default each panel has 2 inches, and an animation at most 400 pixels.
        dpi: its dots per inch; 160 by default, 128 in an animation, which is not larger than the photograph.
        colormap: of matplotlib, such as inferno, in whose colors maps are laid over the photograph; by default the
            photograph is darkened where the model did not look.
        words: words whose maps a picture shows, as [dog,ball]; by default all of the caption.
        rows: rows of panels in a picture; by default as many as rows of at most 6 panels need.
        output: a new folder for these files; by default captions, or captions-2, ... if that exists. With split= the
            file of the page; page-SPLIT.html next to the checkpoint by default.
        resume: keep the captions in output= of the same models and settings, and caption the other photographs.
        workers: caption in this number of processes, on the GPUs and machines of a Ray cluster, and write rows; null
            captions in this process.
    """

    images: Texts | None
    split: Split | None
    num_images: PositiveInt | None
    formats: Annotated[Sequence[Text], Field(min_length=1)] | None
    width: Inches | None
    dpi: Dpi | None
    colormap: Text | None
    words: Annotated[Sequence[Text], Field(min_length=1)] | None
    rows: PositiveInt | None
    output: Text | None
    resume: bool
    workers: PositiveInt | None
    dataset: EvaluationDataSettings

    @property
    def style(self) -> PictureStyle:
        """How pictures show the maps."""
        return PictureStyle(self.width, self.dpi, self.colormap, self.words, self.rows)


@dataclass(frozen=True, kw_only=True)
class AverageSettings:
    """Settings of `average`.

    Attributes:
        checkpoint: the best.ckpt or last.ckpt of two or more trainings, as [a.ckpt,b.ckpt]; a checkpoint that is listed
            twice gets double weight.
        output: the new checkpoint.
    """

    checkpoint: Annotated[Sequence[Text], Field(min_length=2)]
    output: Text


@dataclass(frozen=True, kw_only=True)
class ScoreSettings:
    """Settings of `score`.

    Attributes:
        hypotheses: a file with a caption for each image, or two or more, as [a.json,b.json] or a quoted pattern such as
            'runs/*/results-test.json'; every further file is compared with the first.
        references: a file with reference captions, or several that are combined, as [ref0,ref1] or a quoted pattern; by
            default the references in the result files of evaluate.
        split: the split to score, if the references name splits (Karpathy's JSON, a column split); by default all.
        metrics: which of bleu, meteor, rouge_l and cider are computed; one that fails is reported as missing.
            METEOR is for English. The import path of a class adds a metric of your own.
        partial: score the images that have captions, if not all have.
        resamples: number of bootstrap samples of the images, for the intervals of differences.
        seed: seed of the bootstrap samples.
        output: the new result file; scores.json, or scores-2.json, ... by default.
    """

    hypotheses: Texts
    references: Texts | None
    split: Text | None
    metrics: Annotated[Sequence[Literal["bleu", "meteor", "rouge_l", "cider"] | ImportPath], Field(min_length=1)]
    partial: bool
    resamples: PositiveInt
    seed: Seed
    output: Text | None
    tokenizer: Node


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """Settings of `report`.

    Attributes:
        runs: result files of evaluate, or folders that are searched for results-*.json; runs= may be left out.
        split: the split whose results are shown.
        columns: the metrics to show, named as in result files; BLEU is without brevity penalty unless the name says so.
        paper: show the rows of the paper's Table 1 for the data sets of the results.
        output: a new file or a list of files for the table, as .md, .tex (for booktabs) or .html.
    """

    runs: Texts
    split: Split
    columns: Annotated[Sequence[Text], Field(min_length=1)]
    paper: bool
    output: Text | Sequence[Text] | None
