"""Reference versions of the merge rules, straight from the definitions: float64 vectors, no Gram matrix, no chunks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

STEPS_MAX = 4000


def median_of(values, weights) -> float:
    """Return the weighted median; if half of the weight ends between two values, their midpoint."""
    pairs = sorted(zip(values, weights, strict=True))
    half, below = sum(weights) / 2, 0.0
    for place, (value, weight) in enumerate(pairs):
        below += weight
        if abs(below - half) < 1e-9 * half:
            return (value + next(v for v, w in pairs[place + 1 :] if w > 0)) / 2
        if below > half:
            return value
    raise AssertionError("no weight")


def trimmed_mean_of(values, weights, byzantine: int) -> float:
    """Return the trimmed mean: values are bars as wide as their weight, of whose total width f̂/n is cut at each end."""
    low, high = (edge * sum(weights) for edge in (byzantine / len(values), 1 - byzantine / len(values)))
    total = mass = start = 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        inside = max(0.0, min(start + weight, high) - max(start, low))
        total, mass, start = total + inside * value, mass + inside, start + weight
    return total / mass


def mean(x, w):
    return (w[:, None] * x).sum(0) / w.sum()


def lengths(x):
    return np.linalg.norm(x, axis=1)


def units(x):
    return x / np.maximum(lengths(x), 1e-300)[:, None]


def rda(x, w):
    direction = mean(units(x), w)
    return (w @ lengths(x)) / w.sum() * direction / np.linalg.norm(direction)


def geometric_median(x, w):
    centre = median(x, w)
    for _ in range(STEPS_MAX):
        before = centre
        centre = mean(x, w / np.maximum(lengths(x - centre), 1e-12))
        if np.linalg.norm(centre - before) <= 1e-12 * np.linalg.norm(centre):
            break
    return centre


def centered_clip(x, w):
    centre = geometric_median(x, w)
    radius = median_of(lengths(x - centre), w)
    for _ in range(STEPS_MAX):
        step = (x - centre) * np.minimum(1, radius / np.maximum(lengths(x - centre), 1e-300))[:, None]
        centre = centre + mean(step, w)
        if np.linalg.norm(mean(step, w)) <= 1e-12 * radius:
            break
    return centre


def clip_weights(x, w):
    """Return the weights with which CenteredClip's result is the weighted mean."""
    away = lengths(x - centered_clip(x, w))
    radius = median_of(lengths(x - geometric_median(x, w)), w)
    return w * np.minimum(1, radius / np.maximum(away, 1e-300))


def discount_alike(x, weights, w):
    """Return lower weights for rows whose rests have a cosine c above ¼, or above the usual: (¼/c)² times the weight.

    The other row's weight limits how much is taken away.
    """
    if len(x) < 4:
        return weights
    rests = units(x - mean(x, weights))
    cosines = rests @ rests.T - 2 * np.eye(len(x))
    usual = max(0.25, median_of(cosines.max(axis=1), w))
    left = [
        min(1 - (1 - (usual / max(c, usual)) ** 2) * min(1, other / own) for c, other in zip(row, w, strict=True))
        for row, own in zip(cosines, w, strict=True)
    ]
    return weights * np.array(left)


def discount_opposed(x, weights):
    """Return lower weights for rows that point away from the sum of the others, and 0 from a cosine of −¼ on."""
    others = (weights[:, None] * x).sum(0) - weights[:, None] * x
    cosines = (x * others).sum(1) / np.maximum(lengths(x) * lengths(others), 1e-300)
    left = weights * np.clip(1 + 4 * cosines, 0, 1)
    return left if left.any() else weights


def robust_mean(x, w):
    return mean(x, discount_opposed(x, clip_weights(x, w)))


def robust_rda(x, w):
    y = units(x)
    direction = mean(y, discount_opposed(y, discount_alike(y, clip_weights(y, w), w)))
    return median_of(lengths(x), w) * direction / np.linalg.norm(direction)


def robust_embedding(x, w):
    longest = 1.25 * median_of(lengths(x), w)
    return robust_mean(x * np.minimum(1, longest / lengths(x))[:, None], w)


def median(x, w):
    return np.array([median_of(column, w) for column in x.T])


def trimmed_mean(x, w):
    return np.array([trimmed_mean_of(column, w, (len(x) - 1) // 3) for column in x.T])


def krum_scores(x) -> list[float]:
    neighbours = max(len(x) - (len(x) - 1) // 3 - 2, 1)
    return [sum(sorted(((x - own) ** 2).sum(1))[1 : 1 + neighbours]) for own in x]


def krum(x, w):
    return x[int(np.argmin(krum_scores(x)))]


def multi_krum(x, w):
    return x[np.argsort(krum_scores(x))[: len(x) - (len(x) - 1) // 3]].mean(0)


def nnm_trimmed_mean(x, w):
    kept = w.sum() * (1 - (len(x) - 1) // 3 / len(x))
    mixed = []
    for own in x:
        left, total = kept, np.zeros_like(own)
        for near in np.argsort(((x - own) ** 2).sum(1)):
            total, left = total + min(w[near], left) * x[near], left - min(w[near], left)
        mixed.append(total / kept)
    return trimmed_mean(np.array(mixed), w)


REFERENCES: dict[str, Callable] = {
    rule.__name__: rule
    for rule in (
        mean,
        rda,
        robust_rda,
        robust_embedding,
        centered_clip,
        geometric_median,
        krum,
        multi_krum,
        median,
        trimmed_mean,
        nnm_trimmed_mean,
    )
}
