"""Gathers texts that are plainly alike, whatever skill they came under.

Average linkage of all pairs takes memory and time by the square of their number. So more texts than
``AT_ONCE`` are halved first, again and again, between two means (bisecting k-means; Steinbach,
Karypis and Kumar, "A comparison of document clustering techniques", 2000), and texts of two blocks
are not compared here. A kind that was cut through is put together again by what comes after
(``memory/regroup.py``). Knows nothing of skills.

Axes: ``N`` texts, ``D`` dimensions.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage  # type: ignore[import-untyped]
from scipy.spatial.distance import pdist  # type: ignore[import-untyped]

Vectors = NDArray[np.float32]
Rows = NDArray[np.int64]

AT_ONCE = 2_500
"""Texts whose pairs are all compared: 25 MB of distances, twice."""
ROUNDS = 10
"""Rounds of 2-means; what is left over moves few texts."""
LEAST_PART = 8
"""A half has at least one part in so many, so that even outliers alone take few halvings."""


def alike(all_ND: Vectors, rows: Rows, threshold: float) -> list[Rows]:
    """Gather texts whose mean cosine is at least the threshold; many stay alone.

    Args:
        all_ND: of length 1.
        rows: those to be gathered.
        threshold: the least mean cosine between two gatherings that become one.
    """
    found = []
    for block in _blocks(all_ND, rows):
        if len(block) < 2:
            found += [block] if len(block) else []
            continue
        tree = linkage(pdist(all_ND[block].astype(np.float64), "cosine"), "average")
        labels = fcluster(tree, 1.0 - threshold, "distance")
        found += [block[labels == label] for label in np.unique(labels)]
    return found


def _blocks(all_ND: Vectors, rows: Rows) -> list[Rows]:
    """Halve texts until each block is small enough."""
    if len(rows) <= AT_ONCE:
        return [rows]
    along_N = _along(all_ND[rows])
    least = len(rows) // LEAST_PART
    num_first = int(np.clip((along_N < 0).sum(), least, len(rows) - least))
    order = np.argsort(along_N, kind="stable")
    first, second = np.sort(order[:num_first]), np.sort(order[num_first:])
    return [*_blocks(all_ND, rows[first]), *_blocks(all_ND, rows[second])]


def _along(vectors_ND: Vectors) -> NDArray[np.float64]:
    """Return how far texts lie towards the second of two means; 0: in the middle between them."""
    centred_ND = (vectors_ND - vectors_ND.mean(axis=0)).astype(np.float64)
    _, axes_DD = np.linalg.eigh(centred_ND.T @ centred_ND)
    along_N = np.asarray(centred_ND @ axes_DD[:, -1], dtype=np.float64)
    for _ in range(ROUNDS):
        is_first_N = along_N < 0
        if is_first_N.all() or not is_first_N.any():
            break
        first_D, second_D = (
            centred_ND[is_first_N].mean(axis=0),
            centred_ND[~is_first_N].mean(axis=0),
        )
        middle = (first_D + second_D) / 2
        along_N = np.asarray((centred_ND - middle) @ (second_D - first_D), dtype=np.float64)
    return along_N
