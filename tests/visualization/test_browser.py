"""The page in a real Chromium: what a word shows, what can be chosen, and how it fits a screen."""

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from browser_pages import Open, captioned, choose, chosen, light, page_of, peak, pixels, sentence, word
from PIL import Image
from sample_pages import (
    HOSTILE,
    PEAKS,
    SEEN,
    WORDS,
    gated,
    made_up,
    one_model,
    output,
    peaked,
    photograph,
    two_models,
)
from slow_cases import slow_after

from showattendtell.types import Box
from showattendtell.visualization.figures import map_onto_photograph
from showattendtell.visualization.pages import ImageCaptions, Page, first_noun, make_entry

STEP = 900
"""Milliseconds that page.js shows a word for while it plays."""


def test_the_word_under_the_mouse_shows_its_map_and_another_changes_it(open_page: Open):
    tab = open_page(one_model())
    assert light(tab) is None
    for number, place in enumerate(PEAKS):
        word(tab, number).hover()
        assert peak(tab) == place
        assert chosen(tab) == [WORDS[number]]
        assert tab.locator(".place").first.inner_text() == word(tab, number).get_attribute("aria-label")
    assert light(tab, 1) is None
    tab.mouse.move(1, 1)
    assert light(tab) is None
    assert chosen(tab) == []


def test_a_page_opens_with_the_map_of_the_first_noun_of_each_photograph(open_page: Open):
    tab = open_page(page_of(*[captioned(output(WORDS, gated().attention, np.ones(4)))] * 12), opens=True)
    panels = tab.locator(".panel")
    tab.locator(".card:first-child .looking").wait_for()
    assert (chosen(tab), peak(tab)) == ([WORDS[first_noun(WORDS)]], PEAKS[first_noun(WORDS)])
    assert light(tab, 11) is None
    panels.last.scroll_into_view_if_needed()
    tab.locator(".card:last-child .looking").wait_for()


def test_a_notebook_shows_the_map_of_the_word_under_the_mouse(browser: Any):
    output = replace(gated(), name=HOSTILE)
    with browser.new_page(reduced_motion="reduce") as tab:
        tab.set_content(f"<p>Out [1]:</p>{output._repr_html_()}")
        page = tab.frame_locator("iframe")
        assert page.locator("h2").inner_text() == HOSTILE
        for number, place in enumerate(PEAKS):
            page.locator(".word").nth(number).hover()
            assert peak(page) == place


@pytest.mark.parametrize(("rows", "columns"), slow_after(1, [(3, 3), (7, 7), (14, 14), (4, 9)]))
def test_the_map_is_that_of_the_pictures(open_page: Open, rows: int, columns: int):
    maps = made_up(3, 2, rows, columns)
    white = Image.new("RGB", (300, 200), "white")
    tab = open_page(page_of(captioned(output(["a", "dog"], maps, np.ones(2)), picture=white)))
    for number, grid in enumerate(maps):
        word(tab, number).hover()
        on_page = light(tab)
        height, width = on_page.shape
        drawn = map_onto_photograph(grid, SEEN.scaled(width, height), width, height)
        inside = slice(round(width * SEEN.left) + 1, round(width * SEEN.right) - 1)
        assert np.corrcoef(on_page[:, inside].ravel(), drawn[:, inside].ravel())[0, 1] > 0.97
        assert np.abs(on_page - drawn)[:, inside].mean() < 0.06
        assert not on_page[:, : inside.start - 2].round(2).any()


def test_a_tap_shows_a_map_which_stays_until_another_place_is_tapped(open_page: Open):
    tab = open_page(one_model(), 400, has_touch=True, is_mobile=True)
    word(tab, 1).tap()
    assert peak(tab) == PEAKS[1]
    word(tab, 2).tap()
    assert peak(tab) == PEAKS[2]
    tab.locator("h1").tap()
    assert light(tab) is None


def to_the_first_card(tab: Any) -> None:
    """Press Tab past the options of the page, up to the first photograph's button."""
    for _ in range(12):
        tab.keyboard.press("Tab")
        if tab.evaluate("document.activeElement.className") == "play":
            return
    raise AssertionError("the keyboard does not reach the button")


