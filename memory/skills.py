"""Discovers task types as texts come: each joins the skill whose centroid is nearest, or waits.

A text that is near no skill waits in a holding pen, without a skill, until it and others in the pen
are near enough to each other to found one. Pure state in memory, apart for each tenant. Each
assignment returns the skill as it now stands, for the caller to store; ``SkillAssigner.load``
starts from the stored rows. Knows nothing of episodes, tasks, or of how rows are stored; what it
founds, ``memory/regroup.py`` looks at again with all texts in view.

Axes: ``D`` embedding dimensions.
"""

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from memory.embed import Embedding, Vector
from memory.errors import DenizenError
from memory.index import Neighbour, VectorIndex
from memory.kinship import SAME_KIND, evidence, required
from memory.titles import title_of

COMPARED = 8
"""Skills, the nearest, among which the one for which most speaks is chosen."""
ROUNDING = 1e-6
"""By how much float32 similarities may fall short of the threshold."""
MAX_PEN = 2_000
"""Texts of a tenant that wait in memory, the newest; regrouping sees as many."""


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
    """Settings of ``[skills]``: how task types are told apart."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    threshold: float = Field(default=SAME_KIND, gt=-1.0, lt=1.0)
    """Cosine from which two texts are of one kind. A skill of several texts is joined from as much
    evidence as that (``memory/kinship.py``). Calibrated on 36 reasoning-gym families that no test
    stream has, and on the 1,390 requests of 925 kinds in ``bfcl-eval``'s files other than
    ``live_*``. From 0.49 to 0.51 small kinds lose 0.007 of V-measure with what waits as one group
    and gain 0.004 with each alone, families differ less than two orders of their texts do (four
    orders); ``bench/skills.py`` says why it is the former."""
    task_threshold: float = Field(default=0.5, gt=-1.0, lt=1.0)
    """The same for tasks that a person brought: they cannot wait, and each that is near no skill
    founds one."""
    min_founders: int = Field(default=2, ge=1)
    """Texts in the pen that must be near each other to found a skill: one alone is no type."""
    regroup_interval_s: float = Field(default=300.0, gt=0.0)
    """Seconds between looks at all skills together: what to found, merge and split. A look at 1,800
    texts takes less than a second of a core."""


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
    tenant: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """A text in the holding pen.

    Example:
        ``Waiting(id="ep_0193-5c", text="What is 3 times 4?", vector_D=…)``
    """

    id: str  # the caller's name for it
    text: str
    vector_D: Vector  # float32 [D]


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """Where a text belongs."""

    skill: SkillState | None  # as it stands after this text; to be stored
    is_new: bool = False
    similarity: float | None = None  # cosine to the nearest centroid, where that decided
    founders: Sequence[str] = ()  # ids of those in the pen that the new skill takes along
    reason: str | None = None  # set exactly when there is no skill


class SkillAssigner:
    """Online nearest-centroid clustering; safe to call from several threads.

    What ``assign`` returns has already changed the state here. When storing it fails, load again.
    """

    def __init__(self, *, dimension: int, config: SkillsConfig | None = None) -> None:
        self._dimension = dimension
        self._config = config or SkillsConfig()
        self._skills: dict[int, SkillState] = {}
        self._tenants: dict[str | None, _Tenant] = {}
        self._newest_id = 0
        self._lock = threading.Lock()

    @classmethod
    def load(
        cls,
        rows: Iterable[Mapping[str, Any]],
        pen: Iterable[Mapping[str, Any]] = (),
        *,
        dimension: int,
        config: SkillsConfig | None = None,
    ) -> "SkillAssigner":
        """Start from the stored rows.

        Args:
            rows: Each with id, title, tenant, task_key, centroid (little-endian float32, or None),
                centroid_count and merged_into (the id of the skill it became part of, or None).
            pen: What waits for a skill, oldest first, each with id, tenant, task_text and vector.
            dimension: ``D`` of the embedder in use.
            config: The thresholds.

        Raises:
            SkillLoadError: A vector does not fit ``dimension``.
        """
        assigner = cls(dimension=dimension, config=config)
        rows = list(rows)
        for row in rows:
            assigner._newest_id = max(assigner._newest_id, row["id"])
            if row["merged_into"] is None:
                with _fitting(f"skill {row['id']} ({row['title']!r})"):
                    assigner._keep(_state_of(row, dimension))
        for row in rows:
            if row["task_key"] is not None:
                own = assigner._of(row["tenant"])
                own.by_key[row["task_key"]] = row["merged_into"] or row["id"]
        for row in pen:
            with _fitting(f"episode {row['id']}"):
                vector_D = _vector(row["vector"], dimension)
            waiting = Waiting(id=row["id"], text=row["task_text"], vector_D=vector_D)
            assigner._of(row["tenant"]).pen.add(waiting)
        return assigner

    def assign(
        self,
        text: str,
        embedding: Embedding,
        *,
        id: str | None = None,
        task_key: str | None = None,
        tenant: str | None = None,
    ) -> Assignment:
        """Find the text's skill, found a new one, let it wait, or say why there is none.

        The caller's key wins: the same key is the same skill, however far its texts lie apart, and
        a key not seen before founds a skill. Without a key the nearest centroid counts, if it is
        near enough.

        Args:
            text: The task's text; helps to name a new skill.
            embedding: The text's vector, or why there is none.
            id: By what the text is known while it waits. Without, it cannot wait: it is a task's,
                and founds a skill by itself.
            task_key: The caller's own name for this kind of task.
            tenant: Whose text it is; skills and pens of two tenants know nothing of each other.

        Raises:
            VectorIndexError: The vector is not [D] or not finite; nothing is changed.
        """
        with self._lock:
            own = self._of(tenant)
            if task_key is not None:
                return self._assign_by_key(own, task_key, embedding)
            if embedding.vector_D is None:
                return Assignment(skill=None, reason=embedding.reason)
            config = self._config
            threshold = config.task_threshold if id is None else config.threshold
            nearest = self._nearest(own, embedding.vector_D, threshold)
            if nearest is not None:
                joined = self._join(self._skills[nearest.id], [embedding.vector_D])
                return Assignment(skill=joined, similarity=nearest.similarity)
            if id is None:
                return self._found(own, [(text, embedding.vector_D)])
            return self._wait(own, Waiting(id=id, text=text, vector_D=embedding.vector_D))

    def find(self, vector_D: Vector, *, tenant: str | None) -> int | None:
        """Return the skill that an episode's text would join; None: it would wait, or found one.

        What is asked in passing moves no centroid and waits in no pen: it comes again, as an
        episode, once it was answered.

        Args:
            vector_D: float32 [D], the text's.
            tenant: whose text it is.
        """
        with self._lock:
            nearest = self._nearest(self._of(tenant), vector_D, self._config.threshold)
            return None if nearest is None else nearest.id

    def _nearest(self, own: "_Tenant", vector_D: Vector, threshold: float) -> Neighbour | None:
        """Return the skill for which most speaks among the nearest, if enough does."""
        near = own.centroids.search(vector_D, limit=COMPARED)
        if not near:
            return None
        skills = [self._skills[one.id] for one in near]
        centroids = [skill.centroid_D for skill in skills if skill.centroid_D is not None]
        lengths_G = np.linalg.norm(np.stack(centroids).astype(np.float64), axis=1)
        found_G = evidence(
            np.ones(1),
            np.ones(1),
            np.array([skill.count for skill in skills], dtype=np.float64),
            lengths_G**2,
            lengths_G * np.array([one.similarity for one in near]),
        )
        best = int(found_G.argmax())
        return near[best] if found_G[best] >= required(threshold) - ROUNDING else None

    def _wait(self, own: "_Tenant", new: Waiting) -> Assignment:
        wanted = self._config.min_founders - 1
        near = own.pen.near(new, limit=wanted, threshold=self._config.threshold)
        if len(near) < wanted:
            own.pen.add(new)
            return Assignment(skill=None, reason="no skill is near enough yet")
        own.pen.remove([one.id for one in near])
        founded = self._found(own, [(one.text, one.vector_D) for one in (*near, new)])
        return dataclasses.replace(founded, founders=tuple(one.id for one in near))

    def _assign_by_key(self, own: "_Tenant", task_key: str, embedding: Embedding) -> Assignment:
        vectors = [] if embedding.vector_D is None else [embedding.vector_D]
        known = own.by_key.get(task_key)
        if known is not None:
            return Assignment(skill=self._join(self._skills[known], vectors))
        skill = self._new_skill(own, title=task_key, task_key=task_key)
        return Assignment(skill=self._join(skill, vectors), is_new=True)

    def _found(self, own: "_Tenant", founders: Sequence[tuple[str, Vector]]) -> Assignment:
        skill = self._new_skill(own, title=title_of([text for text, _ in founders]), task_key=None)
        joined = self._join(skill, [vector_D for _, vector_D in founders])
        return Assignment(skill=joined, is_new=True)

    def _new_skill(self, own: "_Tenant", *, title: str, task_key: str | None) -> SkillState:
        return SkillState(
            id=self._newest_id + 1,
            title=title,
            task_key=task_key,
            centroid_D=None,
            count=0,
            tenant=own.name,
        )

    def _join(self, skill: SkillState, vectors: Sequence[Vector]) -> SkillState:
        for vector_D in vectors:
            # m_n = m_(n-1) + (v_n - m_(n-1)) / n, the running mean of unit vectors.
            old_D = np.zeros_like(vector_D) if skill.centroid_D is None else skill.centroid_D
            count = skill.count + 1
            centroid_D = (old_D + (vector_D - old_D) / count).astype(np.float32)
            skill = dataclasses.replace(skill, centroid_D=centroid_D, count=count)
        self._keep(skill)
        return skill

    def _keep(self, skill: SkillState) -> None:
        own = self._of(skill.tenant)
        if skill.centroid_D is not None and skill.centroid_D.any():
            own.centroids.add(skill.id, skill.centroid_D)
        else:
            # Opposite vectors under one key can cancel out; such a mean points nowhere for now.
            own.centroids.remove(skill.id)
        self._skills[skill.id] = skill
        self._newest_id = max(self._newest_id, skill.id)
        if skill.task_key is not None:
            own.by_key[skill.task_key] = skill.id

    def _of(self, tenant: str | None) -> "_Tenant":
        if tenant not in self._tenants:
            self._tenants[tenant] = _Tenant(tenant, self._dimension)
        return self._tenants[tenant]


class _Tenant:
    """What belongs to one tenant."""

    def __init__(self, name: str | None, dimension: int) -> None:
        self.name = name
        self.centroids = VectorIndex(dimension)  # by skill
        self.by_key: dict[str, int] = {}
        self.pen = _Pen(dimension)


class _Pen:
    """Texts that wait for a skill, by id; the oldest is left to regrouping when it is full."""

    def __init__(self, dimension: int) -> None:
        self._index = VectorIndex(dimension)
        self._waiting: OrderedDict[int, Waiting] = OrderedDict()  # by row of the index
        self._row_of: dict[str, int] = {}
        self._next_row = 0

    def add(self, waiting: Waiting) -> None:
        """Let a text wait; one that waited under its id already is replaced."""
        self.remove([waiting.id])
        row, self._next_row = self._next_row, self._next_row + 1
        self._index.add(row, waiting.vector_D)
        self._waiting[row] = waiting
        self._row_of[waiting.id] = row
        if len(self._waiting) > MAX_PEN:
            self.remove([next(iter(self._waiting.values())).id])

    def near(self, new: Waiting, *, limit: int, threshold: float) -> list[Waiting]:
        """Return those at least ``threshold`` near, the nearest first; never ``new`` itself."""
        if limit < 1:
            return []
        found = self._index.search(new.vector_D, limit=limit + 1)
        near = [self._waiting[one.id] for one in found if one.similarity >= threshold]
        return [one for one in near if one.id != new.id][:limit]

    def remove(self, ids: Sequence[str]) -> None:
        """Let texts go."""
        for id in ids:
            if (row := self._row_of.pop(id, None)) is not None:
                self._index.remove(row)
                del self._waiting[row]


class SkillLoadError(DenizenError, ValueError):
    """Stored skills do not fit the embedding model in use."""

    code = "skill_error"


class _fitting:
    """Say whose stored vector it is that does not fit."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, ValueError):
            raise SkillLoadError(
                f"{self._what}: {error}; its vector comes from another embedding model: compute it "
                "again from the texts"
            ) from error


def _state_of(row: Mapping[str, Any], dimension: int) -> SkillState:
    return SkillState(
        id=row["id"],
        title=row["title"],
        task_key=row["task_key"],
        centroid_D=None if row["centroid"] is None else _vector(row["centroid"], dimension),
        count=0 if row["centroid"] is None else row["centroid_count"],
        tenant=row["tenant"],
    )


def _vector(stored: bytes, dimension: int) -> Vector:
    vector_D = np.frombuffer(stored, dtype="<f4").astype(np.float32)
    if vector_D.shape != (dimension,):
        raise ValueError(f"centroid has {vector_D.size} dimensions, expected {dimension}")
    return vector_D
