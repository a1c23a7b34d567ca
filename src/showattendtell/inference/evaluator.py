"""Evaluation of trained models on a split, for the commands."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch

from showattendtell.config.compose import to_plain
from showattendtell.config.folders import find_options, read_option
from showattendtell.config.instantiate import Config, build, find_source
from showattendtell.config.validation import TARGET, raise_errors, validate
from showattendtell.data.languages import in_language, language_of, tokenized
from showattendtell.data.vocabulary import Vocabulary
from showattendtell.datamodules.datasets import ImageSourceFactory
from showattendtell.decoding.decoding import Decoding
from showattendtell.errors import UserError, did_you_mean
from showattendtell.inference.loading import (
    CACHE,
    LoadedModel,
    find_model,
    load_models,
    next_to,
    reading_settings,
)
from showattendtell.inference.matching import MatchedCaptions, in_words
from showattendtell.inference.predictions import Predictor, measure_attention, measure_maps, measure_relations
from showattendtell.metrics.bootstrap import corpus_scores, image_scores, intervals
from showattendtell.metrics.clip_score import Clip
from showattendtell.metrics.tokenizers import default_scoring_name, scoring_name
from showattendtell.runtime.files import cache_folder, sha256
from showattendtell.types import Dataset, Example, fingerprint
from showattendtell.visualization.result_files import versions
from showattendtell.visualization.tables import (
    Labels,
    attention_score_figures,
    print_attention_scores,
    print_notes,
    print_statistics,
    relation_figures,
)

SHAPES = "showattendtell.data.shapes.read_shapes"

ATTENTION = "attention"
"""Name of the metric of attention maps, which needs ground-truth boxes instead of generated captions."""


class EvaluationRun(NamedTuple):
    """Models, several of them as an ensemble, with the images of a split as each of them reads them.

    hashes: SHA-256 of the files with their weights.
    predictors: each model with its images.
    mirrors: each model with mirror images; empty if the decoding does not use them.
    source: the images of any examples, as the first model reads them.
    """

    checkpoints: Sequence[str]
    hashes: Sequence[str]
    models: Sequence[LoadedModel]
    predictors: Sequence[Predictor]
    mirrors: Sequence[Predictor]
    dataset: Dataset
    split: str
    source: ImageSourceFactory

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that all models share."""
        return self.predictors[0].module.vocabulary

    @property
    def language(self) -> str:
        """The language of the captions; empty if the data set does not say it."""
        return language_of(self.examples)

    def scoring_tokenizer(self, tokenizer: Config | None) -> str:
        """Return the name of the tokenizer that captions are scored with; by default `default_scoring_name`."""
        return default_scoring_name(self.vocabulary.tokenizer) if tokenizer is None else scoring_name(tokenizer)

    def sentence(self, words: Sequence[str]) -> str:
        """Return a generated caption as a sentence."""
        return self.vocabulary.tokenizer.detokenize(words)

    @property
    def examples(self) -> tuple[Example, ...]:
        """The examples of the split."""
        return self.dataset.split(self.split)

    def title(self) -> str:
        """Return the name of the data set and the split, with the number of images."""
        language = f", captions in {self.language}" if self.language else ""
        return f"{self.dataset.name}, {len(self.examples)} images of {self.split}{language}"

    def origin(self) -> dict[str, Any]:
        """Return the provenance for result files; for an ensemble, values that differ by model are lists."""
        return {
            "dataset": self.dataset.name,
            "split": self.split,
            "split_sha256": fingerprint(self.examples),
            "images": len(self.examples),
            **({"language": self.language} if self.language else {}),
            "checkpoint": self._each(self.checkpoints),
            "checkpoint_sha256": self._each(self.hashes),
            "seed": self._each([model.config.seed for model in self.models]),
            "choices": self._each([model.choices for model in self.models]),
            "config": self._each([to_plain(model.config) for model in self.models]),
            "versions": versions(),
        }

    def _each(self, values: Sequence[Any]) -> Any:
        return values[0] if len(values) == 1 else list(values)

    def result_file(self, kind: str) -> Path:
        """Return the default path of a result file: `KIND-SPLIT.json` next to the first checkpoint, for an ensemble
        `KIND-SPLIT-ensemble.json`, and for a model of several languages `KIND-SPLIT-LANGUAGE.json`."""
        language = f"-{self.language}" if self.vocabulary.languages else ""
        ensemble = "" if len(self.checkpoints) == 1 else "-ensemble"
        return next_to(self.checkpoints[0], f"{kind}-{self.split}{language}{ensemble}.json")


