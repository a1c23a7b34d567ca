"""Garbage collection is paused for a while, and goes on as before."""

import gc

import pytest

from showattendtell.runtime.collection import paused_collection


def fail_while_paused() -> None:
    with paused_collection():
        with paused_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ValueError("inside")


def test_collection_is_paused_and_goes_on_also_after_an_error():
    with pytest.raises(ValueError, match="inside"):
        fail_while_paused()
    assert gc.isenabled()


def test_collection_that_the_user_turned_off_stays_off():
    gc.disable()
    try:
        with paused_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
