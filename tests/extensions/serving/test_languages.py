"""The field `language` of requests, for a model of several languages."""

import pytest
import torch
from hostile_uploads import encoded, noise
from small_server import SETTINGS

from showattendtell.config.compose import compose
from showattendtell.config.instantiate import build, build_captioner
from showattendtell.data.tokenizers import WordTokenizer
from showattendtell.data.vocabulary import SPECIAL, Vocabulary
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.extensions.serving.models import ModelRegistry
from showattendtell.extensions.serving.schemas import CaptionRequest, RequestError, Upload
from showattendtell.inference.pipeline import CaptioningPipeline

PICTURE = noise(90, 60)


def pipeline(*languages: str, language: str | None = None) -> CaptioningPipeline:
    config = compose("train", SETTINGS)
    torch.manual_seed(1)
    words = [*SPECIAL, *(f"<{each}>" for each in languages), *"狗跑在草地上的一只", "dog", "runs"]
    vocabulary, encoder = Vocabulary(words, WordTokenizer(), languages), build(config.encoder)
    captioner = build_captioner(config, encoder.region_dim, len(vocabulary))
    for parameter in captioner.parameters():
        torch.nn.init.normal_(parameter)
    decoding = BeamSearch(min_length=3, max_length=5, allow_unk=False, language=language)
    return CaptioningPipeline.from_module(ImageCaptioner(encoder, captioner, vocabulary, decoding), "model")


def test_a_request_chooses_among_the_languages_of_the_model():
    models, photograph = ModelRegistry([pipeline("en", "zh")]), Upload("a.png", encoded(PICTURE, "PNG"))
    assert models.by_name["model"].languages == ["en", "zh"]
    scores = {}
    for language in ("en", "zh", None):
        [answer] = models.describe([photograph], CaptionRequest(language=language))["model"]
        expected = pipeline("en", "zh", language=language)(PICTURE)
        assert (answer.caption, answer.log_prob) == (expected.caption, pytest.approx(expected.log_prob))
        scores[language] = answer.log_prob
    assert scores[None] == scores["en"] != pytest.approx(scores["zh"])


@pytest.mark.parametrize(("languages", "said"), [(("en", "zh"), "'de'; available: en, zh"), ((), "leave language out")])
def test_a_language_that_the_model_does_not_write_is_refused(languages: tuple[str, ...], said: str):
    photograph = Upload("a.png", encoded(PICTURE, "PNG"))
    with pytest.raises(RequestError, match=said):
        ModelRegistry([pipeline(*languages)]).describe([photograph], CaptionRequest(language="de"))
