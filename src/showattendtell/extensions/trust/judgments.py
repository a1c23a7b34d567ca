"""Agreement of metrics with human judgments of captions, as Kendall's rank correlation.

With C concordant and D discordant pairs among n pairs of a score and a rating, T_x and T_y pairs that tie only in the
score and only in the rating, and m the smaller number of different values of both:

    tau-b = (C - D) / sqrt((C + D + T_x) (C + D + T_y))      tau-c = 2 (C - D) / (n^2 (m - 1) / m)

Every rating of a caption counts as a pair of its own.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from omegaconf import DictConfig
from scipy.stats import kendalltau

from showattendtell.data.formats import find_caption_files, read_all
from showattendtell.data.parsing import Sentences, read_text
from showattendtell.errors import UserError, listed
from showattendtell.inference.matching import MatchedCaptions, describe, in_words, match_references
from showattendtell.metrics.bootstrap import Array
from showattendtell.metrics.clip_score import load_clip, measure_clip_score
from showattendtell.metrics.modular import measure
from showattendtell.metrics.tokenizers import scoring_name
from showattendtell.runtime.files import expand_home, new_path, sha256
from showattendtell.visualization.result_files import versions, write_json
from showattendtell.visualization.tables import METRICS, numeric_table, print_notes, print_titled

EXPERT, CROWDFLOWER = "Flickr8k-Expert", "Flickr8k-CrowdFlower"

PUBLISHED = {EXPERT: "drop", CROWDFLOWER: "keep"}
"""What Hessel et al. 2021 do with candidates that are a reference of their own image. `drop` leaves them out. `keep`
scores them, and removes them from the references of the image, for its other candidates too."""


class Judgment(NamedTuple):
    """A caption for an image, and its ratings: one for each rater, or their mean; higher is better."""

    image: str
    caption: str
    ratings: tuple[float, ...]


class RatedCaptions(NamedTuple):
    """Content of a judgment file: M judgments, and the references of the image of each.

    layout      name of the data set that has files in this form
    candidates  `keep` or `drop`, see `PUBLISHED`
    own         number of candidates in the file that are a reference of their own image
    """

    layout: str
    judgments: list[Judgment]
    references: list[list[str]]
    candidates: str
    own: int


def read_judgments(path: Path, captions: Sentences, candidates: str | None = None) -> RatedCaptions:
    """Read a judgment file of Flickr8k. Its first line decides between the two layouts.

    - Flickr8k-Expert (Hodosh et al. 2013, `ExpertAnnotations.txt`): image, caption id, three ratings from 1 to 4.
    - Flickr8k-CrowdFlower (`CrowdFlowerAnnotations.txt`): image, caption id, fraction of yes, number of yes, of no.

    Args:
        captions: reference captions by image; those that the caption ids name are among them.
        candidates: `keep` or `drop` candidates that are a reference of their own image; by default as `PUBLISHED`.

    Raises:
        UserError: the file is missing or empty, a line is damaged, an image or a caption is unknown, or no candidate is
            left.
    """
    text = read_text(path)
    if not text.strip():
        raise UserError(f"{path} is empty")
    references = {image: [caption.strip() for caption in given] for image, given in captions.items()}
    judgments = list(_read_judgments(text, path, references))
    layout = EXPERT if len(judgments[0].ratings) == 3 else CROWDFLOWER
    unknown = list(dict.fromkeys(judgment.image for judgment in judgments if judgment.image not in references))
    if unknown:
        raise UserError(
            f"{path} judges captions of {len(unknown):,} images ({listed(unknown)}) that the references do not have; "
            "give the caption file of these images as references=..."
        )
    candidates = candidates or PUBLISHED[layout]
    others = [judgment for judgment in judgments if judgment.caption not in references[judgment.image]]
    num_own = len(judgments) - len(others)
    if candidates == "drop":
        judgments = others
    else:
        for image, caption, _ in judgments:
            if caption in references[image]:
                references[image].remove(caption)
    if not judgments:
        raise UserError(
            f"{path} has no caption to score; candidates=keep keeps captions that are a reference of their own image"
        )
    of_images = [references[judgment.image] for judgment in judgments]
    return RatedCaptions(layout, judgments, of_images, candidates, num_own)


ROW = re.compile(r"([^\t]+)\t([^\t]+)#(\d{1,9})" + 3 * r"\t(\d{1,9}(?:\.\d*)?)")
"""Image, caption id and three numbers between tabs."""


def _read_judgments(text: str, path: Path, captions: Sentences) -> Iterator[Judgment]:
    """Yield the judgment in each line. An expert's has three ratings."""
    is_expert = None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        origin = f"{path}, line {number}"
        row = ROW.fullmatch("\t".join(cell.strip() for cell in line.split("\t")))
        if not row:
            raise UserError(
                f"{origin}: expected an image, a caption id such as 'name.jpg#0' and three numbers between tabs, "
                f"got '{line[:60]}'"
            )
        image, source, index, *numbers = row.groups()
        ratings = tuple(map(float, numbers))
        wrong = [rating for rating in ratings if rating not in (1, 2, 3, 4)]
        if is_expert is None:  # of a fraction of yes and its numbers, one is 0 or the fraction is not whole
            is_expert = not wrong
        if is_expert and wrong:
            raise UserError(f"{origin}: ratings are 1, 2, 3 or 4, got {wrong[0]:g}; correct or remove the line")
        if int(index) >= len(captions.get(source, ())):
            raise UserError(
                f"{origin}: the references have no caption {source}#{index}; give the caption file that the ids are "
                "from"
            )
        yield Judgment(image, captions[source][int(index)], ratings if is_expert else ratings[:1])


