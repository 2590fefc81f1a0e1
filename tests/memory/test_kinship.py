import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import multivariate_normal

from memory.kinship import APART, LOUDEST, SPREAD, Means, evidence, required, voices


def unit(num: int, *, seed: int, dimension: int = 4) -> NDArray[np.float32]:
    vectors_ND = np.random.default_rng(seed).normal(size=(num, dimension)) + 1.0
    unit_ND = vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return np.asarray(unit_ND, dtype=np.float32)


def of(one_ND: NDArray[np.float32], other_ND: NDArray[np.float32]) -> float:
    return float(Means.of([one_ND, other_ND]).kinship(np.array([0]))[0, 1])


def test_evidence_of_two_single_texts_by_hand() -> None:
    # log(2 * 2 / 3) - (1 / 2) * (2 - 2 c) / 0.5 + 1 / 1 + 1 / 1 - ((1 + c) / 2) / 0.75 at c = 0.5:
    # 0.28768 - 1 + 2 - 1
    assert (SPREAD, APART) == (0.5, 0.5)
    assert required(0.5) == pytest.approx(0.28768, abs=1e-5)


@given(st.integers(0, 99), st.integers(0, 99))
def test_two_texts_speak_as_the_normal_densities_do(first: int, second: int) -> None:
    dimension = 4
    x_D, y_D = unit(1, seed=first)[0], unit(1, seed=second)[0]
    # Variances of one dimension: the evidence is for one, of D that share them.
    own, between = SPREAD / dimension, APART / dimension
    each = np.diag([own + between] * dimension)
    both = np.kron([[own + between, between], [between, own + between]], np.eye(dimension))
    alone = multivariate_normal(np.zeros(dimension), each)
    together = multivariate_normal(np.zeros(2 * dimension), both)
    log_factor = together.logpdf([*x_D, *y_D]) - alone.logpdf(x_D) - alone.logpdf(y_D)
    speak_alike = of(x_D[None], y_D[None])
    assert speak_alike == pytest.approx(2 * log_factor / dimension, abs=1e-4)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
def test_it_does_not_matter_which_of_two_groups_is_asked(a: int, b: int, seed: int) -> None:
    one_ND, other_ND = unit(a, seed=seed), unit(b, seed=seed + 100)
    assert of(one_ND, other_ND) == pytest.approx(of(other_ND, one_ND))


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 99))
def test_union_is_measured_as_if_its_texts_were_one_group(a: int, b: int, seed: int) -> None:
    one_ND, other_ND, third_ND = unit(a, seed=seed), unit(b, seed=seed + 1), unit(3, seed=seed + 2)
    means = Means.of([one_ND, other_ND, third_ND])
    means.merge(0, 1)
    whole = Means.of([np.concatenate([one_ND, other_ND]), third_ND])
    found = means.kinship(np.array([0]))[0, 2]
    assert found == pytest.approx(whole.kinship(np.array([0]))[0, 1], abs=1e-5)


def test_the_same_gap_says_more_between_large_groups_than_between_small_ones() -> None:
    found = [
        float(
            evidence(
                np.array([size]),
                np.array([0.6]),
                np.array([size]),
                np.array([0.6]),
                np.array([0.4]),
            )[0]
        )
        for size in (2.0, 8.0, 100.0)
    ]
    assert found[0] > required(0.51) > found[1] > found[2]


def test_many_texts_of_one_kind_are_not_heard_one_by_one() -> None:
    assert voices(np.array([1.0])) == pytest.approx([1.0])
    assert voices(np.array([100.0])) == pytest.approx([100 / (1 + 99 / LOUDEST)])
    assert voices(np.array([1e9]))[0] < LOUDEST