def test_the_keyboard_reaches_every_word(open_page: Open):
    tab = open_page(one_model())
    to_the_first_card(tab)
    tab.keyboard.press("Tab")
    assert (chosen(tab), peak(tab)) == ([WORDS[0]], PEAKS[0])
    keys = ("ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowRight", "Home")
    for key, number in zip(keys, (1, 2, 1, 3, 3, 0), strict=True):
        tab.keyboard.press(key)
        assert (chosen(tab), peak(tab)) == ([WORDS[number]], PEAKS[number])
    tab.keyboard.press("Escape")
    assert light(tab) is None
    tab.keyboard.press("ArrowRight")
    assert peak(tab) == PEAKS[1]
    tab.keyboard.press("Tab")
    assert chosen(tab) == ["the"]
    tab.keyboard.press("Shift+Tab")
    assert chosen(tab) == [WORDS[1]]
    tab.keyboard.press("Tab")
    tab.keyboard.press("Tab")
    assert light(tab) is None
    assert tab.evaluate("document.activeElement.tagName") == "SUMMARY"
    tab.keyboard.press("Enter")
    assert tab.get_by_text("A dog <runs>.").first.is_visible()


def test_space_plays_from_a_word_on_and_stops(open_page: Open):
    tab = open_page(one_model())
    to_the_first_card(tab)
    tab.keyboard.press("Tab")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Space")
    assert chosen(tab) == [WORDS[1]]
    tab.clock.run_for(STEP)
    assert (chosen(tab), peak(tab)) == ([WORDS[2]], PEAKS[2])
    tab.keyboard.press("Space")
    assert chosen(tab) == [WORDS[1]]
    tab.clock.run_for(5 * STEP)
    assert chosen(tab) == [WORDS[1]]
    assert tab.evaluate("scrollY") == 0


def test_the_button_plays_all_words_of_all_models_and_ends_with_the_photograph(open_page: Open):
    tab = open_page(two_models())
    button = tab.get_by_role("button", name="Play the words of")
    button.click()
    assert tab.get_by_role("button", name="Pause the words of").count() == 1
    for number, place in enumerate(PEAKS):
        assert (chosen(tab), peak(tab)) == ([WORDS[number]], place)
        assert chosen(tab, 1) == [["a"], ["cat"], ["cat"], ["cat"]][number]
        tab.clock.run_for(STEP)
    assert light(tab) is None
    assert light(tab, 1) is None
    assert button.count() == 1


def test_a_caption_from_right_to_left_is_read_with_the_arrow_keys(open_page: Open):
    tab = open_page(page_of(captioned(output(["كلب", "يجري"], made_up(0, 2, 3, 3), np.ones(2)))))
    first, second = (one.bounding_box() for one in tab.locator(".word").all())
    assert first["x"] > second["x"]
    word(tab, 0).focus()
    tab.keyboard.press("ArrowLeft")
    assert chosen(tab) == ["يجري"]


def boxes(tab: Any, card: int) -> list[dict[str, float]]:
    words = tab.locator(".card").nth(card).locator(".word")
    return [words.nth(number).bounding_box() for number in range(words.count())]


def test_captions_go_from_the_side_where_their_script_begins(open_page: Open):
    """Hebrew, Arabic and English one below the other; an English word in Hebrew stays between its neighbors."""
    captions = [
        sentence("ילד", " רץ", " בפארק"),
        sentence("ولد", " يركض", " في", " الحديقة"),
        sentence("a", " boy", " runs"),
        sentence("ילד", " עם", " T-shirt", " אדומה"),
    ]
    tab = open_page(page_of(*captions))
    for number, is_reversed in enumerate((True, True, False, True)):
        lefts = [box["x"] for box in boxes(tab, number)]
        assert lefts == sorted(lefts, reverse=is_reversed), number
        caption = tab.locator(".card").nth(number).locator(".caption").bounding_box()
        first = boxes(tab, number)[0]
        gaps = (first["x"] - caption["x"], caption["x"] + caption["width"] - first["x"] - first["width"])
        assert (gaps[1] < gaps[0]) == is_reversed
        word(tab, 0, number).hover()
        place = tab.locator(".panel").nth(number).locator(".place")
        assert place.evaluate("place => getComputedStyle(place).direction") == "ltr"
        assert place.inner_text().strip("\u2068").startswith(captions[number].words[0])


def test_words_without_a_space_between_them_touch(open_page: Open):
    captions = [sentence("一", "只", "狗"), sentence("Ein", " Mäd", "chen"), sentence("a", " dog", " runs")]
    tab = open_page(page_of(*captions))
    gaps = []
    for number in range(3):
        own = boxes(tab, number)
        gaps.append([after["x"] - before["x"] - before["width"] for before, after in pairwise(own)])
    assert [[gap > 1 for gap in each] for each in gaps] == [[False, False], [True, False], [True, True]]
    assert tab.locator("img[alt]").nth(1).get_attribute("alt").endswith("captioned: Ein Mädchen")


