"""Evaluation of trained models on a split, for the commands."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from showattendtell.config.command_line import find_options
from showattendtell.config.compose import as_record
from showattendtell.config.instantiate import build, build_option, find_source
from showattendtell.config.schemas import EvaluateSettings, EvaluationDataSettings, StoredSettings, as_list
from showattendtell.config.validation import checked
from showattendtell.datamodules.datasets import ImageSource, ImageSourceFactory
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError, did_you_mean
from showattendtell.inference.predictions import (
    generate_captions,
    measure_attention,
    measure_maps,
    reference_sentences,
)
from showattendtell.loading.hub import find_model, next_to
from showattendtell.loading.matching import MatchedCaptions, in_words
from showattendtell.loading.models import LoadedModel, load_models
from showattendtell.metrics.bootstrap import ImageMeans, corpus_scores, image_scores, intervals
from showattendtell.metrics.clip_score import Clip, load_clip, measure_clip_score
from showattendtell.metrics.tokenizers import default_scoring_name, scoring_name
from showattendtell.results.files import time_figures, versions, write_result
from showattendtell.results.tables import (
    Labels,
    describe_intervals,
    print_attention_scores,
    print_notes,
    print_scores,
    print_statistics,
)
from showattendtell.runtime.distributed import decide_on_first, process_group, rank
from showattendtell.runtime.files import cache_folder, new_path, sha256
from showattendtell.text.vocabulary import Vocabulary, tokenized
from showattendtell.types import Dataset, Example, fingerprint

SHAPES = "showattendtell.readers.shapes.read_shapes"

ATTENTION = "attention"
"""Name of the metric of attention maps, which needs ground-truth boxes instead of generated captions."""


def open_dataset(
    trained: StoredSettings, given: EvaluationDataSettings, cache: str | None
) -> tuple[StoredSettings, Dataset]:
    """Read the data set that a model was trained on.

    Args:
        trained: the settings that the model was trained with.
        given: settings of a command; those that are not null override those of training.
        cache: the same for the folder of the feature cache.

    Returns:
        The settings that were used, and the data set.

    Raises:
        UserError: a setting or the data set is wrong, or the checkpoint does not say how to read its data set.
    """
    stored = reading_settings(trained, given, cache)
    node = stored.dataset
    assert node
    checked({"dataset": as_record(node)})
    is_drawn = node.target == SHAPES and given.root is None
    if is_drawn and not any(cache_folder(node.arguments.get("root")).glob("shapes-*")):
        # the checkpoint may come from a stranger and name any folder
        node = node.changed(root=str(cache_folder(cache) / "shapes"))
    return replace(stored, dataset=node), build(node)


def reading_settings(trained: StoredSettings, given: EvaluationDataSettings, cache: str | None) -> StoredSettings:
    """Return the settings that the images of a data set are read with; see `open_dataset`."""
    if trained.dataset is None:
        raise UserError(
            "the checkpoint does not say how to read its data set; train with a data module such as "
            "Flickr8kDataModule, or score it in Python with trainer.test(model, data)"
        )
    return replace(trained, dataset=trained.dataset.changed(**vars(given)), cache=cache or trained.cache)


class EvaluationRun(NamedTuple):
    """Models, several of them as an ensemble, with the images of a split as each of them reads them.

    hashes: SHA-256 of the files with their weights.
    images: of each model.
    source: the images of any examples, as the first model reads them.
    metrics: names of the scores.
    tokenizer: name of the tokenizer that captions are scored with.
    seed: of resamples, and of what a metric draws.
    """

    checkpoints: Sequence[str]
    hashes: Sequence[str]
    models: Sequence[LoadedModel]
    images: Sequence[ImageSource]
    dataset: Dataset
    split: str
    source: ImageSourceFactory
    metrics: Sequence[str]
    tokenizer: str
    seed: int

    @property
    def module(self) -> ImageCaptioner:
        """The first model."""
        return self.models[0].module

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that all models share."""
        return self.module.vocabulary

    def sentence(self, words: Sequence[str]) -> str:
        """Return a generated caption as a sentence."""
        return self.vocabulary.tokenizer.detokenize(words)

    def in_words(self, captions: dict[Path, list[str]]) -> MatchedCaptions[list[str]]:
        """Return captions of all images of the split, as sentences under any name, with the reference captions; both
        as words for the scorers."""
        references = reference_sentences(self.examples)
        return in_words(MatchedCaptions([*references], [*references.values()], captions), self.tokenizer)

    @property
    def examples(self) -> tuple[Example, ...]:
        """The examples of the split."""
        return self.dataset.split(self.split)

    def title(self) -> str:
        """Return the name of the data set and the split, with the number of images."""
        return f"{self.dataset.title}, {len(self.examples)} images of {self.split}"

    def origin(self) -> dict[str, Any]:
        """Return the provenance for result files; for an ensemble, values that differ by model are lists."""
        by_model = {
            "checkpoint": self.checkpoints,
            "checkpoint_sha256": self.hashes,
            "seed": [model.settings.seed for model in self.models],
            "choices": [model.choices for model in self.models],
            "config": [model.record for model in self.models],
        }
        return {
            "dataset": self.dataset.name,
            "split": self.split,
            "split_sha256": fingerprint(self.examples),
            "images": len(self.examples),
            **{name: values[0] if len(values) == 1 else list(values) for name, values in by_model.items()},
            "versions": versions(),
        }


