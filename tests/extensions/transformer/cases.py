"""The transformer in the tests of the core."""

from functools import partial

from showattendtell.extensions.transformer.decoder import CrossAttention, TransformerDecoder
from showattendtell.losses.caption import SoftLoss

SMALL_ATTENTIONS = {"cross": CrossAttention, "cross, layer 1": partial(CrossAttention, map=1)}
SMALL = partial(TransformerDecoder, embedding_dim=5, hidden_dim=8, num_layers=2, num_heads=2)
SMALL_DECODERS = {"transformer": SMALL}
SMALL_PAIRS = {("cross", "transformer"): None, ("cross, layer 1", "transformer"): None}

UNROLLED = {"transformer": (CrossAttention, partial(TransformerDecoder, num_heads=2), SoftLoss)}

DOCUMENTED_RUNS = {"transformer": "decoder=transformer"}
TRAININGS = {"transformer": ["decoder=transformer", "attention.map=1", "reward=cider", "reward.num_samples=2"]}
CAPTURED = {"transformer": {"decoder": "transformer"}}
TINY = ["decoder=transformer", "decoder.hidden_dim=4", "decoder.num_heads=2"]
RESUMED = {"transformer": TINY}
IN_SEVERAL_PROCESSES = {"transformer": TINY}

GOLDEN_MODULES = {
    "transformer": {"decoder": "transformer", "hidden_dim": 64, "embedding_dim": 32, "loss": SoftLoss()},
}
GOLDEN_COMMANDS = {"transformer": ["decoder=transformer", "decoder.num_heads=2"]}
