"""Model cards of checkpoints from others: their texts are shown, and are no markup."""

import html
from typing import Any

import pytest
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from showattendtell.results.tables import model_card
from showattendtell.visualization.rendering import escape_markdown

MARKDOWN = MarkdownIt("commonmark", {"linkify": False}).enable("table")

MARKUP = [
    "<script>alert(1)</script>",
    "[a](javascript:b)",
    "![a](https://example.org/a.png)",
    "a | b | c",
    "a\n\n# b",
    "a`b`*c*_d_",
    "&lt;b&gt;",
    "\\<b>",
    "---\nlicense: b",
    "<https://example.org>",
    "<!-- a",
    "{{ card }}",
    "{% raw %}",
]


def metadata(text: str) -> dict[str, Any]:
    return {
        "version": text,
        "choices": {"dataset": text, "attention": text, "decoder": text},
        "config": {name: {"_target_": text} for name in ("dataset", "attention", "decoder")},
        "vocabulary": ["<pad>", "<start>", "<eos>", "<unk>", "dog"],
        "encoder": {"network": "vgg19", "grid": [7, 7], "dim": 512, "preprocessing": {"crop": 224, "resize": 256}},
    }


def structure(card: str) -> list[str]:
    """The types of all parts of a Markdown text."""
    return [part.type for block in MARKDOWN.parse(card) for part in (block, *(block.children or []))]


@pytest.mark.parametrize("text", MARKUP)
def test_texts_of_a_checkpoint_are_no_markup(text: str):
    card = model_card(metadata(text))
    assert structure(card) == structure(model_card(metadata("a")))
    assert html.unescape(MARKDOWN.render(card)).count(" ".join(text.splitlines())) == 6


@given(st.text(alphabet=st.sampled_from("ab_*`[]()<>!&|\\:#;~/. ")))
def test_an_escaped_text_is_shown_as_it_is(text: str):
    assert html.unescape(MARKDOWN.renderInline(escape_markdown(text))).strip() == text.strip()


@pytest.mark.parametrize("note", ["knows: birds", 'says "no"', "was\ntrained # here"])
def test_the_note_of_a_card_is_read_as_it_was_given(note: str):
    assert ModelCard(model_card(metadata("a"), note=note)).data.to_dict()["note"] == note


def test_texts_of_the_user_may_be_markup():
    card = model_card(metadata("a"), name="*b*", data="see [c](https://example.org)", limitations=["`d`"])
    assert all(text in card for text in ("# *b*\n", "see [c](https://example.org)", "- `d`\n"))
