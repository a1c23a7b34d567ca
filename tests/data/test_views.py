"""Views of a photograph: mirror images and enlarged parts."""

import numpy as np
import torch
from torch.nn.functional import grid_sample

from showattendtell.data.augmentation import SMALLEST, draw_views, is_mirrored, view_of

NAMES = ["a.jpg", "b.jpg"]


def pixels() -> torch.Tensor:
    """Two gradients: x in the first channel and y in the second."""
    y, x = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    return torch.stack([x, y, torch.zeros_like(x)]).expand(2, 3, 64, 64).contiguous()


def test_the_first_view_is_the_image_and_the_second_its_mirror_image():
    assert torch.equal(view_of(pixels(), NAMES, 0), pixels())
    assert torch.equal(view_of(pixels(), NAMES, 1)[0, 0, 5], torch.arange(63.0, -1, -1))
    assert torch.equal(view_of(pixels(), NAMES, 1)[:, 1], pixels()[:, 1])


def test_further_views_are_enlarged_squares_of_the_image():
    """Along a gradient, the enlarged part is a gradient from its first pixel to its last."""
    for view in (2, 3, 4, 5):
        part = view_of(pixels(), NAMES, view)
        assert part.shape == (2, 3, 64, 64)
        upright = part.flip(-1) if is_mirrored(view) else part
        for image in upright:
            steps = [image[0, 20, 40] - image[0, 20, 30], image[1, 40, 20] - image[1, 30, 20]]
            assert torch.allclose(steps[0], steps[1], atol=1e-3)
            assert SMALLEST - 0.02 <= steps[0] / 10 <= 1
            assert image[:2].min() >= 0
            assert image[:2].max() <= 63


def test_a_part_is_what_bilinear_sampling_of_its_square_gives():
    seen = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    gradient = view_of(pixels()[:1], NAMES[:1], 2)[0]
    places = gradient[:2].permute(1, 2, 0).unsqueeze(0) / 63 * 2 - 1
    sampled = grid_sample(seen, places, align_corners=True, padding_mode="border")
    inside = (slice(None), slice(None), slice(2, -2), slice(2, -2))
    torch.testing.assert_close(view_of(seen, NAMES[:1], 2)[inside], sampled[inside], rtol=0, atol=1e-3)


def test_every_view_is_drawn_equally_often_and_no_mirrored_one_if_captions_name_sides():
    sided = np.arange(20) >= 10
    batches = [draw_views(4, sided, 1, (epoch, number)) for epoch in range(5) for number in range(100)]
    counts = [torch.stack(batches)[:, images].flatten().bincount(minlength=4) / 5000 for images in (~sided, sided)]
    torch.testing.assert_close(counts[0], torch.full((4,), 0.25), rtol=0, atol=0.03)
    torch.testing.assert_close(counts[1], torch.tensor([0.5, 0, 0.5, 0]), rtol=0, atol=0.03)


def test_views_are_decided_by_the_seed_the_epoch_and_the_batch():
    draws = [(seed, epoch, number) for seed in (1, 2) for epoch in (0, 1) for number in (0, 1)]
    drawn, again = ([draw_views(2, np.zeros(50, bool), draw[0], draw[1:]) for draw in draws] for _ in range(2))
    assert all(map(torch.equal, drawn, again))
    assert len({tuple(views.tolist()) for views in drawn}) == len(draws)
