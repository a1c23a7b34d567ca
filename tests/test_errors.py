"""What an error message may hold."""

import pickle

import pytest

from showattendtell.errors import MAX_LENGTH, UserError
from showattendtell.settings import has_control


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("the file a.ckpt is damaged", "the file a.ckpt is damaged"),
        ("there is no \x1b]0;title\x07", "there is no \\x1b]0;title\\x07"),
        ("two\nlines, \x9b31m, \u2028, \ud800", "two\\nlines, \\x9b31m, \\u2028, \\ud800"),
        ("2 settings are wrong:\n  a\n  b", "2 settings are wrong:\n  a\n  b"),
        ("a" * 9999, "a" * MAX_LENGTH + "..."),
    ],
)
def test_a_message_is_shown_as_it_can_be_printed(sentence: str, shown: str):
    fault = UserError(sentence)
    assert str(fault) == shown
    assert str(pickle.loads(pickle.dumps(fault))) == shown
    assert str(UserError(f"{fault}")) == shown or len(shown) > MAX_LENGTH


def test_control_characters_are_found_at_any_depth():
    assert has_control({"a": [{"b\x1b": 1}]})
    assert has_control(["a", ("b", "\x9b")])
    assert not has_control({"a": [1, None, "naïve — 東京"]})
