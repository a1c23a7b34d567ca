"""What programs get: captions as the Python API gives them, and sentences for what cannot be answered."""

import io
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from hostile_uploads import encoded, noise
from PIL import Image
from server_requests import FORM, caption, form, part, send_request
from small_server import Served

from showattendtell.inference.pipeline import load
from showattendtell.visualization.figures import encode

WIDE, TALL = noise(90, 60), noise(40, 70)
SPEECH = {"min_length": 3, "max_length": 5, "allow_unk": False}
NAMES = ["soft/best.ckpt", "hard/best.ckpt"]


def test_an_answer_is_what_the_python_api_says(served: Served, checkpoints: list[Path]):
    photographs = [encoded(WIDE, "PNG"), encoded(TALL, "PNG")]
    answered = caption(served.address, *photographs, model=NAMES, beam_size="2", attention="argmax")
    assert answered.status == 200
    expected = [
        load(path, beam_size=2, attention_mode=mode, **SPEECH)
        for path, mode in zip(checkpoints, (None, "argmax"), strict=True)
    ]
    for number, (answer, content) in enumerate(zip(answered.json["photographs"], photographs, strict=True)):
        assert answer["name"] == f"{number}.jpg"
        assert (answer["width"], answer["height"]) == Image.open(io.BytesIO(content)).size
        assert [account["model"] for account in answer["outputs"]] == NAMES
        for account, captioner in zip(answer["outputs"], expected, strict=True):
            description = captioner(content)
            assert account["captions"][0]["caption"] == description.caption
            words = account["captions"][0]["words"]
            assert tuple(word["word"] for word in words) == description.words
            maps = np.array([word["attention"] for word in words])
            np.testing.assert_allclose(maps, description.attention[: len(words)], atol=2e-6)
            np.testing.assert_allclose(maps.sum(axis=(1, 2)), 1, atol=1e-4)
            said = np.array([word["log_prob"] for word in words])
            np.testing.assert_allclose(said, description.log_probs[: len(words)], atol=1e-3)
            np.testing.assert_allclose([word["gate"] for word in words], description.gates[: len(words)], atol=1e-5)
            np.testing.assert_allclose(list(account["seen"].values()), description.seen, atol=1e-6)


def test_an_option_lasts_no_longer_than_its_request(served: Served):
    def looks(**options: str) -> str:
        return caption(served.address, encoded(WIDE, "PNG"), model=NAMES[1], **options).content.decode()

    before = looks()
    others = {looks(attention=one) for one in ("sample", "argmax", "expectation")}
    assert len(others) == 3
    assert looks() == before == looks(attention="sample")
    assert looks(beam_size="1") != before == looks()


def test_a_picture_has_a_panel_for_each_word(served: Served, checkpoints: list[Path]):
    answered = caption(served.address, encoded(WIDE, "PNG"), path="api/picture")
    assert answered.headers["content-type"] == "image/png"
    assert answered.content == encode(load(checkpoints[0], beam_size=3, **SPEECH)(WIDE).plot())


@pytest.mark.parametrize("fields", [{"model": NAMES}, {}], ids=["models", "photographs"])
def test_a_picture_is_of_one_photograph_and_one_model(served: Served, fields: dict[str, Any]):
    photographs = [encoded(WIDE, "PNG")] * (1 if fields else 2)
    answered = caption(served.address, *photographs, path="api/picture", **fields)
    assert (answered.status, answered.error) == (422, "a picture is of one photograph and one model; send one of each")


def test_the_page_names_the_models_and_not_where_they_are(served: Served, checkpoints: list[Path]):
    page = send_request(served.address, "").content.decode()
    assert re.findall(r'name="model" value="(.*?)"', page) == NAMES
    assert str(checkpoints[0].parents[1]) not in page


def counted(address: str) -> dict[str, float]:
    """The samples of /metrics, as the reference parser reads them."""
    parser = pytest.importorskip("prometheus_client.parser", reason="needs prometheus_client, which ray installs")
    answered = send_request(address, "metrics")
    assert answered.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(parser.text_string_to_metric_families(answered.content.decode()))
    assert all(family.documentation and family.type in ("counter", "summary") for family in families)
    return {
        "|".join([sample.name.removeprefix("showattendtell_"), *sample.labels.values()]): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_count_requests_and_captions(served: Served):
    before = counted(served.address)
    assert caption(served.address, encoded(WIDE, "PNG"), encoded(TALL, "PNG"), model=NAMES).status == 200
    assert caption(served.address, b"no image").status == 422
    after = counted(served.address)
    added = {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}
    assert added.pop("request_seconds_sum") > 0
    assert added == {
        "requests_total|200": 1,
        "requests_total|422": 1,
        "request_seconds_count": 2,
        "captions_total|false": 4,
    }


def test_the_documentation_lists_every_field_and_every_kind_of_answer(served: Served):
    openapi = send_request(served.address, "openapi.json").json
    page = send_request(served.address, "docs").content.decode()
    fields = openapi["components"]["schemas"]["CaptionForm"]
    assert set(fields["properties"]) == {"photograph", "model", "beam_size", "attention"}
    names = {name for schema in openapi["components"]["schemas"].values() for name in schema["properties"]}
    for name in (*fields["properties"], *names, *openapi["paths"]):
        assert name in page
    assert "$ref" not in page


@pytest.mark.parametrize("path", ["", "docs", "serve.js", "style.css", "examples/dog.jpg", "metrics", "nowhere"])
def test_every_answer_forbids_what_is_not_needed(served: Served, path: str):
    headers = send_request(served.address, path, headers={"Origin": "http://evil.example"}).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert not [name for name in headers if name.startswith("access-control")]
    assert "server" not in headers


OTHERS = ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "a b"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST", *OTHERS])
def test_this_machine_is_answered_by_its_own_names_only(served: Served, host: str):
    port = "" if host in OTHERS else f":{urlsplit(served.address).port}"
    answered = send_request(served.address, "", headers={"Host": host + port})
    assert answered.status == (400 if host in OTHERS else 200)


def test_a_page_of_another_site_is_refused(served: Served):
    body = form(part("photograph", encoded(WIDE, "PNG"), "a.png"))
    for site, status in (("cross-site", 403), ("same-origin", 200), ("none", 200)):
        assert send_request(served.address, "api/caption", body, {**FORM, "Sec-Fetch-Site": site}).status == status


def test_health_is_ok(served: Served):
    assert send_request(served.address, "health").json == {"status": "ok"}


OTHER_FILES = dict.fromkeys(["nowhere", "examples/other.jpg", "examples/..%2Fapp.py", "examples/"], 404)


@pytest.mark.parametrize(("path", "status"), [*OTHER_FILES.items(), ("api/caption", 405)])
def test_another_method_or_address_is_refused_in_the_form_of_all_errors(served: Served, path: str, status: int):
    refused = send_request(served.address, path)
    assert refused.status == status
    assert refused.error
