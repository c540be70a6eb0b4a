"""Predict the logarithms of scores, with their uncertainty, from the configs that were measured so far.

The model is a Gaussian process whose covariance falls exponentially with the weighted distance between two configs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from opbench.tuning.candidates import Candidates

Array = NDArray[np.float64]

NOISE = 1e-3
"""Variance of a measurement, relative to the variance of scores over all configs."""


def coordinates(space: Candidates) -> Array:
    """Return one row per config, with the position of each tunable's value among its values, from 0 to 1.

    A tunable such as 32, 48, 64 has a second coordinate: the power of two that divides the value. Whole warps, vectors
    and aligned rows depend on it.
    """
    points = np.array(space.points, dtype=np.intp)
    columns = []
    for axis, values in enumerate(space.values):
        if len(values) < 2:
            continue
        columns.append(points[:, axis] / (len(values) - 1))
        powers = np.array([(value & -value).bit_length() for value in values])
        if np.any(np.diff(powers) < 0) and np.any(np.diff(powers) > 0):
            columns.append((powers / powers.max())[points[:, axis]])
    return np.array(columns).reshape(len(columns), len(points)).T


def _covariance(points: Array, second_points: Array, weights: Array) -> Array:
    """Return the covariance of each point with each second point."""
    distance = np.zeros((len(points), len(second_points)))
    for axis, weight in enumerate(weights):
        distance += weight * np.abs(points[:, axis, None] - second_points[None, :, axis])
    return np.exp(-distance)


def fitted_weights(points: Array, values: Array, weights: Array) -> Array:
    """Return the weight of each coordinate that makes the values most likely, by a local search from `weights`."""
    lowest_misfit = _misfit(points, values, weights)
    for axis in [*range(len(weights))] * 2:
        for factor in (2.0, 0.5):
            trial_weights = weights.copy()
            trial_weights[axis] *= factor
            if (misfit := _misfit(points, values, trial_weights)) < lowest_misfit:
                lowest_misfit, weights = misfit, trial_weights
                break
    return weights


def _misfit(points: Array, values: Array, weights: Array) -> float:
    """Return the negative logarithm of the likelihood, with a prior that keeps the weights near 1."""
    cholesky_factor = np.linalg.cholesky(_covariance(points, points, weights) + NOISE * np.eye(len(points)))
    whitened = np.linalg.solve(cholesky_factor, values - values.mean())
    variance = whitened @ whitened / len(values) + 1e-12
    return float(
        0.5 * len(values) * np.log(variance)
        + np.log(np.diag(cholesky_factor)).sum()
        + 0.25 * (np.log(weights) ** 2).sum()
    )


class Prediction:
    """The expected values at the points of a pool, given the values at measured points."""

    def __init__(self, points: Array, values: Array, weights: Array, pool: Array, assumed_count: int = 0) -> None:
        """Predict the values of a pool; its first `assumed_count` points count as measured."""
        cholesky_factor = np.linalg.cholesky(_covariance(points, points, weights) + NOISE * np.eye(len(points)))
        right_sides = np.column_stack([values - values.mean(), _covariance(points, pool, weights)])
        solved = np.linalg.solve(cholesky_factor, right_sides)
        whitened, self._solved_covariance = solved[:, 0], solved[:, 1:]
        self._pool, self._weights = pool, weights
        self._variance = whitened @ whitened / len(values) + 1e-12
        self.mean: Array = values.mean() + whitened @ self._solved_covariance
        self._remaining_variance = np.maximum(1 + NOISE - (self._solved_covariance**2).sum(axis=0), 1e-9)
        for index in range(assumed_count):
            self.assume(index)

    def assume(self, index: int) -> None:
        """Count a point of the pool as measured with its expected value, which makes points near it less uncertain."""
        row = _covariance(self._pool[index : index + 1], self._pool, self._weights)[0]
        row = (row - self._solved_covariance[:, index] @ self._solved_covariance) / math.sqrt(
            self._remaining_variance[index]
        )
        self._solved_covariance = np.vstack([self._solved_covariance, row])
        self._remaining_variance = np.maximum(self._remaining_variance - row**2, 1e-9)

    def improvement(self, best: float) -> Array:
        """Return the expected improvement of each point: the mean of the amount by which its value is below `best`."""
        deviation = np.sqrt(self._remaining_variance * self._variance)
        gap = (best - self.mean) / deviation
        probability = 0.5 * (1 + _error_function(gap / math.sqrt(2)))
        gain: Array = deviation * (gap * probability + np.exp(-0.5 * gap**2) / math.sqrt(2 * math.pi))
        return gain


def _error_function(values: Sequence[float] | Array) -> Array:
    """Return the error function of each value, which NumPy lacks."""
    return np.fromiter(map(math.erf, values), np.float64, len(values))
