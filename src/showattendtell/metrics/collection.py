"""All caption metrics; a metric that is not available gives its reason, the others are still computed."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

from showattendtell.errors import UserError, did_you_mean
from showattendtell.metrics.bleu import measure_bleu
from showattendtell.metrics.cider import measure_cider
from showattendtell.metrics.java import MetricError
from showattendtell.metrics.meteor import measure_meteor
from showattendtell.metrics.rouge import measure_rouge_l
from showattendtell.metrics.spice import measure_spice
from showattendtell.metrics.sufficient_statistics import (
    CaptionPair,
    SufficientStatistics,
    Words,
    corpus_figures,
    pair_up,
)

MetricName = Literal["bleu", "meteor", "rouge_l", "cider", "spice"]
METRICS: tuple[str, ...] = get_args(MetricName)

_MEASURE: dict[str, Callable[[Sequence[CaptionPair]], SufficientStatistics]] = {
    "bleu": measure_bleu,
    "meteor": measure_meteor,
    "rouge_l": measure_rouge_l,
    "cider": measure_cider,
    "spice": measure_spice,
}


class CaptionMetrics(NamedTuple):
    """Statistics of each metric, or the reason for a missing one, in one sentence."""

    measured: dict[str, SufficientStatistics]
    missing: dict[str, str]


def measure(
    hypotheses: Sequence[Words], references: Sequence[Sequence[Words]], metrics: Sequence[str]
) -> CaptionMetrics:
    """Measure a corpus; a `UserError` for an unknown metric.

    Args:
        hypotheses: one caption per image.
        references: the reference captions of each image, at least one.
        metrics: names from `METRICS`.
    """
    for name in metrics:
        if name not in _MEASURE:
            raise UserError(f"there is no metric '{name}'{did_you_mean(name, METRICS)}")
    pairs, panel = pair_up(hypotheses, references), CaptionMetrics({}, {})
    for name in metrics:
        try:
            measured = _MEASURE[name](pairs)
            corpus_figures([measured])  # a metric that can be measured but not scored is missing, too
            panel.measured[name] = measured
        except MetricError as fault:
            panel.missing[name] = str(fault)
        except Exception as fault:  # a failing scorer must not affect the others
            panel.missing[name] = f"{type(fault).__name__}: {fault}"
    return panel
