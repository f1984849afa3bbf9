"""Weights of a quantised network are whole numbers times the scales that they were made of."""

import numpy as np
import pytest
from tchub.hub.networks.transform.quantised import split_weights


def test_weights_are_split_into_whole_numbers_and_scales() -> None:
    """Which are the ones that they were made of, bit for bit."""
    random = np.random.default_rng(0)
    whole = random.integers(-127, 128, (3, 3, 16, 40)).astype(np.float32)
    whole[0, 0, 0] = 127
    whole[..., 7] = 0
    scales = random.uniform(1e-4, 1e-2, 40).astype(np.float32)
    split = split_weights(whole * scales)
    assert split is not None
    np.testing.assert_array_equal(split[0], whole)
    np.testing.assert_array_equal(np.delete(split[1], 7), np.delete(scales, 7))


@pytest.mark.parametrize("most", [1, 100, 128, 200, 255])
def test_the_scale_of_a_column_may_be_that_of_a_tensor(most: int) -> None:
    whole = np.random.default_rng(most).integers(-most, most + 1, (64, 8)).astype(np.float32)
    split = split_weights(whole * np.float32(0.0123))
    assert split is not None
    assert np.abs(split[0]).max() <= max(most, 127)
    np.testing.assert_allclose(split[0] * split[1], whole * np.float32(0.0123), rtol=1e-6)


@pytest.mark.parametrize(
    "weights",
    [np.random.default_rng(0).standard_normal((64, 8)), np.full((4, 4), np.nan), np.arange(8.0)],
    ids=["real numbers", "no numbers", "no matrix"],
)
def test_other_weights_are_not_split(weights: np.ndarray) -> None:
    assert split_weights(weights.astype(np.float32)) is None
