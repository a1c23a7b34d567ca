"""The page in a real Chromium: what a word shows, by mouse, touch and keyboard, and how it fits a screen."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from browser_pages import Open, captioned, chosen, light, page_of, peak, sentence, word
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
    two_models,
)
from slow_cases import slow_after

from showattendtell.visualization.figures import map_onto_photograph
from showattendtell.visualization.pages import first_noun

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


def test_the_map_lies_on_the_photograph(open_page: Open):
    tab = open_page(one_model())
    word(tab, 0).hover()
    assert tab.locator("canvas").first.bounding_box() == tab.locator("img").first.bounding_box()


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


def test_screen_readers_get_what_is_on_the_page(open_page: Open):
    tab = open_page(two_models())
    assert tab.get_by_role("heading", level=1).inner_text() == "Where the models looked"
    assert tab.get_by_role("article", name=HOSTILE).count() == 1
    assert tab.get_by_role("group", name="hard/best.ckpt", exact=True).count() == 1
    assert tab.get_by_role("listbox", name="Caption of soft/best.ckpt", exact=True).get_by_role("option").count() == 4
    assert tab.get_by_role("option", name="runs: mostly at the right, beta 0.50, confidence 0.37").count() == 1
    for picture in tab.get_by_role("img").all():
        assert HOSTILE in picture.get_attribute("alt")
    sizes = tab.locator("img").evaluate_all("all => all.map(one => [one.complete, one.naturalWidth])")
    assert sizes == [[True, 300]] * 2
    assert tab.get_by_label("Sort by").count() == tab.locator(".measures").count() == 0


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