Captions = Mapping[str, Sequence[Sequence[str]]]
"""Captions of each image in words, best first."""


class RunScores(NamedTuple):
    """Scores by their names in result files, the reason for each missing metric, the scores of each image, and the 95 %
    intervals of the scores over resamples of the images."""

    figures: dict[str, Any]
    missing: Mapping[str, str] = MappingProxyType({})
    per_image: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    intervals: Mapping[str, tuple[float, float]] = MappingProxyType({})


class RunMetric(ABC):
    """A metric of generated captions that needs the model or its images; an option of the group `metric`.

    Attributes:
        labels: labels and number formats of its scores in the table of all scores; empty for a metric that prints
            tables of its own, below that one.
    """

    labels: Labels = MappingProxyType({})

    def check(self, run: EvaluationRun) -> None:
        """Raise `UserError` if the run cannot be measured, before captions are generated."""
        return

    @abstractmethod
    def measure(self, run: EvaluationRun, captions: Captions, figures: Mapping[str, Any]) -> RunScores:
        """Return the scores of the captions.

        Args:
            figures: the other scores so far, by their names in result files.
        """


def run_metrics(names: Sequence[str]) -> list[RunMetric]:
    """Return those of the metrics that are options of the group `metric`.

    Raises:
        UserError: there is no metric of such a name.
    """
    from showattendtell.metrics.classes import METRICS, is_caption_metric  # torchmetrics takes seconds to import

    options = find_options("metric")
    for name in names:
        if not is_caption_metric(name) and name not in (ATTENTION, *options):
            others = did_you_mean(name, [*METRICS, ATTENTION, *options])
            raise UserError(f"metrics={name}: there is no metric '{name}'{others}")
    return [build_option("metric", name) for name in names if name in options]


def open_evaluation(settings: EvaluateSettings) -> EvaluationRun:
    """Load the models of the command, and open the split of the data set of the first one, with captions in its tokens.

    Raises:
        UserError: a checkpoint, a setting or the data set is wrong.
    """
    torch.manual_seed(settings.seed)
    checkpoints = as_list(settings.checkpoint)
    models = load_models(checkpoints, settings.device, build(settings.decoding), settings.attention)
    hashes = [sha256(find_model(path)) for path in checkpoints]
    _, dataset = open_dataset(models[0].settings, settings.dataset, settings.cache)
    sources = []
    for model in models:
        stored = reading_settings(model.settings, settings.dataset, settings.cache)
        source, dataset = find_source(stored, dataset, model.module.encoder, settings.split)
        sources.append(source)
    own_tokenizer = models[0].module.vocabulary.tokenizer
    dataset = tokenized(dataset, own_tokenizer)
    return EvaluationRun(
        checkpoints=checkpoints,
        hashes=hashes,
        models=models,
        images=[source(dataset.split(settings.split)) for source in sources],
        dataset=dataset,
        split=settings.split,
        source=sources[0],
        metrics=settings.metrics,
        tokenizer=scoring_name(settings.tokenizer) if settings.tokenizer else default_scoring_name(own_tokenizer),
        seed=settings.seed,
    )


def evaluate(settings: EvaluateSettings) -> float:
    """Print the scores of models, and write them into a file. Return that of `main_score`."""
    clip = load_clip(settings.clip) if settings.clip else None
    metrics, only_attention = run_metrics(settings.metrics), list(settings.metrics) == [ATTENTION] and not clip
    with process_group():
        run = open_evaluation(settings)
        for metric in metrics:
            metric.check(run)
        kind, ensemble = "attention" if only_attention else "results", "" if len(run.models) == 1 else "-ensemble"
        default = next_to(run.checkpoints[0], f"{kind}-{run.split}{ensemble}.json")
        path = decide_on_first(lambda: new_path(settings.output, default))
        captions = {}
        if not only_attention:
            captions = generate_captions(run.models, run.images, run.examples, settings.seed)
        if rank():
            return 0.0
    if only_attention and (reason := _lacks_boxes(run)):
        raise UserError(reason)
    print_notes(run.dataset.notes)
    figures = _score_attention(run, run.title()) if only_attention else _score_captions(run, captions, metrics, clip)
    print(f"written to {write_result({**figures, **run.origin()}, path)}")
    return main_score(run.metrics, figures)


def main_score(metrics: Sequence[str], scores: Mapping[str, Any]) -> float:
    """Return BLEU-4 without brevity penalty, or without it the first score that is named in `metrics`, or attention
    correctness; nan without any.

    A sweep shows this score for each run.
    """
    names = ("bleu4", *metrics, "attention_correctness")
    return next((float(scores[name]) for name in names if name in scores), nan)


