"""The transformer in the tests of the core."""

from functools import partial

from showattendtell.extensions.transformer.decoder import CrossAttention, TransformerDecoder
from showattendtell.losses.caption import SoftLoss

SMALL_ATTENTIONS = {"cross": CrossAttention, "cross, layer 1": partial(CrossAttention, map=1)}
SMALL = partial(TransformerDecoder, embedding_dim=5, hidden_dim=8, num_layers=2, num_heads=2)
SMALL_DECODERS = {"transformer": SMALL, "transformer, rotary": partial(SMALL, positions="rotary")}
SMALL_PAIRS = {("cross", "transformer"): None, ("cross, layer 1", "transformer, rotary"): None}

GENERATED_ATTENTIONS = {
    "cross": lambda: CrossAttention(5, 4),
    "cross, layer 1": lambda: CrossAttention(5, 4, map=1),
    "cross, rollout": lambda: CrossAttention(5, 4, map="rollout"),
}
GENERATED_DECODERS = {
    "transformer": lambda: TransformerDecoder(9, 5, 3, 4, num_layers=3, num_heads=2),
    "transformer, rotary": lambda: TransformerDecoder(9, 5, 4, 4, num_layers=2, num_heads=2, positions="rotary"),
}
GENERATED_PAIRS = {(name, "transformer"): None for name in GENERATED_ATTENTIONS}
GENERATED_PAIRS |= {("cross, rollout", "transformer, rotary"): None}

UNROLLED = {"transformer": (CrossAttention, partial(TransformerDecoder, num_heads=2), SoftLoss)}

TRAININGS = {"rollout": ["decoder=transformer", "attention.map=rollout", "reward=cider", "reward.num_samples=2"]}
CAPTURED = {"transformer": {"decoder": "transformer"}}
TINY = ["decoder=transformer", "decoder.hidden_dim=4", "decoder.num_heads=2"]
RESUMED = {"transformer": TINY}
IN_SEVERAL_PROCESSES = {"transformer": TINY}
ON_REGIONS = {"transformer": ["decoder=transformer", "decoder.num_heads=2"]}
FAULTS = {
    "other attention": (["decoder=transformer", "attention=hard"], ["no use for HardAttention", "use attention=cross"]),
    "other decoder": (["attention=cross"], ["CrossAttention is part of the transformer", "use decoder=transformer"]),
    "layer": (["decoder=transformer", "attention.map=4"], ["attention.map=4 is not a layer", "has 3"]),
    "map": (["decoder=transformer", "attention.map=lst"], ["attention.map=lst should be"]),
    "number of heads": (["decoder=transformer", "decoder.num_heads=5"], ["cannot be divided into decoder.num_heads=5"]),
}
