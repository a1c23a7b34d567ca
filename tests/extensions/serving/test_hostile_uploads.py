"""Over a hundred hostile uploads and malformed forms: each is answered with a sentence or a caption."""

import re

import numpy as np
import pytest
from hostile_uploads import ATTACKS, NAMES, Attack, encoded, noise
from server_requests import BOUNDARY, FORM, Response, caption, form, part, send_request
from small_server import Served

PHOTOGRAPH = encoded(noise(), "JPEG")


def send(served: Served, attack: Attack) -> Response:
    return send_request(
        served.address, "api/caption", form(part("photograph", attack.content, attack.file_name, attack.kind))
    )


def assert_refused(answered: Response, *statuses: int) -> None:
    """Refused in one sentence that holds no place of the server's."""
    assert answered.status in (statuses or range(400, 500)), answered.content[:300]
    sentence = answered.error
    assert 10 < len(sentence) < 600
    assert "\n" not in sentence
    assert not re.search(r"Traceback|0x[0-9a-f]{6}|\.py\b|/tmp|/usr|/root|/home|site-packages", sentence)


def assert_captioned(answered: Response) -> None:
    assert answered.status == 200, answered.content[:300]
    [photograph] = answered.json["photographs"]
    assert photograph["outputs"][0]["captions"][0]["words"]


@pytest.mark.parametrize("attack", ATTACKS, ids=[attack.name for attack in ATTACKS])
def test_a_hostile_upload_is_refused_and_an_odd_photograph_captioned(served: Served, attack: Attack):
    answered = send(served, attack)
    if attack.fine or (attack.fine is None and answered.status == 200):
        assert_captioned(answered)
    else:
        assert_refused(answered)


@pytest.mark.parametrize("name", NAMES)
def test_whatever_a_file_is_called_its_name_is_a_name_and_no_more(served: Served, name: str):
    answered = send(served, Attack("", PHOTOGRAPH, file_name=name))
    if answered.status == 200:
        [photograph] = answered.json["photographs"]
        assert photograph["name"].isprintable()
        assert 0 < len(photograph["name"]) < 1000
        assert "/" not in photograph["name"]
        assert "set-cookie" not in answered.headers
    else:
        assert_refused(answered, 400)


GOOD = part("photograph", PHOTOGRAPH, "a.jpg")
MALFORMED: dict[str, tuple[bytes, dict[str, str]]] = {
    "no type": (form(GOOD), {}),
    "another type": (form(GOOD), {"Content-Type": "application/json"}),
    "a type that is none": (form(GOOD), {"Content-Type": ";;;\x01"}),
    "no boundary": (form(GOOD), {"Content-Type": "multipart/form-data"}),
    "another boundary": (form(GOOD), {"Content-Type": "multipart/form-data; boundary=other"}),
    "an endless boundary": (form(GOOD), {"Content-Type": f"multipart/form-data; boundary={'x' * 5000}"}),
    "no end": (GOOD, FORM),
    "half a part": (GOOD[: len(GOOD) // 2], FORM),
    "nothing": (b"", FORM),
    "only the end": (form(), FORM),
    "no name": (f"--{BOUNDARY}\r\nContent-Disposition: form-data\r\n\r\nx\r\n--{BOUNDARY}--".encode(), FORM),
    "no disposition": (f"--{BOUNDARY}\r\n\r\nx\r\n--{BOUNDARY}--".encode(), FORM),
    "headers that do not end": (f"--{BOUNDARY}\r\n{'A: b' * 50_000}".encode(), FORM),
    "1,000 headers": (b"--boundary\r\n" + b"A: b\r\n" * 1000 + b"\r\nx\r\n--boundary--", FORM),
    "too many photographs": (form(*[GOOD] * 9), FORM),
    "too many fields": (form(*[part("model", "a")] * 99, GOOD), FORM),
    "too long a field": (form(part("model", "x" * 100_000), GOOD), FORM),
    "a form within a form": (
        form(part("photograph", form(GOOD), "a.jpg", f"multipart/mixed; boundary={BOUNDARY}")),
        {"Content-Type": "multipart/form-data; boundary=boundary"},
    ),
    "another file": (form(part("avatar", PHOTOGRAPH, "a.jpg"), GOOD), FORM),
    "a photograph as text": (form(part("photograph", "photo")), FORM),
    "bytes that are no text": (form(part("model", b"\xff\xfe\0"), GOOD), FORM),
    "a charset that is none": (
        form(part("model", b"\xff"), GOOD),
        {"Content-Type": f"{FORM['Content-Type']}; charset=x"},
    ),
    "random bytes": (np.random.default_rng(0).bytes(5000), FORM),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_form_is_refused(served: Served, kind: str):
    body, headers = MALFORMED[kind]
    assert_refused(send_request(served.address, "api/caption", body, headers), 400, 413, 415, 422)


NO_FIELDS: list[dict[str, str]] = [
    *({"model": "../../etc/passwd"}, {"model": "<script>"}, {"beam_size": "21"}, {"beam_size": "nan"}),
    *({"beam_size": "1e9"}, {"beam_size": str(2**70)}, {"attention": "x" * 1000}, {"beam_size": "9" * 1900}),
    *({"__class__": "x"}, {"output": "/tmp/x"}, {"photograph": "x"}, {"": "x"}),
]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"model": "sof/best.ckpt"}, "there is no model 'sof/best.ckpt'; did you mean 'soft/best.ckpt'?"),
        ({"beam_size": "0"}, "beam_size: input should be greater than or equal to 1; see /docs"),
        ({"attention": "left"}, "attention: input should be 'sample', 'argmax' or 'expectation'; see /docs"),
        ({"beams": "3"}, "beams: extra inputs are not permitted; see /docs"),
        *((fields, "") for fields in NO_FIELDS),
    ],
)
def test_a_field_that_is_unknown_or_out_of_range_is_refused(served: Served, fields: dict[str, str], sentence: str):
    refused = caption(served.address, PHOTOGRAPH, **fields)
    assert_refused(refused, 422)
    assert sentence in refused.error
