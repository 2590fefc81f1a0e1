"""Puts what comes in under skills, and keeps what is known in memory in step with the rows.

Between reading the skills and writing an assignment, a person or the regrouping may have moved
them. So each write looks at the newest entry of the skills' history first: when that is not the one
that was read, nothing is written, and the skills are read again. It does not know what an episode
is good for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from memory.database import Transaction
from memory.embed import Embedding, Vector
from memory.errors import ConflictError
from memory.skill_writes import VectorOf, newest_change, place, save_skill, set_vector
from memory.skills import MAX_PEN, Assignment, Embedder, SkillAssigner, SkillsConfig
from memory.store import Store
from memory.task_store import set_task_skill
from memory.task_texts import LEAST_CHARACTERS, WINDOW, SharedText, asked, text_key
from memory.types import Episode, TaskSpec

SAMPLE = 16
"""Texts on which a skill's place is measured again after a change of embedder."""
RENEWED = 500
"""Vectors of another embedder that are replaced in one look."""
SLICE = 16
"""Texts embedded at once: a third of a second of a core, for which a request's recall may wait."""


class SkillsMovedError(ConflictError):
    """The skills are not those that an assignment was made with; nothing was written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sorted:
    """Where an episode or a task belongs.

    Example:
        ``Sorted(id="ep_0193-5c", text="What is 3 times 4?", embedding=…, assignment=…)``
    """

    id: str
    text: str  # as it was embedded
    embedding: Embedding
    assignment: Assignment

    @property
    def skill_id(self) -> int | None:
        """The skill, where there is one."""
        return self.assignment.skill.id if self.assignment.skill else None


class Sorter:
    """The one owner of the assigner. Methods that embed or read are for threads."""

    def __init__(self, store: Store, embedder: Embedder, config: SkillsConfig) -> None:
        self._store = store
        self._embedder = embedder
        self._config = config
        self._shared: dict[str | None, SharedText] = {}
        self._retried_to = ""  # the last id whose text was tried again since the start
        for row in store.skills.newest_texts(WINDOW):
            self._shared_by(row["tenant"]).note([row["task_text"]])
        self.read()

    def read(self) -> None:
        """Start again from the rows."""
        skills, embedder = self._store.skills, self._embedder
        self._seen = skills.newest_change()
        self._is_stale = False
        self._assigner = SkillAssigner.load(
            skills.centroids(embedder.id),
            skills.pen(embedder.id, MAX_PEN),
            dimension=embedder.dimension,
            config=self._config,
        )

    def distrust(self) -> None:
        """Say that the assigner may know what was not stored."""
        self._is_stale = True

    def warm_up(self) -> None:
        """Load the embedder, and find the skills again that lie in another embedder's space.

        Tasks that no vector could be made of are looked at again, too.

        Raises:
            EmbeddingError: it cannot be loaded.
        """
        self._embedder.embed(["warm up"])
        self._store.tasks.try_again()
        for skill in self._store.skills.placed_by_others(self._embedder.id):
            texts = self._store.skills.newest_texts_of(skill["id"], SAMPLE)
            embeddings = self._embed([self.task_of(skill["tenant"], text) for text in texts])
            vectors = [one.vector_D for one in embeddings if one.vector_D is not None]
            if vectors:
                centroid_D = np.mean(vectors, axis=0).astype(np.float32)
                self._store.skills.move(
                    skill["id"],
                    embedder=self._embedder.id,
                    centroid_D=centroid_D,
                    count=len(vectors),
                )
        self.read()

    def sort_episodes(
        self, episodes: Sequence[Episode], asked: Sequence[Sequence[str]]
    ) -> list[Sorted]:
        """Find a skill for each episode.

        Args:
            episodes: those without a skill.
            asked: what the user says in each one's first request.
        """
        self._refresh()
        for episode, said in zip(episodes, asked, strict=True):
            self._shared_by(episode.tenant).note(said)
        texts = [
            self._shared_by(episode.tenant).without(said)
            for episode, said in zip(episodes, asked, strict=True)
        ]
        return [
            Sorted(
                id=episode.id,
                text=text,
                embedding=embedding,
                assignment=self._assigner.assign(
                    text,
                    embedding,
                    id=episode.id,
                    task_key=episode.task_key,
                    tenant=episode.tenant,
                ),
            )
            for episode, text, embedding in zip(episodes, texts, self._embed(texts), strict=True)
        ]

    def sort_tasks(self, tasks: Sequence[TaskSpec]) -> list[Sorted]:
        """Find a skill for each task; one that a person brought founds one rather than wait."""
        self._refresh()
        texts = [self._shared_by(task.tenant).without([task.text]) for task in tasks]
        return [
            Sorted(
                id=task.id,
                text=text,
                embedding=embedding,
                assignment=self._assigner.assign(
                    text, embedding, task_key=task.task_key, tenant=task.tenant
                ),
            )
            for task, text, embedding in zip(tasks, texts, self._embed(texts), strict=True)
        ]

    @property
    def embedder_id(self) -> str:
        """Name what embeds."""
        return self._embedder.id

    @property
    def dimension(self) -> int:
        """Return ``D``."""
        return self._embedder.dimension

    def task_of(self, tenant: str | None, *said: str) -> str:
        """Return what was said without what the tenant's other conversations say as well."""
        return self._shared_by(tenant).without(said)

    def skill_of(self, vector_D: Vector, *, tenant: str | None) -> int | None:
        """Return the skill that an episode's text would join, as the skills were last read.

        For what is asked in passing: nothing is read from the database, and nothing changed.
        """
        return self._assigner.find(vector_D, tenant=tenant)

    def renew(self) -> int:
        """Embed again what another embedder embedded, what is read differently by now, or failed.

        A preamble is known as one only after some conversations had it. What came out as no vector
        is tried once more in each process. Some at a time.

        Returns:
            How many vectors were replaced, or are still missing.

        Raises:
            EmbeddingError: texts cannot be embedded.
        """
        skills, embedder_id = self._store.skills, self._embedder.id
        failed = skills.without_vector(embedder_id, after=self._retried_to, limit=RENEWED)
        stale = [*skills.embedded_by_others(embedder_id, RENEWED), *failed]
        texts = {row["id"]: self.task_of(row["tenant"], row["task_text"]) for row in stale}
        for row in self._store.skills.newest_long_texts(LEAST_CHARACTERS, WINDOW):
            text = self._task_of_episode(row)
            if text_key(text) != row["text_key"]:
                texts[row["id"]] = text
        found = list(texts.items())
        for at in range(0, len(found), SLICE):
            self._renew(found[at : at + SLICE])
        if failed:
            self._retried_to = failed[-1]["id"]
        return len(found)

    def _renew(self, texts: Sequence[tuple[str, str]]) -> None:
        embeddings = self._embed([text for _, text in texts])

        def write(db: Transaction) -> None:
            for (id, text), embedding in zip(texts, embeddings, strict=True):
                set_vector(
                    db,
                    id,
                    embedder=self._embedder.id,
                    vector_D=embedding.vector_D,
                    missing_reason=embedding.reason,
                    text_key=text_key(text),
                )

        self._store.database.write(write)
        self.distrust()  # the pen in memory has the old vectors

    def _task_of_episode(self, row: Mapping[str, Any]) -> str:
        calls = self._store.episodes.call_texts(row["id"], limit=1)
        messages = calls[0].request.get("messages", ()) if calls else ()
        return self._shared_by(row["tenant"]).without(asked(messages, row["task_text"]))

    def save_episode(self, db: Transaction, found: Sorted) -> None:
        """Store where an episode belongs; inside a write."""
        self._save_skill(db, found.assignment)
        if found.skill_id is not None:
            place(db, (found.id, *found.assignment.founders), found.skill_id)
        set_vector(
            db,
            found.id,
            embedder=self._embedder.id,
            vector_D=found.embedding.vector_D,
            missing_reason=found.embedding.reason,
            text_key=text_key(found.text),
        )

    def save_task(self, db: Transaction, found: Sorted) -> None:
        """Store where a task belongs; inside a write."""
        self._save_skill(db, found.assignment)
        set_vector(
            db,
            found.id,
            of=VectorOf.TASK,
            embedder=self._embedder.id,
            vector_D=found.embedding.vector_D,
            missing_reason=found.embedding.reason,
            text_key=text_key(found.text),
        )
        if found.skill_id is not None:
            set_task_skill(db, found.id, found.skill_id)

    def check(self, db: Transaction) -> None:
        """See that the skills are still those that were read; first of all inside a write.

        Raises:
            SkillsMovedError: they are not.
        """
        if newest_change(db) != self._seen:
            self._is_stale = True
            raise SkillsMovedError("the skills were moved meanwhile")

    def seen(self, db: Transaction) -> int:
        """Return the newest change, the write's own included; last of all inside a write."""
        return newest_change(db)

    def committed(self, seen: int) -> None:
        """Say that a write went through, and what ``seen`` returned in it."""
        self._seen = seen

    def _refresh(self) -> None:
        if self._is_stale or self._store.skills.newest_change() != self._seen:
            self.read()

    def _embed(self, texts: Sequence[str]) -> list[Embedding]:
        return self._embedder.embed(texts) if texts else []

    def _shared_by(self, tenant: str | None) -> SharedText:
        return self._shared.setdefault(tenant, SharedText())

    def _save_skill(self, db: Transaction, assignment: Assignment) -> None:
        skill = assignment.skill
        if skill is None:
            return
        save_skill(
            db,
            skill_id=skill.id,
            title=skill.title,
            tenant=skill.tenant,
            task_key=skill.task_key,
            embedder=self._embedder.id,
            centroid_D=skill.centroid_D,
            count=skill.count,
        )