def rank_correlation(scores: Sequence[float] | Array, ratings: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return Kendall's `tau_b` and `tau_c`, times 100, of a metric; nan if all scores or all ratings are equal.

    Args:
        scores: (M,) one for each caption.
        ratings: M sequences, the ratings of each caption.
    """
    repeated = np.repeat(scores, list(map(len, ratings)))
    flat = np.concatenate(ratings)
    return {f"tau_{variant}": 100 * float(kendalltau(repeated, flat, variant=variant).statistic) for variant in "bc"}


def score_metrics(config: DictConfig) -> None:
    """Print and write Kendall's tau of each metric with the judgments in the file `judgments` of `score`."""
    tokenizer = scoring_name(config.tokenizer)
    path = new_path(config.output, "scores.json")
    source = expand_home(config.judgments)
    if config.references is None:
        raise UserError("references is not set; give the caption file of the judged images, as references=...")
    files = read_all(find_caption_files(config.references))
    captions = match_references(files, config.split)
    rated = read_judgments(source, captions, config.candidates)
    images, candidates, ratings = zip(*rated.judgments, strict=True)
    corpus = in_words(MatchedCaptions(list(images), rated.references, {source: list(candidates)}), tokenizer)
    clip = load_clip(config.clip) if config.clip else None

    panel = measure(corpus.hypotheses[source], corpus.references, config.metrics)
    by_caption = {name: scores for metric in panel.measured.values() for name, scores in metric.per_image().items()}
    if clip:
        paths = [str(expand_home(config.images) / image) for image in images]
        by_caption["clip_score"] = measure_clip_score(candidates, paths, clip, "cpu")
    correlations = {name: rank_correlation(scores, ratings) for name, scores in by_caption.items()}
    num_ratings, is_published = sum(map(len, ratings)), rated.candidates == PUBLISHED[rated.layout]
    print_notes(corpus.notes)
    treatment = "left out" if rated.candidates == "drop" else "scored, and removed from the references"
    title = (
        f"{rated.layout}, {num_ratings:,} ratings of {len(images):,} captions\n"
        f"candidates={rated.candidates} ({'published' if is_published else 'not the published protocol'}): "
        f"{rated.own:,} that are a reference of their own image are {treatment}"
    )
    table = numeric_table("", ("tau-b", "tau-c"))
    labels = {f"bleu{n}": f"BLEU-{n}" for n in range(1, 5)} | {name: label for name, (label, _) in METRICS.items()}
    for name, correlation in correlations.items():
        table.add_row(labels.get(name, name), *(f"{tau:.3f}" for tau in correlation.values()))
    print_titled(table, title, panel.missing)
    path = write_json(
        {
            "scores": correlations,
            "missing": panel.missing,
            "judgments": {"file": str(source), "layout": rated.layout, "sha256": sha256(source)},
            "candidates": rated.candidates,
            "published_protocol": is_published,
            "own_references": rated.own,
            "captions": len(images),
            "ratings": num_ratings,
            "tokenizer": tokenizer,
            "split": config.split,
            "metrics": list(config.metrics),
            "references": describe(files),
            "notes": corpus.notes,
            "versions": versions(),
        },
        path,
    )
    print(f"written to {path}")
