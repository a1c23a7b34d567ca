"""All metrics of words at once; one that cannot be had leaves its reason, and the others stand."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

from showattendtell.errors import UserError, did_you_mean
from showattendtell.metrics.bleu import measure_bleu
from showattendtell.metrics.java import MetricError
from showattendtell.metrics.measured import Measured, Pair, Words, corpus_figures, pair_up
from showattendtell.metrics.meteor import measure_meteor
from showattendtell.metrics.overlap import measure_cider, measure_rouge_l
from showattendtell.metrics.spice import measure_spice

MetricName = Literal["bleu", "meteor", "rouge_l", "cider", "spice"]
METRICS: tuple[str, ...] = get_args(MetricName)

_MEASURE: dict[str, Callable[[Sequence[Pair]], Measured]] = {
    "bleu": measure_bleu,
    "meteor": measure_meteor,
    "rouge_l": measure_rouge_l,
    "cider": measure_cider,
    "spice": measure_spice,
}


class Panel(NamedTuple):
    """What each metric has seen of the captions, or why it is missing, in one sentence."""

    measured: dict[str, Measured]
    missing: dict[str, str]


def measure(hypotheses: Sequence[Words], references: Sequence[Sequence[Words]], metrics: Sequence[str]) -> Panel:
    """Measure a corpus; a `UserError` if a metric is unknown.

    Args:
        hypotheses: one caption an image.
        references: the captions that people gave it, at least one each.
        metrics: names among `METRICS`.
    """
    for name in metrics:
        if name not in _MEASURE:
            raise UserError(f"there is no metric '{name}'{did_you_mean(name, METRICS)}")
    pairs, panel = pair_up(hypotheses, references), Panel({}, {})
    for name in metrics:
        try:
            measured = _MEASURE[name](pairs)
            corpus_figures([measured])  # what can be measured but not scored is missing, too
            panel.measured[name] = measured
        except MetricError as fault:
            panel.missing[name] = str(fault)
        except Exception as fault:  # no scorer may lose the others' figures
            panel.missing[name] = f"{type(fault).__name__}: {fault}"
    return panel
