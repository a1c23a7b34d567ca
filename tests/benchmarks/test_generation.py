"""The timed beam searches return equal captions of typical lengths."""

from collections.abc import Callable

import pytest
from benchmarks.captioners import endless_captioner, typical_captioner, varied_regions
from benchmarks.generation import ALL, BF16, MANY, ONE, TEXTBOOK, Case, make_search
from benchmarks.workload import Workload

from showattendtell.text.vocabulary import EOS

TINY = Workload(12, 1, regions=6, region_dim=16, vocabulary=60, embedding=16, hidden=16, attention=16)
VARIANTS = (TEXTBOOK, ONE, MANY, ALL)


@pytest.mark.parametrize("beam_size", [1, 5])
@pytest.mark.parametrize("make_captioner", [typical_captioner, endless_captioner])
def test_all_variants_return_equal_captions(make_captioner: Callable, beam_size: int):
    regions = varied_regions(TINY)
    captioner = make_captioner(TINY, regions)
    case = Case("", make_captioner, beam_size, 30, VARIANTS, seconds=0)
    captions = [make_search(case, variant, captioner)(regions) for variant in VARIANTS]
    assert captions[0] == captions[1] == captions[2] == captions[3]
    assert {tokens[-1] == EOS for tokens in captions[0]} == {make_captioner is typical_captioner}
    assert len(make_search(case, BF16, captioner)(regions)) == len(regions)
