"""A merge rule that Muster does not have: in each coordinate, the mean of the values nearest to the median.

«Mean around median» of Xie et al. 1802.10116. In a run file, once `pip install ./examples/merge` was done on every
machine:

    [outer]
    merge = "mean_near_median"
    merge_package = "near-median==0.1.0"
"""

import numpy as np
from numpy.typing import NDArray


def mean_near_median(pieces: NDArray[np.float32], weights: NDArray[np.float64]) -> NDArray[np.float32]:
    """Merge float32[n, k], one row per member, into float32[k]; drops the third of the values furthest from the median.

    Everything is computed column by column. Sums are loops over the members, because `numpy.sum` adds in another order
    when there is only one column.
    """
    values = pieces.astype(np.float64)
    count = len(values)
    ranked = np.sort(values, axis=0)
    median = (ranked[(count - 1) // 2] + ranked[count // 2]) / 2
    nearest = np.argsort(np.abs(values - median), axis=0, kind="stable")[: count - (count - 1) // 3]
    total, mass = np.zeros_like(median), np.zeros_like(median)
    for members in nearest:  # int[k]: the next member of every column
        total += weights[members] * np.take_along_axis(values, members[None], axis=0)[0]
        mass += weights[members]
    return (total / mass).astype(np.float32)
