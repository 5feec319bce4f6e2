"""The geometry of a few long vectors in n × n numbers: inner products, formed once, and what follows from them.

Iterates of centered clipping, Weiszfeld and the like are combinations `Σ a_i x_i` of the inputs. So an iteration needs
only their inner products and no vector (design §7).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from peer.numerics.robust.medians import weighted_median
from peer.numerics.robust.stack import Floats, Singles

BLOCK_ELEMENTS = 1 << 13  # n = 32 blocks fill 1 MiB, a core's L2 cache; a float32 sum this long keeps six digits
SQUARED_NORM_MAX = 1e37  # above all differences of inputs that `peer.numerics.reduction` admits; float32 ends at 3e38
CLOSE = 1e-2  # squared distance over squared norm below which float32 inner products lose too many digits


def inner_products(arrays: Sequence[Singles], scales: Floats | None = None, origin: int | None = None) -> Floats:
    """Return ⟨y_i, y_j⟩ as float64[n, n] for y_i = scale_i · x_i, minus y_origin if given.

    Blocks are multiplied in float32 and added in float64: 2n²d operations, one pass over the inputs. Raises ValueError
    if an input is not finite, or longer than 3e18.
    """
    rows, length = len(arrays), arrays[0].size
    products = np.zeros((rows, rows))
    factors = None if scales is None else scales.astype(np.float32)[:, None]
    buffer = np.empty((rows, min(BLOCK_ELEMENTS, length)), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, length, BLOCK_ELEMENTS):
            block = buffer[:, : min(BLOCK_ELEMENTS, length - start)]
            for row, array in zip(block, arrays, strict=True):
                row[:] = array[start : start + BLOCK_ELEMENTS]
            if factors is not None:
                block *= factors
            if origin is not None:
                block -= block[origin].copy()
            multiplied = torch.from_numpy(block)
            products += torch.mm(multiplied, multiplied.T).numpy()  # numpy's own takes 1.5 times as long
    if not (products.diagonal() <= SQUARED_NORM_MAX).all():  # false for NaN
        raise ValueError("an input is not finite, or too long for any gradient")
    return products


def centred_products(arrays: Sequence[Singles], products: Floats, scales: Floats, weights: Floats) -> Floats:
    """Return ⟨y_i − c, y_j − c⟩ for y_i = scale_i · x_i; `products` are of the x_i.

    c is the input with the nearest neighbours. It is one of the majority wherever a majority is close together, so a
    far input costs the others no digits. If another input nearly agrees with c, differences are formed first: an input
    equal to c is then at distance 0 exactly.
    """
    unit = products * np.outer(scales, scales)
    origin = int(np.argmin(neighbour_radii(unit, weights)))
    centred: Floats = unit - unit[origin] - unit[:, origin, None] + unit[origin, origin]
    away = np.delete(squared_distances(centred)[origin], origin)
    if (away <= CLOSE * unit[origin, origin]).any():
        return inner_products(arrays, scales, origin)
    return centred


def squared_distances(products: Floats) -> Floats:
    """Return ‖y_i − y_j‖² as float64[n, n] from inner products about any origin."""
    squares = products.diagonal()
    distances: Floats = np.maximum(squares[:, None] + squares - 2 * products, 0)
    np.fill_diagonal(distances, 0)
    return distances


def neighbour_radii(products: Floats, weights: Floats) -> Floats:
    """Return for each input the squared distance within which half of the weight lies, its own included."""
    return weighted_median(squared_distances(products), weights)


def distances_to(products: Floats, coefficients: Floats) -> Floats:
    """Return ‖y_i − Σ a_j y_j‖ as float64[n], for coefficients that sum to 1 and inner products about any origin."""
    towards = products @ coefficients
    squares = products.diagonal() - 2 * towards + coefficients @ towards
    distances: Floats = np.sqrt(np.maximum(squares, 0))
    return distances