def _score_captions(
    run: EvaluationRun, captions: Captions, metrics: Sequence[RunMetric], clip: Clip | None
) -> dict[str, Any]:
    """Print and return the scores of captions, and what `metrics` add to them."""
    scores = score(run, captions, clip)
    figures, missing, labels = {**scores.figures}, {**scores.missing}, dict[str, Any]()

    def measure(metric: RunMetric) -> None:
        added = metric.measure(run, captions, figures)
        figures.update(added.figures)
        missing.update(added.missing)
        labels.update(metric.labels)

    for metric in metrics:
        if metric.labels:
            measure(metric)
    print_scores([figures], missing, run.title(), labels)
    print_notes(describe_intervals(scores.intervals, len(captions)))
    attention = _evaluate_attention(run)
    for metric in metrics:  # those that print tables of their own take longer
        if not metric.labels:
            measure(metric)
    return {
        **figures,
        **attention,
        "missing": missing,
        **(time_figures(find_model(run.checkpoints[0])) if len(run.checkpoints) == 1 else {}),
        "tokenizer": run.tokenizer,
        "decoding": run.module.decoding.describe(),
        "captions": {image: run.sentence(written[0]) for image, written in captions.items()},
        "references": reference_sentences(run.examples),
        "per_image": scores.per_image,
        "intervals": scores.intervals,
    }


def score(run: EvaluationRun, captions_by_image: Captions, clip: Clip | None = None) -> RunScores:
    """Score the first caption of each image, and compare several with each other.

    A metric that fails is missing and does not prevent the others. Without training captions there is no novelty.

    Args:
        captions_by_image: of all examples of the run.
        clip: the model for CLIPScore, if it is computed.
    """
    from showattendtell.metrics.classes import is_caption_metric, measure  # so does torchmetrics
    from showattendtell.metrics.diversity import compare_captions, diversity  # pycocoevalcap takes a while to import

    captions, images = [captions[0] for captions in captions_by_image.values()], list(captions_by_image)
    # by rank: the first caption of each image, the second, ...
    ranks = [[run.sentence(caption) for caption in rank] for rank in zip(*captions_by_image.values(), strict=False)]
    files = {Path(f"caption {rank} of each image"): sentences for rank, sentences in enumerate(ranks, start=1)}
    corpus = run.in_words(files)
    print_notes(corpus.notes)
    hypotheses, *others = corpus.hypotheses.values()
    result = measure(hypotheses, corpus.references, list(filter(is_caption_metric, run.metrics)))
    if clip:
        device, paths = run.module.device, [example.path for example in run.examples]
        try:
            scores = measure_clip_score(ranks[0], paths, clip, device)
            result.measured["clip_score"] = ImageMeans("clip_score", scores)
        except UserError as error:
            result.missing["clip_score"] = str(error)
    if ATTENTION in run.metrics and (reason := _lacks_boxes(run)):
        result.missing[ATTENTION] = reason
    train = run.dataset.splits.get("train", ())
    training_captions = [caption.words for example in train for caption in example.captions]
    # novelty in the tokens of the model, and the other figures in words, as those of `score`
    figures = corpus_scores(result.measured.values()) | diversity(captions, training_captions or None)
    figures |= diversity(hypotheses)
    if others:
        figures |= compare_captions(list(zip(hypotheses, *others, strict=True)), corpus.references)
    limits = intervals(result.measured, len(images), run.seed)
    return RunScores(figures, result.missing, image_scores(images, result.measured.values()), limits)


def _evaluate_attention(run: EvaluationRun) -> dict[str, Any]:
    """Print and return statistics of attention maps, and the scores at ground-truth boxes; none for an ensemble."""
    if len(run.models) > 1:
        return {}
    statistics = measure_maps(run.module, run.images[0], run.examples)
    figures: dict[str, Any] = {f"attention_{name}": mean for name, mean in statistics.items()}
    print_statistics(figures)
    return figures | _score_attention(run, "attention at the ground-truth boxes")


def _score_attention(run: EvaluationRun, title: str) -> dict[str, Any]:
    """Print and return the pointing game and attention correctness, also by kind of object; none without ground-truth
    boxes."""
    figures = measure_attention(run.module, run.images[0], run.examples)
    if figures:
        print_attention_scores(figures, title)
    return figures


def _lacks_boxes(run: EvaluationRun) -> str:
    """Return why attention cannot be scored at ground-truth boxes; an empty text if it can."""
    if len(run.models) > 1:
        return "attention is scored for one model; give a single checkpoint, or leave attention out of metrics"
    has_boxes = any(caption.phrases for example in run.examples for caption in example.captions)
    return "" if has_boxes else ask_for_boxes(run)


def ask_for_boxes(run: EvaluationRun) -> str:
    """Return the sentence for a data set without ground-truth boxes."""
    return (
        f"the data set {run.dataset.name} has no ground-truth boxes of what its captions name; give them as "
        "dataset.entities=entities.zip (Flickr30k Entities) or, for COCO, as dataset.instances=instances_val2014.json"
    )
