"""Discovers task types: each text joins the skill whose centroid is nearest, or founds a new one.

Pure state in memory. Each assignment returns the skill as it now stands, for the caller to store;
``SkillAssigner.load`` starts from the stored rows. Knows nothing of episodes, tasks, or of how rows
are stored.

Axes: ``D`` embedding dimensions.
"""

import dataclasses
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from memory.embed import Embedding, Vector
from memory.errors import DenizenError
from memory.index import VectorIndex

_TITLE_WORDS = 4
_TITLE_CHARACTERS = 40
# Words of instructions and of English grammar: they say how to answer, not what the task is about.
_COMMON_WORDS = frozenset(
    re.findall(
        r"\w+",
        """a about above all an and answer any are as at be below by can do does each few final find
        following for form from give given have how if in instruction into is it its many me my no
        not of on one only or other out please problem provide question respond result return should
        solve state task tell than that the their then there these they this those times to use
        using was we what when where which who why will with would write you your""",
    )
)


class Embedder(Protocol):
    """What turns task texts into vectors."""

    @property
    def id(self) -> str:
        """Name the model; vectors of two models are not comparable."""

    @property
    def dimension(self) -> int:
        """Return ``D``."""

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        """Embed each text; one that has no vector says why."""


class SkillsConfig(BaseModel):
    """How task types are told apart."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    threshold: float = Field(default=0.5, gt=-1.0, lt=1.0)
    """Cosine from which a text belongs to the nearest skill. Measured with all-MiniLM-L6-v2 on
    reasoning-gym, 60 tasks a family, mean of three orders, as V-measure / number of skills: 18
    families 0.87/13 at 0.4, 0.96/21 at 0.5, 0.96/47 at 0.6, 0.89/134 at 0.7; 6 arithmetic and
    letter families 0.86/4, 0.92/8, 0.88/26, 0.76/65. At 0.5 single-digit products and sums stay
    whole, and 78 to 100 % of letter counting is one skill."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillState:
    """One skill as the assigner knows it; what is stored of it.

    Example:
        ``SkillState(id=2, title="multiplication", task_key=None, centroid_D=…, count=41)``
    """

    id: int
    title: str
    task_key: str | None
    centroid_D: Vector | None  # float32 [D], the running mean; None: a key, but no vector yet
    count: int  # vectors in the mean


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """Where a text belongs."""

    skill: SkillState | None  # as it stands after this text; to be stored
    is_new: bool = False
    similarity: float | None = None  # cosine to the nearest centroid, where that decided
    reason: str | None = None  # set exactly when there is no skill


