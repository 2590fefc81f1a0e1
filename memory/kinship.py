"""Says how much speaks for two groups of texts being of one kind, from their means alone.

A kind is a normal distribution around a mean of its own; the means of all kinds lie around zero.
Whether two groups are one kind is then a ratio of two marginal likelihoods in closed form (Murphy,
"Conjugate Bayesian analysis of the Gaussian distribution", 2007; merging by it is Heller and
Ghahramani's Bayesian hierarchical clustering, 2005). It asks little of two texts, whose means say
little, and much of two hundred: one threshold serves kinds of three texts and of a hundred.

Unlike there, texts of one kind are not independent draws, for a kind has variants; so ``n`` texts
speak like ``n / (1 + (n - 1) / LOUDEST)`` (a coarsened likelihood, Miller and Dunson,
arXiv:1506.06101), and what is returned is for one dimension, without a prior of how many kinds
there are: the caller's threshold takes its place.

Axes: ``G`` groups, ``D`` dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SPREAD = 0.5
"""Variance of a kind's texts around its mean, over all dimensions; of all texts, that is 1. In the
calibration small kinds have 0.48, families 0.18; of 0.3, 0.4 and 0.5, the last leaves families most
whole."""
APART = 1.0 - SPREAD
"""Variance of the kinds' means around zero, over all dimensions."""
LOUDEST = 24.0
"""How many independent texts the texts of a group speak like at most. The calibration does not tell
12 and 24 apart; ``bench/skills.py`` says why it is the latter."""
SAME_KIND = 0.49
"""Cosine from which two texts are of one kind."""


def voices(sizes: Floats) -> Floats:
    """Return like how many independent texts so many texts of one group speak."""
    return np.asarray(sizes / (1.0 + (sizes - 1.0) / LOUDEST), dtype=np.float64)


def required(cosine: float) -> float:
    """Return the evidence at which two single texts of this cosine are of one kind."""
    one = np.ones(1)
    return float(evidence(one, one, one, one, np.array([cosine]))[0])


def evidence(
    sizes: Floats, squares: Floats, other_sizes: Floats, other_squares: Floats, products: Floats
) -> Floats:
    """Return twice the log of the Bayes factor for one kind against two, for one dimension.

    With ``a`` and ``b`` the groups' voices, ``m`` and ``k`` their means, ``w`` the spread, ``t``
    the variance of means, and ``M`` the mean of both groups together, it is
    ``log((1 + a t/w)(1 + b t/w) / (1 + (a + b) t/w)) - ab/(a + b) |m - k|^2 / w``
    ``+ |m|^2 / (w/a + t) + |k|^2 / (w/b + t) - |M|^2 / (w/(a + b) + t)``.

    Args:
        sizes: texts of the one group, at least 1; all arguments broadcast.
        squares: squared length of its mean, of vectors of length 1.
        other_sizes: the same of the other group.
        other_squares: the same of the other group.
        products: scalar product of the two means.
    """
    a, b = voices(sizes), voices(other_sizes)
    both, ratio = a + b, APART / SPREAD
    gaps = np.maximum(squares + other_squares - 2.0 * products, 0.0)
    together = (a * a * squares + b * b * other_squares + 2.0 * a * b * products) / (both * both)
    found = np.log((1.0 + a * ratio) * (1.0 + b * ratio) / (1.0 + both * ratio))
    found -= a * b / both * gaps / SPREAD
    found += squares / (SPREAD / a + APART) + other_squares / (SPREAD / b + APART)
    found -= together / (SPREAD / both + APART)
    return np.asarray(found, dtype=np.float64)


@dataclass(slots=True)
class Means:
    """Groups as the evidence sees them; merging changes them in place.

    Example:
        ``Means(sizes_G=np.array([4.0, 31.0]), means_GD=…, squares_G=np.array([0.62, 0.41]))``
    """

    sizes_G: Floats
    means_GD: Floats
    squares_G: Floats

    @classmethod
    def of(cls, groups: Sequence[NDArray[np.float32]]) -> "Means":
        """Measure groups of vectors of length 1, none of them empty."""
        sizes_G = np.array([len(vectors_ND) for vectors_ND in groups], dtype=np.float64)
        means_GD = np.stack([vectors_ND.mean(axis=0, dtype=np.float64) for vectors_ND in groups])
        return cls(sizes_G=sizes_G, means_GD=means_GD, squares_G=(means_GD**2).sum(axis=1))

    def kinship(self, rows: NDArray[np.int64]) -> Floats:
        """Return the evidence of some groups with all groups, [rows, G]."""
        return evidence(
            self.sizes_G[rows, None],
            self.squares_G[rows, None],
            self.sizes_G,
            self.squares_G,
            self.means_GD[rows] @ self.means_GD.T,
        )

    def merge(self, into: int, part: int) -> None:
        """Make one group the union of two; the other is still there, for the caller to forget."""
        total = self.sizes_G[into] + self.sizes_G[part]
        share = self.sizes_G[part] / total
        self.means_GD[into] += share * (self.means_GD[part] - self.means_GD[into])
        self.sizes_G[into] = total
        self.squares_G[into] = self.means_GD[into] @ self.means_GD[into]
