"""Small captioners of every kind, with an encoder of a millisecond."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from showattendtell.captioning import ImageCaptioner
from showattendtell.decode.search import BeamSearch
from showattendtell.encoder import Encoder
from showattendtell.model.attention import AdaptiveAttention, Attention, MeanAttention, SoftAttention
from showattendtell.model.baselines import LogBilinearDecoder, NICDecoder
from showattendtell.model.captioner import Captioner
from showattendtell.model.decoder import Decoder, LSTMDecoder
from showattendtell.model.hard import HardAttention
from showattendtell.model.scores import AdditiveScore, CosineScore, DotScore, MultiheadScore
from showattendtell.text.vocabulary import SPECIAL, Vocabulary

VOCABULARY = Vocabulary([*SPECIAL, "a", "dog", "runs", "over", "green", "grass"])
D, HIDDEN = 6, 8

ATTENTIONS: dict[str, Callable[..., Attention]] = {
    "soft": partial(SoftAttention, score=partial(AdditiveScore, width=5, depth=2)),
    "hard, argmax": partial(HardAttention, test="argmax"),
    "hard, expectation": partial(HardAttention, test="expectation", temperature=2.0),
    "dot": partial(SoftAttention, score=DotScore, gate="none"),
    "multihead": partial(SoftAttention, score=partial(MultiheadScore, heads=2), gate="channel"),
    "cosine": partial(SoftAttention, score=CosineScore),
    "adaptive": AdaptiveAttention,
    "none": MeanAttention,
}
DECODERS: dict[str, Callable[..., Decoder]] = {
    "lstm": partial(LSTMDecoder, embedding_dim=5, hidden_dim=HIDDEN),
    "lstm as released": partial(
        LSTMDecoder, embedding_dim=5, hidden_dim=HIDDEN, first_input="zero", output_tanh=True, start="shared"
    ),
    "nic": partial(NICDecoder, embedding_dim=5, hidden_dim=HIDDEN),
    "log_bilinear": partial(LogBilinearDecoder, embedding_dim=5, hidden_dim=HIDDEN, window=2),
}
KINDS = [(attention, "lstm") for attention in ATTENTIONS]
KINDS += [("soft", "lstm as released"), ("none", "nic"), ("soft", "log_bilinear")]


def small_captioner(attention: str = "soft", decoder: str = "lstm", region_dim: int = D, seed: int = 0) -> Captioner:
    torch.manual_seed(seed)
    captioner = Captioner(
        ATTENTIONS[attention](region_dim=region_dim, hidden_dim=HIDDEN),
        DECODERS[decoder](vocabulary_size=len(VOCABULARY), region_dim=region_dim),
    )
    for parameter in captioner.parameters():
        nn.init.normal_(parameter, std=0.8)
    return captioner.eval()


def small_model(attention: str = "soft", seed: int = 0) -> ImageCaptioner:
    torch.manual_seed(seed)
    encoder = Encoder("test_efficientnet", "last", "random", size=64, resize=73, positions=1.0)
    captioner = small_captioner(attention, region_dim=encoder.region_dim, seed=seed)
    return ImageCaptioner(encoder, captioner, VOCABULARY, BeamSearch()).eval()
