"""The searches that are timed write the same captions, and these end as they should."""

from collections.abc import Callable

import pytest
from benchmarks.generation import ALL, HALF, MANY, ONE, TEXTBOOK, Case, search
from benchmarks.workload import Work
from benchmarks.writers import endless_writer, usual_writer, varied_regions

from showattendtell.data.vocabulary import EOS

TINY = Work(12, 1, regions=6, region_dim=16, vocabulary=60, embedding=16, hidden=16, attention=16)
WAYS = (TEXTBOOK, ONE, MANY, ALL)


@pytest.mark.parametrize("beam_size", [1, 5])
@pytest.mark.parametrize("writer", [usual_writer, endless_writer])
def test_all_ways_write_the_same(writer: Callable, beam_size: int):
    regions = varied_regions(TINY)
    captioner = writer(TINY, regions)
    case = Case("", writer, beam_size, 30, WAYS, seconds=0)
    captions = [search(case, way, captioner)(regions) for way in WAYS]
    assert captions[0] == captions[1] == captions[2] == captions[3]
    assert {tokens[-1] == EOS for tokens in captions[0]} == {writer is usual_writer}
    assert len(search(case, HALF, captioner)(regions)) == len(regions)


def test_captions_of_the_usual_writer_are_as_long_as_users_write_them():
    regions = varied_regions(TINY)
    case = Case("", usual_writer, 5, 30, WAYS, seconds=0)
    lengths = [len(tokens) for tokens in search(case, MANY, usual_writer(TINY, regions))(regions)]
    assert 8 < sum(lengths) / len(lengths) < 16
    assert len(set(lengths)) > 4