def test_a_word_shows_its_map_in_every_model(open_page: Open):
    words, other = ["a", "dog", "and", "a", "cat"], ["the", "a", "cat"]
    peaks = [(0, 0), (2, 1), (1, 2), (2, 2), (0, 1)]
    models = [
        ImageCaptions("", photograph(300, 200), SEEN, (output(each, np.stack(maps), np.ones(len(each))),))
        for each, maps in (
            (words, [peaked(3, 3, *one) for one in peaks]),
            (other, [peaked(3, 3, n, n) for n in range(3)]),
        )
    ]
    tab = open_page(Page("1 photograph", ["one", "two"], [make_entry("a.jpg", models)]))
    for number, same in ((0, ["a"]), (1, []), (3, ["a"]), (4, ["cat"])):
        word(tab, number).hover()
        assert (chosen(tab), chosen(tab, 1)) == ([words[number]], same)
        assert peak(tab) == peaks[number]
        assert peak(tab, 1) == ((other.index(same[0]),) * 2 if same else None)
    assert word(tab, 1).hover() is None
    assert tab.locator(".place").nth(1).inner_text() == "“dog” is not in this caption"
    word(tab, 2, panel=1).focus()
    tab.mouse.move(1, 1)
    assert (chosen(tab), chosen(tab, 1)) == (["cat"], ["cat"])
    tab.locator(".play").focus()
    assert light(tab) is light(tab, 1) is None


def test_maps_as_colors_are_brightest_at_the_peak_and_dark_where_the_model_saw_nothing(open_page: Open):
    tab = open_page(one_model())
    word(tab, 0).hover()
    choose(tab, mode="color")
    seen = pixels(tab)
    assert set(seen[..., 3].ravel()) == {round(255 * 0.6)}
    brightness = seen[..., :3].sum(axis=2)
    height, width = brightness.shape
    y, x = np.unravel_index(brightness.argmax(), brightness.shape)
    assert (int(3 * y / height), int(3 * (x / width - SEEN.left) / (SEEN.right - SEEN.left))) == PEAKS[0]
    assert brightness[:, : int(width * SEEN.left) - 1].max() < 10
    choose(tab, mode="darken")
    assert peak(tab) == PEAKS[0]


def test_contrast_darkens_all_but_the_peak_and_the_own_range_reaches_from_dark_to_bright(open_page: Open):
    even = np.full((3, 3), 0.1)
    even[1, 1] = 0.2
    tab = open_page(page_of(captioned(output(["dog"], even[np.newaxis], np.ones(1)), Box(0, 0, 1, 1))))
    word(tab, 0).hover()
    plain = light(tab)
    choose(tab, contrast="3")
    assert np.abs(light(tab) - plain**3).max() < 0.02
    choose(tab, contrast="1", stretch=True)
    stretched = light(tab)
    assert np.abs(stretched - (plain - plain.min()) / (1 - plain.min())).max() < 0.02
    assert plain.min() > 0.4
    assert stretched.min() < 0.02


def background(tab: Any, number: int) -> float:
    """The opacity of the shade of a word, of at most 0.6."""
    color = word(tab, number).evaluate("e => getComputedStyle(e).backgroundColor")
    return float(color.strip(")").split("/")[-1]) if "/" in color else float(color.strip(")").split(",")[3])


def test_words_are_shaded_by_their_probability_and_by_the_gate_after_one_click(open_page: Open):
    caption = output(["a", "b", "c"], made_up(0, 3, 3, 3), np.array([0.4, 0.5, 0.0]))
    caption = caption._replace(log_probs=np.log([0.9, 0.3, 0.6]))
    tab = open_page(page_of(captioned(caption._replace(confidence_log_probs=np.log([0.8, 0.25, 0.5])))))
    legend = tab.locator(".legend:visible")
    for name, expected, meaning in (
        (None, [0.8, 0.25, 0.5], "0 1, the probability of the word"),
        ("gate β", [0.4, 0.5, 0.0], "0 1, how much the image contributed"),
        ("nothing", [0.0, 0.0, 0.0], ""),
    ):
        if name:
            tab.get_by_label(name).click()
        assert [background(tab, number) / 0.6 for number in range(3)] == pytest.approx(expected, abs=0.01)
        assert " ".join(" ".join(legend.all_inner_texts()).split()) == meaning


SIDES = (("worst", "lowest"), ("best", "highest"))


def shown(tab: Any) -> str:
    return "".join(name.removesuffix(".jpg") for name in tab.locator("h2:visible").all_inner_texts())


