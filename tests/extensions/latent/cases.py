"""Latent attention in the tests of the core."""

from functools import partial

from showattendtell.extensions.latent.attention import MarginalAttention, VariationalAttention
from showattendtell.extensions.latent.loss import VariationalLoss
from showattendtell.losses.caption import SoftLoss
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.scores import AdditiveScore, DotScore

SMALL_ATTENTIONS = {
    "marginal": partial(MarginalAttention, score=partial(AdditiveScore, width=5)),
    "marginal, dot": partial(MarginalAttention, score=DotScore),
    "variational": VariationalAttention,
}
SMALL_PAIRS = {(name, "lstm"): None for name in SMALL_ATTENTIONS}
SMALL_PAIRS[("marginal", "log_bilinear")] = None

UNROLLED = {
    "marginal": (MarginalAttention, LSTMDecoder, SoftLoss),
    "variational": (partial(VariationalAttention, estimator="exact"), LSTMDecoder, VariationalLoss),
}
FUSED = {
    "marginal": (MarginalAttention, partial(SoftLoss, label_smoothing=0.1)),
    "variational": (partial(VariationalAttention, estimator="exact"), VariationalLoss),
}
ENSEMBLES = {(0, MarginalAttention): None}
REWARDED = {"marginal": MarginalAttention}
SCHEDULED = {("variational", VariationalLoss): None}

TRAININGS = {
    "rloo": [
        "attention=variational",
        "attention.estimator=rloo",
        "attention.num_samples=2",
        "loss.label_smoothing=0.1",
    ],
    "supervised": ["attention=variational", "attention.estimator=gumbel", "loss.supervision_weight=0.5"],
    "rewarded": ["attention=marginal", "reward=cider", "reward.num_samples=2", "reward.likelihood=1"],
    "half": ["attention=marginal", "trainer.precision=bf16-mixed"],
    "log-bilinear": ["attention=marginal", "decoder=log_bilinear"],
}
CAPTURED = {"marginal": {"attention": "marginal"}, "variational": {"attention": "variational"}}
RESUMED = {"variational": ["attention=variational"]}
ON_REGIONS = {"marginal": ["attention=marginal"]}
