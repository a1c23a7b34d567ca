"""Score caption files of any origin, and compare several files."""

from typing import Any

from showattendtell.config.entry_point import entry_point
from showattendtell.config.schemas import ScoreSettings


@entry_point("score")
def main(settings: ScoreSettings) -> None:
    """Read the files, print their scores, and write them with what is needed to repeat them."""
    from showattendtell.loading.matching import describe, in_words, match
    from showattendtell.metrics.tokenizers import scoring_name
    from showattendtell.readers.formats import find_caption_files, read_all
    from showattendtell.results.files import versions, write_result
    from showattendtell.results.tables import print_notes
    from showattendtell.runtime.files import new_path

    tokenizer, path = scoring_name(settings.tokenizer), new_path(settings.output, "scores.json")
    named = [find_caption_files(given or []) for given in (settings.hypotheses, settings.references)]
    read = read_all(path for paths in named for path in paths)
    hypotheses, references = ({path: read[path] for path in paths} for paths in named)
    corpus = in_words(match(hypotheses, references, settings.split, settings.partial), tokenizer)
    print_notes(corpus.notes)
    content = {
        **_score(corpus, settings),
        "images": len(corpus.images),
        "reference_captions": corpus.num_references,
        "tokenizer": tokenizer,
        **{name: getattr(settings, name) for name in ("split", "partial", "resamples", "seed")},
        "metrics": list(settings.metrics),
        "hypotheses": describe(hypotheses),
        "references": describe(references),
        "notes": corpus.notes,
        "versions": versions(),
    }
    print(f"written to {write_result(content, path)}")


def _score(corpus: Any, settings: ScoreSettings) -> dict[str, Any]:
    """Print and return the scores of the captions in each file, and compare each further file with the first.

    Args:
        corpus: a `MatchedCaptions` in words.
    """
    from showattendtell.metrics.bootstrap import compare_with_first, corpus_scores, image_scores, intervals
    from showattendtell.metrics.classes import measure
    from showattendtell.metrics.diversity import diversity
    from showattendtell.results.tables import describe_intervals, print_comparison, print_notes, print_scores

    num_images, resamples = len(corpus.images), settings.resamples
    scores, missing = dict[str, dict[str, Any]](), dict[str, str]()
    limits, per_image, systems = {}, {}, []
    for file, words in corpus.hypotheses.items():
        panel = measure(words, corpus.references, settings.metrics)
        systems.append(panel.measured)
        figures = corpus_scores(panel.measured.values()) | diversity(words)
        limits[str(file)] = intervals(panel.measured, num_images, settings.seed, resamples)
        scores[str(file)] = {**figures, "missing": panel.missing}
        per_image[str(file)] = image_scores(corpus.images, panel.measured.values())
        missing = panel.missing | missing
    print_scores(list(scores.values()), missing, corpus.title())
    first, *others = scores
    if not others:
        print_notes(describe_intervals(limits[first], num_images))
    comparisons = []
    found = compare_with_first(systems, num_images, resamples, settings.seed)
    for i, (file, comparison) in enumerate(zip(others, found, strict=True), start=2):
        print_comparison(comparison, f"({i}) minus (1), over {resamples:,} resamples of the images")
        comparisons.append({"a": first, "b": file, "differences": comparison})
    return {"scores": scores, "per_image": per_image, "intervals": limits, "comparisons": comparisons}


if __name__ == "__main__":
    main()