@pytest.mark.parametrize(
    ("sought", "found"),
    [("DOG", "ab"), ("dog beach", "b"), ("b.j", "b"), ("hund", "c"), ("cafe\u0301", "b"), ("  ", "abcd"), ("no", "cd"),
     ("zebra", "")],
)  # fmt: skip
def test_a_search_finds_photographs_by_name_captions_and_references(open_page: Open, sought: str, found: str):
    texts = {"a": ("a Dog runs", ""), "b": ("a dog", "Beach café."), "c": ("nothing", "Ein Hund"), "d": ("no cat", "")}
    entries = [
        make_entry(f"{name}.jpg", [sentence(*re.split("(?= )", caption))], [reference])
        for name, (caption, reference) in texts.items()
    ]
    tab = open_page(Page("4 photographs", ["soft"], entries))
    tab.get_by_label("Search").fill(sought)
    assert shown(tab) == found
    tab.get_by_label("Search").press("Enter")
    assert shown(tab) == found
    assert tab.locator("#found").inner_text() == ("" if found == "abcd" else f"{len(found)} of 4 photographs")
    assert tab.get_by_label("Only not sure").count() == 0


def test_photographs_with_a_mark_of_doubt_can_be_shown_alone(open_page: Open):
    captions = [sentence("a", " dog"), sentence("a", " cat"), sentence("a", " bird")]
    marked = [replace(one, captions=(one.best._replace(not_sure=n > 0),)) for n, one in enumerate(captions)]
    tab = open_page(page_of(*marked))
    tab.get_by_label("Only not sure").check()
    assert shown(tab) == "12"
    tab.get_by_label("Search").fill("bird")
    assert shown(tab) == "2"
    tab.get_by_label("Only not sure").uncheck()
    tab.get_by_label("Search").fill("(not sure)")
    assert shown(tab) == "12"
    alternatives = [one.get_attribute("alt") for one in tab.locator("img").all()]
    assert alternatives[1] == "The photograph 1.jpg, captioned: a cat (not sure)"
    assert alternatives[0].endswith("captioned: a dog")


def test_photographs_are_sorted_by_score_and_confidence_with_the_keyboard(open_page: Open):
    measured = {"a": (50.0, 0.9), "b": (9.5, 0.5), "c": (120.0, 0.2)}
    entries = []
    for name, (score, sure) in measured.items():
        caption = output(["a", "dog"], made_up(0, 2, 3, 3), np.ones(2))._replace(log_probs=np.log([sure] * 2))
        entries.append(make_entry(f"{name}.jpg", [captioned(caption)], (), score))
    tab = open_page(Page("3 photographs", ["soft"], entries))
    order = tab.get_by_label("Sort by")
    assert order.locator("option").all_inner_texts() == [
        "original order",
        *(f"{side} first ({way} {measure})" for measure in ("CIDEr-D", "confidence") for side, way in SIDES),
    ]
    assert shown(tab) == "abc"
    order.focus()
    for expected in ("bac", "cab", "cba", "abc"):
        tab.keyboard.press("ArrowDown")
        assert shown(tab) == expected
        assert order.evaluate("one => one === document.activeElement")
    tab.keyboard.press("Home")
    assert shown(tab) == "abc"
    assert tab.locator(".measures").all_inner_texts() == ["CIDEr-D 50.0", "CIDEr-D 9.5", "CIDEr-D 120.0"]
    assert tab.locator(".confidence").all_inner_texts() == [
        f"confidence {sure} · not calibrated" for sure in ("0.90", "0.50", "0.20")
    ]
    choose(tab, order="confidence")
    word(tab, 0).hover()  # the maps are those of the photograph that is now the first
    assert chosen(tab) == ["a"]
    assert light(tab) is not None


def test_photographs_are_sorted_by_how_much_the_models_disagree(open_page: Open):
    pairs = {"a": ("a dog", "a dog"), "b": ("a dog", "two cats"), "c": ("a dog", "a cat")}
    entries = [
        make_entry(f"{name}.jpg", [sentence(*re.split("(?= )", caption)) for caption in captions])
        for name, captions in pairs.items()
    ]
    tab = open_page(Page("3 photographs", ["one", "two"], entries))
    for label, expected in (("most disagreement first", "bca"), ("least disagreement first", "acb")):
        tab.get_by_label("Sort by").select_option(label=label)
        assert shown(tab) == expected
    assert sorted(tab.locator(".measures").all_inner_texts())[0] == "disagreement 0.00"
