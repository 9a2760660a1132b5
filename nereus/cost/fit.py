"""A robust fit of a few positive factors: the most likely ones under their priors, and how sure they are.

    minimise  sum of soft(weight x log(predicted / measured) / noise)^2  +  sum of ((log factor - prior) / spread)^2

soft(d) grows like the square root beyond a few sigmas, so that a disturbed run moves little. Factors are fitted in logs:
none can turn negative, and one that no measurement touches keeps its prior.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

NOISE = 0.05
"""Relative error of a measurement that is taken at face value: repeats of one configuration differ by 0.3 to 5 %."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a fit found."""

    log: Vector
    """Logs of the factors."""
    spread: Vector
    """Their standard deviations, which never exceed the priors'."""


def fit(
    predict: Callable[[Vector], Vector],
    measured: Vector,
    prior: Vector,
    spread: Vector,
    *,
    weights: Vector | None = None,
    least: Vector | None = None,
    common: Vector | None = None,
    noise: float = NOISE,
) -> Fitted:
    """Factors (as logs) for which `predict(factors)` meets `measured`, held to prior +- spread and above `least` (logs).

    `common`: spread of what factors have in common on top, so that they move together before they move apart. `noise`:
    relative error of a measurement that is taken at face value.
    """
    from scipy.optimize import least_squares  # costs a quarter of a second, and a plan without measurements needs none

    weight = np.ones(len(measured)) if weights is None else weights
    observed = np.log(measured)

    def residuals(log: Vector) -> Vector:
        error = weight * (np.log(np.maximum(predict(np.exp(log)), 1e-30)) - observed) / noise
        soft = np.sign(error) * np.sqrt(2.0 * (np.sqrt(1.0 + error * error) - 1.0))
        return np.concatenate([soft, whiten @ (log - prior)])

    shared = np.zeros(len(prior)) if common is None else common
    covariance = np.diag(spread**2) + np.outer(shared, shared)
    whiten = np.linalg.inv(np.linalg.cholesky(covariance))
    spread = np.sqrt(np.diag(covariance))
    low = np.full(len(prior), -np.inf) if least is None else least
    start = np.maximum(prior, low + 1e-3)
    bounded = bool(np.isfinite(low).any())
    found = least_squares(residuals, start, bounds=(low, np.inf), method="trf" if bounded else "lm", xtol=1e-6, ftol=1e-6)
    precision = found.jac.T @ found.jac
    variance = np.diag(np.linalg.pinv(precision))
    return Fitted(np.asarray(found.x), np.minimum(np.sqrt(np.maximum(variance, 0.0)), spread))