Captions = Mapping[str, Sequence[Sequence[str]]]
"""Captions of each image in words, best first."""


class RunScores(NamedTuple):
    """Scores by their names in result files, the reason for each missing metric, the scores of each image, and the 95 %
    intervals of the scores over resamples of the images."""

    figures: dict[str, Any]
    missing: Mapping[str, str] = MappingProxyType({})
    per_image: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    intervals: Mapping[str, tuple[float, float]] = MappingProxyType({})


class RunMetric(Protocol):
    """A metric of generated captions that needs the model or its images; an option of the group `metric`.

    Attributes:
        labels: labels and number formats of its scores in the table of all scores; empty for a metric that prints
            tables of its own, below that one.
    """

    labels: Labels

    def check(self, run: EvaluationRun) -> None:
        """Raise `UserError` if the run cannot be measured, before captions are generated."""

    def measure(self, run: EvaluationRun, captions: Captions, seed: int) -> RunScores:
        """Return the scores of the captions."""


def run_metrics(names: Sequence[str]) -> list[RunMetric]:
    """Return those of the metrics that are options of the group `metric`.

    Raises:
        UserError: there is no metric of such a name.
    """
    from showattendtell.metrics.modular import METRICS, is_caption_metric  # torchmetrics takes seconds to import

    options = find_options("evaluate", "metric")
    for name in names:
        if not is_caption_metric(name) and name not in (ATTENTION, *options):
            others = did_you_mean(name, [*METRICS, ATTENTION, *options])
            raise UserError(f"metrics={name}: there is no metric '{name}'{others}")
    return [build(read_option("metric", name)) for name in names if name in options]


def draw_into_user_cache(settings: Config, cache: str | None) -> None:
    """Set the folder of `dataset=shapes` to the user's own cache unless its images exist: the checkpoint may come from
    a stranger and name any folder."""
    root = settings.dataset.get("root")
    if settings.dataset[TARGET] == SHAPES and not any(cache_folder(root).glob("shapes-*")):
        settings.dataset.root = f"{cache or CACHE}/shapes"


def open_evaluation(config: Config, decoding: Decoding) -> EvaluationRun:
    """Load the checkpoints and the split that the configuration of a command names.

    Settings of `dataset`, `attention` and `cache` that are not null override those of training. The data set is that of
    the first checkpoint, with captions in its tokens, and in the chosen language for a model of several.

    Raises:
        UserError: a checkpoint, a setting or the data set is wrong.
    """
    torch.manual_seed(config.seed)
    checkpoints = [config.checkpoint] if isinstance(config.checkpoint, str) else list(config.checkpoint)
    models = load_models(checkpoints, config.device, decoding, config.attention)
    hashes = [sha256(find_model(path)) for path in checkpoints]
    settings = [reading_settings(model.config, dataset=config.dataset, cache=config.cache) for model in models]
    raise_errors(validate(settings[0]))
    if config.dataset.root is None:
        draw_into_user_cache(settings[0], config.cache)
    dataset = build(settings[0].dataset)
    sources = []
    for model, own in zip(models, settings, strict=True):
        source, dataset = find_source(own, dataset, model.module.encoder, config.split)
        sources.append(source)
    module = models[0].module
    if module.language is not None:
        dataset = in_language(dataset, module.language)
    dataset = tokenized(dataset, module.vocabulary.tokenizer)
    examples = dataset.split(config.split)
    predictors, mirrors = [], []
    for model, source in zip(models, sources, strict=True):
        predictors.append(Predictor(model.module, source(examples)))
        if decoding.mirrored:
            mirrors.append(Predictor(model.module, source(examples, "mirrored")))
    return EvaluationRun(checkpoints, hashes, models, predictors, mirrors, dataset, config.split, sources[0])


