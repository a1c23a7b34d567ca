"""Batches against what can be counted by hand, by brute force or from the exact distribution."""

import math
from collections import Counter
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from showattendtell.datamodules import samplers as bucketing
from showattendtell.datamodules.samplers import (
    BatchingStrategy,
    EpochBatchSampler,
    Ints,
    LengthBuckets,
    LengthWindows,
    RoundRobinBuckets,
    WholeBatchSampler,
)
from showattendtell.runtime import distributed as processes

LENGTHS = np.random.default_rng(0).integers(3, 9, size=101)
ONE_LENGTH = [LengthBuckets, RoundRobinBuckets]
ALL = [*ONE_LENGTH, LengthWindows]
Batches = list[list[int]]


def batches_of(
    kind: type[BatchingStrategy],
    size: int = 4,
    together: bool = False,
    lengths: Ints = LENGTHS,
    image_index: Ints | None = None,
    seed: int = 0,
) -> WholeBatchSampler:
    image_index = np.arange(len(lengths)) // 5 if image_index is None else image_index
    return WholeBatchSampler(kind(lengths, image_index, size, together), seed)


def epoch_of(batches: WholeBatchSampler, epoch: int) -> Batches:
    batches.set_epoch(epoch)
    return list(batches)


@st.composite
def captions(draw: st.DrawFn) -> tuple[Ints, Ints]:
    """Lengths, and images with one to six captions each."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=30))
    image_index = np.repeat(np.arange(len(sizes)), sizes)
    lengths = draw(st.lists(st.integers(2, 12), min_size=len(image_index), max_size=len(image_index)))
    return np.array(lengths), image_index


sizes = st.integers(1, 9)


@given(captions(), sizes, st.sampled_from(ALL), st.booleans())
def test_every_caption_is_dealt_once_an_epoch_and_every_epoch_has_as_many_batches(
    data: tuple[Ints, Ints], size: int, kind: type[BatchingStrategy], together: bool
):
    lengths, image_index = data
    batches = batches_of(kind, size, together, lengths, image_index)
    for epoch in range(3):
        dealt = epoch_of(batches, epoch)
        assert sorted(caption for batch in dealt for caption in batch) == list(range(len(lengths)))
        assert len(dealt) == len(batches)
        assert all(1 <= len(batch) <= size for batch in dealt)


@given(captions(), sizes, st.sampled_from(ONE_LENGTH), st.booleans())
def test_length_batches_hold_one_length_and_are_as_few_as_that_allows(
    data: tuple[Ints, Ints], size: int, kind: type[BatchingStrategy], together: bool
):
    lengths, image_index = data
    batches = list(batches_of(kind, size, together, lengths, image_index))
    assert all(len(set(lengths[batch])) == 1 for batch in batches)
    counts = Counter(lengths.tolist())
    assert len(batches) == sum(-(-count // size) for count in counts.values())


@given(captions(), sizes, st.sampled_from(ONE_LENGTH))
def test_captions_of_one_image_and_length_are_apart_only_where_a_batch_is_full(
    data: tuple[Ints, Ints], size: int, kind: type[BatchingStrategy]
):
    """Images that are in two batches are the last of one and the first of another: one at each cut at the most."""
    lengths, image_index = data
    batches = list(batches_of(kind, size, together=True, lengths=lengths, image_index=image_index))
    for length in set(lengths.tolist()):
        mine = [image_index[batch].tolist() for batch in batches if lengths[batch[0]] == length]
        runs = [len(list(groupby(batch))) for batch in mine]
        assert runs == [len(set(batch)) for batch in mine]
        assert sum(runs) <= len(set(image_index[lengths == length])) + len(mine) - 1


@given(captions(), st.integers(1, 9), st.integers(1, 4), st.booleans())
def test_a_window_has_the_datas_own_lengths_and_its_batches_fall_from_its_longest(
    data: tuple[Ints, Ints], captions_a_batch: int, window: int, together: bool
):
    """By brute force: captions (or images) sorted by length and dealt in turn to the windows."""
    lengths, image_index = data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("showattendtell.datamodules.samplers.WINDOW", window)
        buckets = LengthWindows(lengths, image_index, captions_a_batch, together)
    units = image_index if together else np.arange(len(lengths))
    longest = {unit: (int(lengths[units == unit].max()), int((units == unit).sum())) for unit in units.tolist()}
    falling = sorted(longest.values(), reverse=True)
    num_windows = min(len(falling), math.ceil(math.ceil(len(lengths) / captions_a_batch) / window))
    windows = [falling[number::num_windows] for number in range(num_windows)]

    arranged = buckets.arrange(np.random.default_rng(0))
    assert [longest[unit] for unit in dict.fromkeys(units[arranged].tolist())] == [pair for w in windows for pair in w]
    ends = np.cumsum([sum(size for _, size in pairs) for pairs in windows]).tolist()
    for pairs, start, stop in zip(windows, [0, *ends], ends, strict=False):
        mine = [(first, last) for first, last in buckets.bounds.tolist() if start <= first < stop]
        assert mine[-1][1] == stop
        tops = [lengths[arranged[first:last]].max() for first, last in mine]
        assert max(tops) == pairs[0][0]
        assert together or tops == sorted(tops, reverse=True)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("kind", ALL)
def test_batches_depend_on_seed_and_epoch_alone_and_differ_in_order_and_in_who_is_together(
    kind: type[BatchingStrategy], together: bool
):
    first, same, other = (batches_of(kind, together=together, seed=seed) for seed in (7, 7, 8))
    fifth, second = epoch_of(first, 5), epoch_of(first, 2)
    assert (epoch_of(same, 2), epoch_of(same, 5)) == (second, fifth)
    assert epoch_of(other, 5) != fifth
    assert [LENGTHS[batch[0]] for batch in second] != [LENGTHS[batch[0]] for batch in fifth]
    assert {frozenset(batch) for batch in second} != {frozenset(batch) for batch in fifth}


def test_lengths_are_drawn_as_often_as_their_batches_say():
    """Three batches of length 5 and two of length 6, of which the second has one caption: every one of the ten orders
    of lengths has a tenth of the epochs, so that the first is 5 in 3 / 5 of them, and 6 behind a 5 in 2 / 4."""
    lengths = np.array([5] * 12 + [6] * 5)
    batches = batches_of(LengthBuckets, lengths=lengths)
    counts = Counter(tuple(lengths[batch[0]] for batch in epoch_of(batches, epoch)) for epoch in range(2000))
    assert len(counts) == 10
    error = (0.1 * 0.9 / 2000) ** 0.5
    assert all(abs(count / 2000 - 0.1) < 4 * error for count in counts.values())


def test_round_robin_worked_by_hand():
    """Three batches of length 5, one of 6, two of 7: all three, then 5 and 7, then 5."""
    lengths = np.array([5] * 5 + [6] + [7] * 3)
    batches = batches_of(RoundRobinBuckets, 2, lengths=lengths)
    *first, second, third, last = [lengths[batch[0]] for batch in batches]
    assert set(first) == {5, 6, 7}
    assert [second, third] == [length for length in first if length != 6]
    assert last == 5


@pytest.mark.parametrize("kind", ALL)
def test_an_epoch_resumed_at_any_batch_has_those_that_are_left_and_the_next_is_whole(kind: type[BatchingStrategy]):
    uninterrupted = batches_of(kind)
    epochs = [epoch_of(uninterrupted, epoch) for epoch in range(3)]
    for done in range(len(epochs[1]) + 1):
        resumed = batches_of(kind)
        resumed.resume(1, done)
        assert len(resumed) == len(epochs[1])
        assert epoch_of(resumed, 1) == epochs[1][done:]
        assert epoch_of(resumed, 2) == epochs[2]
        assert epoch_of(resumed, 1) == epochs[1]
        resumed.resume(1, done)
        assert [epoch_of(resumed, epoch) for epoch in (2, 1)] == [epochs[2], epochs[1]]  # then another training


def shares_of(batches: EpochBatchSampler, world: int) -> list[list[Any]]:
    """What each of `world` processes has of the epoch."""
    shares = []
    for rank in range(world):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(processes, "rank", lambda rank=rank: rank)
            for module in (processes, bucketing):
                patch.setattr(module, "world_size", lambda: world)
            assert len(batches) == len(list(batches))
            shares.append(list(batches))
    return shares


@given(st.integers(1, 40), st.integers(1, 12), st.sampled_from(ALL), st.integers(1, 9))
def test_processes_have_a_part_of_every_batch_and_lose_and_repeat_nothing_in_training(
    num_captions: int, world: int, kind: type[BatchingStrategy], size: int
):
    buckets = kind(np.arange(num_captions) % 7 + 3, np.arange(num_captions), size, False)
    alone = list(WholeBatchSampler(buckets, 0))
    shares = shares_of(EpochBatchSampler(buckets, 0), world)
    assert {len(share) for share in shares} == {len(alone)}
    for batch, *parts in zip(alone, *shares, strict=True):
        assert [caption for part in parts if part.shard.weight for caption in part.content] == batch
        sizes = {len(part.content) if part.shard.weight else 0 for part in parts}
        assert max(sizes) - min(sizes) <= 1
        assert all(len(part.content) >= 1 and part.shard.num_captions == len(batch) for part in parts)


@given(st.integers(1, 40), st.integers(1, 12))
def test_the_mean_over_processes_of_their_weighted_means_is_the_mean_over_the_batch(num_captions: int, world: int):
    values = np.random.default_rng(num_captions).random(num_captions)
    buckets = LengthBuckets(np.full(num_captions, 3), np.arange(num_captions), num_captions, False)
    parts = [share[0] for share in shares_of(EpochBatchSampler(buckets, 0), world)]
    means = [part.shard.weight * sum(values[caption] for caption in part.content) / len(part.content) for part in parts]
    assert sum(means) / world == pytest.approx(sum(values) / num_captions)


@given(st.integers(1, 40), st.integers(1, 12), st.sampled_from(ALL))
def test_views_are_drawn_alike_for_a_caption_in_any_number_of_processes_and_otherwise_in_every_epoch(
    num_captions: int, world: int, kind: type[BatchingStrategy]
):
    def draws(processes: int, epoch: int) -> dict[int, tuple[int, int]]:
        batches.set_epoch(epoch)
        parts = [part for share in shares_of(batches, processes) for part in share]
        return {caption: part.draw for part in parts if part.shard.weight for caption in part.content}

    buckets = kind(np.arange(num_captions) % 7 + 3, np.arange(num_captions), 4, False)
    batches = EpochBatchSampler(buckets, 0)
    first, second = draws(1, 0), draws(1, 1)
    assert (draws(world, 0), draws(world, 1)) == (first, second)
    assert not set(first.values()) & set(second.values())
    batches.resume(1, 1)
    assert all(second[caption] == part.draw for part in batches for caption in part.content)


@given(captions(), sizes, st.sampled_from(ALL), st.integers(1, 50))
def test_few_captions_are_dealt_several_times_an_epoch_in_new_orders(
    data: tuple[Ints, Ints], size: int, kind: type[BatchingStrategy], least: int
):
    buckets = kind(*data, size, False)
    once, repeated = EpochBatchSampler(buckets, 0), EpochBatchSampler(buckets, 0, least)
    of_a_pass = len(once)
    assert len(repeated) % of_a_pass == 0
    assert least <= len(repeated) < least + of_a_pass
    batches = list(repeated)
    assert [batch.draw for batch in batches] == [(0, number) for number in range(len(repeated))]
    assert batches[:of_a_pass] == list(once)
    for start in range(0, len(batches), of_a_pass):
        dealt = sorted(caption for batch in batches[start : start + of_a_pass] for caption in batch.content)
        assert dealt == list(range(len(data[0])))
    middle = len(batches) // 2
    repeated.resume(0, middle)
    assert list(repeated) == batches[middle:]
    assert next(repeated.start_at(middle)) == batches[middle]


@given(captions(), sizes, st.sampled_from(ALL))
def test_repeated_batches_are_those_of_the_first_epoch(
    data: tuple[Ints, Ints], size: int, kind: type[BatchingStrategy]
):
    buckets = kind(*data, size, False)
    once, repeated = EpochBatchSampler(buckets, 0), EpochBatchSampler(buckets, 0, repeated=True)
    repeated.set_epoch(3)
    assert [batch.content for batch in repeated] == [batch.content for batch in once]
