"""Splits by a hash of the image's name."""

import hashlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as some

from showattendtell.data.splits import place_of, share_out
from showattendtell.errors import UserError

NAMES = [f"{number}.jpg" for number in range(2000)]


@pytest.mark.parametrize("name", ["a.jpg", "", "é/ü.png"])
def test_a_name_s_place_is_the_beginning_of_its_sha_256(name: str):
    exact = Fraction(int(hashlib.sha256(name.encode()).hexdigest(), 16), 2**256)
    assert 0 <= exact - Fraction(place_of(name)) < Fraction(1, 2**53)


def test_the_shares_are_about_as_large_as_asked_for_and_lose_no_image():
    splits = share_out(NAMES, {"val": 0.1, "test": 0.2})
    assert list(splits) == ["train", "val", "test"]
    assert sorted(image for split in splits.values() for image in split) == sorted(NAMES)
    for split, share in {"train": 0.7, "val": 0.1, "test": 0.2}.items():
        assert abs(len(splits[split]) - share * 2000) < 4 * (2000 * share * (1 - share)) ** 0.5


@given(some.sets(some.sampled_from(NAMES), min_size=300))
def test_an_image_stays_in_its_split_whatever_others_there_are(chosen: set[str]):
    everywhere = {
        image: split for split, images in share_out(NAMES, {"val": 0.1, "test": 0.1}).items() for image in images
    }
    for split, images in share_out(sorted(chosen), {"val": 0.1, "test": 0.1}).items():
        assert all(everywhere[image] == split for image in images)


def test_a_larger_share_takes_all_that_a_smaller_one_has():
    assert set(share_out(NAMES, {"val": 0.1})["val"]) <= set(share_out(NAMES, {"val": 0.3})["val"])


def test_a_share_of_nothing_is_no_split():
    assert share_out(NAMES[:3], {"val": 0, "test": 0}) == {"train": NAMES[:3]}


def test_shares_that_leave_nothing_to_train_on_are_told():
    with pytest.raises(UserError, match=r"dataset.val=0.5 and dataset.test=0.5 leave no images to train on"):
        share_out(NAMES, {"val": 0.5, "test": 0.5})


def test_too_few_images_are_told():
    with pytest.raises(UserError, match=r"of 1 images none falls to (train|val) by its name; give more, or tell"):
        share_out(["a.jpg"], {"val": 0.1})