def score(
    run: EvaluationRun,
    captions_by_image: Mapping[str, Sequence[Sequence[str]]],
    references: Mapping[str, list[str]],
    config: Config,
    clip: Clip | None = None,
) -> RunScores:
    """Score the first caption of each image, and compare several with each other.

    A metric that fails is missing and does not prevent the others. Without training captions there is no novelty.

    Args:
        captions_by_image: captions of each image in words, best first.
        references: reference captions of each image.
        config: of the command, with `metrics` and `tokenizer`.
        clip: the model for CLIPScore, if it is computed.
    """
    from showattendtell.metrics.diversity import compare_captions, diversity  # pycocoevalcap takes a while to import
    from showattendtell.metrics.modular import (  # torchmetrics takes seconds to import
        ENGLISH,
        CLIPScore,
        is_caption_metric,
        measure,
    )

    captions, images = [captions[0] for captions in captions_by_image.values()], list(captions_by_image)
    # by rank: the first caption of each image, the second, ...
    ranks = [[run.sentence(caption) for caption in rank] for rank in zip(*captions_by_image.values(), strict=False)]
    files = {Path(f"caption {rank}"): sentences for rank, sentences in enumerate(ranks, start=1)}
    matched = MatchedCaptions(images, list(references.values()), files)
    corpus = in_words(matched, run.scoring_tokenizer(config.get("tokenizer")))
    print_notes(corpus.notes)
    hypotheses, *others = corpus.hypotheses.values()
    names = list(filter(is_caption_metric, config.metrics))
    result = measure(hypotheses, corpus.references, names, run.language or ENGLISH)
    if ATTENTION in config.metrics and (reason := _lacks_attention(run)):
        result.missing[ATTENTION] = reason
    train = run.dataset.splits.get("train", ())
    training_captions = [caption.words for example in train for caption in example.captions]
    figures = corpus_scores(result.measured.values()) | diversity(captions, training_captions or None)
    if others:
        figures |= compare_captions(list(zip(hypotheses, *others, strict=True)), corpus.references)
    if clip:
        clip_score = CLIPScore(clip).to(run.predictors[0].module.device)
        try:
            clip_score.update(ranks[0], [example.path for example in run.examples])
            figures["clip_score"] = clip_score.compute().item()
        except UserError as error:
            result.missing["clip_score"] = str(error)
    limits = intervals(result.measured, len(images), config.seed)
    return RunScores(figures, result.missing, image_scores(images, result.measured.values()), limits)


def evaluate_attention(run: EvaluationRun, with_kinds: bool = False) -> dict[str, Any]:
    """Print and return the scores of attention maps and relation words; none for an ensemble.

    Args:
        with_kinds: also print the scores by kind of object.
    """
    if len(run.predictors) > 1:
        return {}
    statistics = measure_maps(*run.predictors[0], run.examples)
    figures: dict[str, Any] = {f"attention_{name}": mean for name, mean in statistics.items()}
    figures |= relation_figures(measure_relations(*run.predictors[0], run.examples))
    print_statistics(figures)
    if attention_scores := measure_attention(*run.predictors[0], run.examples):
        figures |= attention_score_figures(attention_scores)
        print_attention_scores(figures, "attention at the ground-truth boxes", with_kinds)
    return figures


def score_attention_maps(run: EvaluationRun) -> dict[str, Any]:
    """Print and return the pointing game and attention correctness, also by kind of object.

    Raises:
        UserError: the data set has no ground-truth boxes, or there are several models.
    """
    if reason := _lacks_attention(run):
        raise UserError(reason)
    attention_scores = measure_attention(*run.predictors[0], run.examples)
    assert attention_scores
    figures = attention_score_figures(attention_scores)
    print_attention_scores(figures, run.title(), with_kinds=True)
    print_notes(run.dataset.notes)
    return figures


def _lacks_attention(run: EvaluationRun) -> str:
    """Return why attention cannot be scored; an empty text if it can."""
    if len(run.predictors) > 1:
        return "attention is scored for one model; give a single checkpoint, or leave attention out of metrics"
    if any(caption.phrases for example in run.examples for caption in example.captions):
        return ""
    return (
        f"the data set {run.dataset.name} has no ground-truth boxes of what its captions name; give them as "
        "dataset.entities=entities.zip (Flickr30k Entities) or, for COCO, as dataset.instances=instances_val2014.json"
    )
