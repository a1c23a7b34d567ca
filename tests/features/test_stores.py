"""The stores of a cache, and the command that shows, verifies and merges them."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from grid_stores import NAMES, SETTINGS, Encoding, damage, plan_of, random_grids, write

from showattendtell.errors import UserError
from showattendtell.features.store import FeatureStore
from showattendtell.features.stores import merge, verify_stores

RunCommand = Callable[..., Any]
"""See tests/conftest.py."""

OTHERS = [f"picture {number}.png" for number in range(20)]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Three stores, one of them unfinished."""
    folder = tmp_path / "features"
    write(folder / "first" / "tiny-16")
    write(folder / "second" / "tiny-16", plan_of(OTHERS, dataset="second"), Encoding(broken=OTHERS[:1]))
    with suppress(InterruptedError):
        write(folder / "third" / "tiny-16", encode=Encoding(batches=7))
    return folder


def flip_bit(shard: bytes) -> bytes:
    """Of the image in the middle of the third batch."""
    place = 128 + (2 * 32 + 16) * 120
    return shard[:place] + bytes([shard[place] ^ 1]) + shard[place + 1 :]


def test_a_merged_store_has_the_images_of_all(cache: Path, tmp_path: Path):
    sources = [cache / name / "tiny-16" for name in ("second", "first")]
    merge(sources, tmp_path / "all")
    merged, names = FeatureStore(tmp_path / "all", SETTINGS), [*OTHERS[1:], *NAMES]
    assert torch.equal(merged[merged.rows(names)], random_grids(names)[:, 0].half())
    assert (len(merged), list(merged.skipped)) == (319, OTHERS[:1])
    verify_stores(tmp_path / "all")
    errors = [(store.relative_error, random_grids(own).norm().item()) for store, own in parts(sources)]
    lost = sum((error * norm) ** 2 for error, norm in errors)
    assert merged.relative_error == pytest.approx((lost / sum(norm**2 for _, norm in errors)) ** 0.5, rel=1e-4)


def parts(sources: list[Path]) -> list[tuple[FeatureStore, list[str]]]:
    return list(zip(map(FeatureStore, sources), [OTHERS[1:], NAMES], strict=True))


def test_stores_that_do_not_fit_are_not_merged(cache: Path, tmp_path: Path):
    first, second, third = (cache / name / "tiny-16" for name in ("first", "second", "third"))
    write(tmp_path / "coarse", plan_of(OTHERS, {**SETTINGS, "dtype": "int8"}))
    refusals = {
        r"coarse was made with dtype=int8, this run has dtype=float16": [first, tmp_path / "coarse"],
        r"photograph 0.jpg is both in .*first.* and in .*first": [first, first],
        r"third/tiny-16 is not a complete feature store": [second, third],
        r"nowhere is damaged \(store.json: No such file": [first, tmp_path / "nowhere"],
    }
    for printed, sources in refusals.items():
        with pytest.raises(UserError, match=printed):
            merge(sources, tmp_path / "all")
        assert not (tmp_path / "all").exists()
    with pytest.raises(UserError, match=r"first/tiny-16 exists"):
        merge([second, first], first)


@pytest.fixture
def features(run_forked: RunCommand, tmp_path: Path) -> RunCommand:
    """The command, with its cache in the user's folder."""
    return partial(run_forked, "features", "cache=.", folder=tmp_path)


def test_the_command_verifies_and_reports_all_damage(cache: Path, features: RunCommand):
    damage(cache / "first" / "tiny-16" / "00001.npy", flip_bit)
    done = features("verify=true")
    assert done.status == 2
    assert "features/second/tiny-16: checksums match" in done.out
    assert done.err.count("error: ") == 1
    assert "error: features/first/tiny-16 is damaged (00001.npy does not match its checksum" in done.err


def test_the_command_merges(cache: Path, features: RunCommand, tmp_path: Path):
    done = features("merge=[features/first/tiny-16,features/second/tiny-16]", "output=all", "verify=true")
    assert done.status == 0, done.err
    assert "319, 1 skipped" in done.out
    assert len(FeatureStore(tmp_path / "all")) == 319


@pytest.mark.parametrize("settings", [["merge=[a,b]"], ["output=all"], ["merge=[a]", "output=all"], ["merge=a"]])
def test_a_merge_that_is_half_reported_is_refused(features: RunCommand, settings: list[str]):
    done = features(*settings)
    assert done.status == 2
    assert done.err.startswith("error: merge")
    assert len(done.err.splitlines()) == 1