class SkillAssigner:
    """Online nearest-centroid clustering; safe to call from several threads.

    What ``assign`` returns has already changed the state here. When storing it fails, load again.
    """

    def __init__(self, *, dimension: int, config: SkillsConfig | None = None) -> None:
        self._config = config or SkillsConfig()
        self._index = VectorIndex(dimension)
        self._skills: dict[int, SkillState] = {}
        self._by_key: dict[str, int] = {}
        self._lock = threading.Lock()

    @classmethod
    def load(
        cls,
        rows: Iterable[Mapping[str, Any]],
        *,
        dimension: int,
        config: SkillsConfig | None = None,
    ) -> "SkillAssigner":
        """Start from the stored rows.

        Args:
            rows: Each with id, title, task_key, centroid (little-endian float32, or None) and
                centroid_count.
            dimension: ``D`` of the embedder in use.
            config: The threshold.

        Raises:
            SkillLoadError: A centroid does not fit ``dimension``, as after a change of embedder.
        """
        assigner = cls(dimension=dimension, config=config)
        for row in rows:
            try:
                assigner._keep(_state_of(row, dimension))
            except ValueError as error:
                raise SkillLoadError(
                    f"skill {row['id']} ({row['title']!r}): {error}; its centroid comes from "
                    "another embedding model: compute it again from the skill's texts"
                ) from error
        return assigner

    def assign(self, text: str, embedding: Embedding, *, task_key: str | None = None) -> Assignment:
        """Find the text's skill, found a new one, or say why there is none.

        The caller's key wins: the same key is the same skill, however far its texts lie apart, and
        a key not seen before founds a skill. Without a key the nearest centroid counts, if it is
        near enough.

        Args:
            text: The task's text; names a new skill.
            embedding: The text's vector, or why there is none.
            task_key: The caller's own name for this kind of task.

        Raises:
            VectorIndexError: The vector is not [D] or not finite; nothing is changed.
        """
        with self._lock:
            if task_key is not None:
                return self._assign_by_key(task_key, embedding)
            if embedding.vector_D is None:
                return Assignment(skill=None, reason=embedding.reason)
            nearest = self._index.search(embedding.vector_D, limit=1)
            if nearest and nearest[0].similarity >= self._config.threshold:
                known = self._skills[nearest[0].id]
                joined = self._join(known, embedding.vector_D)
                return Assignment(skill=joined, similarity=nearest[0].similarity)
            founded = self._found(title_of([text]), None, embedding.vector_D)
            return Assignment(skill=founded, is_new=True)

    def _assign_by_key(self, task_key: str, embedding: Embedding) -> Assignment:
        known = self._by_key.get(task_key)
        if known is None:
            founded = self._found(task_key, task_key, embedding.vector_D)
            return Assignment(skill=founded, is_new=True)
        return Assignment(skill=self._join(self._skills[known], embedding.vector_D))

    def _found(self, title: str, task_key: str | None, vector_D: Vector | None) -> SkillState:
        skill = SkillState(
            id=max(self._skills, default=0) + 1,
            title=title,
            task_key=task_key,
            centroid_D=None,
            count=0,
        )
        return self._join(skill, vector_D)

    def _join(self, skill: SkillState, vector_D: Vector | None) -> SkillState:
        if vector_D is not None:
            # m_n = m_(n-1) + (v_n - m_(n-1)) / n, the running mean of unit vectors.
            old_D = np.zeros_like(vector_D) if skill.centroid_D is None else skill.centroid_D
            count = skill.count + 1
            centroid_D = (old_D + (vector_D - old_D) / count).astype(np.float32)
            skill = dataclasses.replace(skill, centroid_D=centroid_D, count=count)
        self._keep(skill)
        return skill

    def _keep(self, skill: SkillState) -> None:
        if skill.centroid_D is not None and skill.centroid_D.any():
            self._index.add(skill.id, skill.centroid_D)
        else:
            # Opposite vectors under one key can cancel out; such a mean points nowhere for now.
            self._index.remove(skill.id)
        self._skills[skill.id] = skill
        if skill.task_key is not None:
            self._by_key[skill.task_key] = skill.id


class SkillLoadError(DenizenError, ValueError):
    """Stored skills do not fit the embedding model in use."""

    code = "skill_error"


def title_of(texts: Sequence[str]) -> str:
    """Name a skill by the first few telling words that at least half of its texts share.

    ``["Solve the following multiplication: 3 * 4. Give only the result."]`` is "multiplication".
    What stands in quotes is one task's material, not its kind. Texts without a telling word are
    named by the beginning of the first.
    """
    words_of = [_telling_words(text) for text in texts]
    telling = [
        word
        for word in dict.fromkeys(word for words in words_of for word in words)
        if 2 * sum(word in words for words in words_of) >= len(texts)
    ]
    beginning = " ".join("".join(texts[:1]).split())[:_TITLE_CHARACTERS]
    return " ".join(telling[:_TITLE_WORDS]) or beginning or "unnamed"


def _telling_words(text: str) -> list[str]:
    unquoted = re.sub(r'"[^"]*"', " ", text.lower())
    return [word for word in re.findall(r"[^\W\d_]{3,}", unquoted) if word not in _COMMON_WORDS]


def _state_of(row: Mapping[str, Any], dimension: int) -> SkillState:
    centroid_D = None
    if row["centroid"] is not None:
        centroid_D = np.frombuffer(row["centroid"], dtype="<f4").astype(np.float32)
        if centroid_D.shape != (dimension,):
            raise ValueError(f"centroid has {centroid_D.size} dimensions, expected {dimension}")
    return SkillState(
        id=row["id"],
        title=row["title"],
        task_key=row["task_key"],
        centroid_D=centroid_D,
        count=row["centroid_count"],
    )
