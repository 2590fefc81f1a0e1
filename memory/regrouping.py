"""The background look at all skills: reads a sample of them, regroups it, and stores what follows.

One tenant at a time, the newest texts, in one write; what a person decided meanwhile wins, and the
look is taken again later. It does not know how texts are compared.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from memory.alike import Vectors
from memory.churn import allowance, bounded, num_moved
from memory.database import Transaction
from memory.embed import Vector
from memory.gains import Gains
from memory.regroup import Group, Regrouped, regroup
from memory.skill_writes import (
    SYSTEM,
    SkillRow,
    found,
    let_wait,
    measure,
    merge,
    note,
    num_waiting,
    place,
    rows_by_id,
    set_title,
    split_off,
    sweep,
)
from memory.skills import MAX_PEN, SkillsConfig
from memory.sorter import Sorter
from memory.store import Store
from memory.tenants import Sight
from memory.titles import key_terms, title_from, title_of
from memory.types import SkillEvent, SkillPolicy

log = logging.getLogger(__name__)
SAMPLE = 200
"""Of each skill, the texts that are looked at; twice as many as speak for it."""
OLDER = 4
"""One part in so many of them are not the newest but older ones, by turns: what a split left behind
because a look may not move more follows its kind."""
MAX_LOOKED = 20_000
"""Texts of all skills of a tenant that are looked at, about: 31 MB of vectors."""
NAMING_SAMPLE = 50
"""Of each skill, the texts that name it."""
MAX_SORTED = 20_000
"""Texts of a skill that is split which are sorted between its parts; older ones stay."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _View:
    """One tenant's skills as they were read."""

    tenant: str | None
    embedder: str
    skills: Mapping[int, SkillRow]
    ids: Mapping[int | None, Sequence[str]]  # episodes and tasks of each skill; None: the pen
    vectors: Mapping[int | None, Vectors]
    num_unseen: Mapping[int, int]  # episodes and tasks of each skill that were not read


class Regrouping:
    """The scheduled job."""

    def __init__(self, store: Store, sorter: Sorter, config: SkillsConfig) -> None:
        self._store = store
        self._sorter = sorter
        self._config = config
        self._num_looks = 0

    async def run(self) -> None:
        """Look once, on a thread."""
        await asyncio.to_thread(self.look)

    def look(self) -> Counter[str]:
        """Look at every tenant's skills once; return how often what happened.

        Raises:
            StoreError: the database cannot be read or written.
            EmbeddingError: texts cannot be embedded.
        """
        self._sorter.renew()
        self._num_looks += 1
        happened: Counter[str] = Counter()
        for tenant in self._store.skills.tenants():
            happened += self._look_at(tenant)
        if happened:
            log.info("skills were regrouped: %s", dict(happened))
        return happened

    def _look_at(self, tenant: str | None) -> Counter[str]:
        seen = self._store.skills.newest_change()
        view = self._read(tenant)
        groups = [
            Group(
                skill_id=skill_id,
                vectors_ND=view.vectors[skill_id],
                is_fixed=skill.is_fixed,
                policy=skill.policy.value,
                num_unseen=view.num_unseen[skill_id],
            )
            for skill_id, skill in view.skills.items()
            if skill.policy is not SkillPolicy.LOCKED and len(view.ids[skill_id])
        ]
        allowed, min_size = allowance(groups), self._config.min_founders
        threshold, pen_ND = self._config.threshold, view.vectors[None]
        plan = regroup(groups, pen_ND, min_size=min_size, threshold=threshold)
        gain = Gains(groups, pen_ND, plan, threshold=threshold).gain
        plan = bounded(groups, plan, gain=gain, allowed=allowed, min_size=min_size)
        allowed -= num_moved(groups, plan)
        rest = self._rest_of_split(view, plan, allowed)
        strays = _strays(view, plan, allowed - len(rest))
        texts = self._texts(view)
        return self._store.database.write(
            lambda db: _Application(db, view, plan, rest, strays, texts).run(seen)
        )

    def _read(self, tenant: str | None) -> _View:
        store, embedder = self._store.skills, self._sorter.embedder_id
        skills = {row.id: row for row in store.rows_of(Sight(tenant))}
        sample = max(self._config.min_founders, min(SAMPLE, MAX_LOOKED // max(1, len(skills))))
        sizes = {id: store.num_members(id) for id in skills}
        found: dict[int | None, list[tuple[str, bytes]]] = {
            id: self._sample(id, sizes[id], sample) for id in skills
        }
        pen = store.pen(embedder, MAX_PEN, Sight(tenant))
        found[None] = [(str(row["id"]), row["vector"]) for row in pen]
        dimension = self._sorter.dimension
        return _View(
            tenant=tenant,
            embedder=embedder,
            skills=skills,
            ids={skill: [id for id, _ in rows] for skill, rows in found.items()},
            vectors={skill: _stacked(rows, dimension) for skill, rows in found.items()},
            num_unseen={id: max(0, size - len(found[id])) for id, size in sizes.items()},
        )

    def _sample(self, skill_id: int, size: int, sample: int) -> list[tuple[str, bytes]]:
        """Return id and vector of a skill's newest texts, and of some older ones by turns."""
        members, embedder = self._store.skills.members, self._sorter.embedder_id
        if size <= sample:
            return members(skill_id, embedder, sample)
        num_older = sample // OLDER
        newest = sample - num_older
        turn = self._num_looks * num_older % (size - newest)
        return [
            *members(skill_id, embedder, newest),
            *members(skill_id, embedder, num_older, after=newest + turn),
        ]

    def _rest_of_split(
        self, view: _View, plan: Sequence[Regrouped], allowed: int
    ) -> dict[str, int]:
        """Say which part of a skill that is split its older texts belong to, as a row of ``plan``.

        Those that stay with the skill are left out, as are all but the ``allowed`` newest.
        """
        parts: dict[int, list[int]] = {}
        for number, one in enumerate(plan):
            if one.split_from is not None:
                parts.setdefault(one.split_from, []).append(number)
        moves: dict[str, int] = {}
        for skill_id, numbers in parts.items():
            home = next((n for n, one in enumerate(plan) if one.skill_id == skill_id), None)
            if home is None:
                continue
            all_parts = [home, *numbers]
            means_GD = np.stack([_mean(view, plan[number]) for number in all_parts])
            known = set(view.ids[skill_id])
            rows = self._store.skills.members(skill_id, self._sorter.embedder_id, MAX_SORTED)
            rest = [row for row in rows if row[0] not in known]
            if rest:
                nearest = (_stacked(rest, self._sorter.dimension) @ means_GD.T).argmax(axis=1)
                chosen = zip(rest, nearest, strict=True)
                moves |= {id: all_parts[best] for (id, _), best in chosen if best}
        return dict(list(moves.items())[: max(0, allowed)])

    def _texts(self, view: _View) -> dict[int | None, dict[str, str]]:
        wanted = {skill: list(ids[:NAMING_SAMPLE]) for skill, ids in view.ids.items()}
        wanted[None] = list(view.ids[None])
        read = self._store.skills.texts
        return {
            skill: {id: self._sorter.task_of(view.tenant, text) for id, text in read(ids).items()}
            for skill, ids in wanted.items()
        }


class _Application:
    """One plan on its way into the rows; inside a write."""

    def __init__(
        self,
        db: Transaction,
        view: _View,
        plan: Sequence[Regrouped],
        rest: Mapping[str, int],
        strays: Mapping[int, Sequence[str]],
        texts: Mapping[int | None, Mapping[str, str]],
    ) -> None:
        self._db = db
        self._view = view
        self._plan = plan
        self._rest = rest
        self._strays = strays
        self._text_of = {id: text for of_skill in texts.values() for id, text in of_skill.items()}
        self._happened: Counter[str] = Counter()

    def run(self, seen: int) -> Counter[str]:
        """Do it, unless anything but new skills has come since ``seen``."""
        sql = "SELECT 1 FROM skill_history WHERE id > ? AND event NOT IN ('founded') LIMIT 1"
        if any(self._db.query(sql, (seen,))):
            log.info("skills were changed while they were looked at; they are looked at again")
            return self._happened
        sweep(self._db)
        texts: dict[int, list[str]] = {}
        touched = set()
        for number, one in enumerate(self._plan):
            ids = [self._view.ids[skill][row] for skill, row in one.members]
            if not self._is_possible(one, ids):
                continue
            skill_id, is_changed = self._settle(one, ids, number)
            texts[skill_id] = [self._text_of[id] for id in ids if id in self._text_of]
            if is_changed:
                touched.add(skill_id)
        touched |= self._let_strays_wait()
        for skill_id in touched:
            measure(self._db, skill_id)
        self._name(texts, touched)
        return self._happened

    def _let_strays_wait(self) -> set[int]:
        """Let texts that are like no others of their skill wait again; return those skills."""
        left = set()
        for skill_id, ids in self._strays.items():
            if num_left := let_wait(self._db, ids, was=skill_id):
                note(self._db, skill_id, SYSTEM, SkillEvent.LEFT, detail=f"{num_left} episodes")
                self._happened["left"] += num_left
                left.add(skill_id)
        return left

    def _is_possible(self, one: Regrouped, ids: Sequence[str]) -> bool:
        """Say whether all that are to found a skill wait still; else it is for the next look."""
        if one.skill_id is not None or one.split_from is not None:
            return True
        founders = [id for id, (was, _) in zip(ids, one.members, strict=True) if was is None]
        return num_waiting(self._db, founders) == len(founders)

    def _settle(self, one: Regrouped, ids: Sequence[str], number: int) -> tuple[int, bool]:
        """Make one group what it should be; return its skill, and whether anything changed."""
        skill_id = one.skill_id
        if skill_id is None:
            skill_id = self._begin(one, ids, number)
        for part in one.absorbs:
            merge(self._db, part, skill_id, actor=SYSTEM)
            self._happened["merged"] += 1
        at_home = {one.skill_id, one.split_from, *one.absorbs}
        movers = [
            (self._view.ids[skill][row], skill)
            for skill, row in one.members
            if skill not in at_home or (skill is None and one.skill_id is not None)
        ]
        num_moved = sum(place(self._db, [id], skill_id, was=was) for id, was in movers)
        if num_moved:
            detail = f"{num_moved} episodes or tasks"
            note(self._db, skill_id, SYSTEM, SkillEvent.JOINED, detail=detail)
            self._happened["joined"] += num_moved
        return skill_id, bool(num_moved or one.absorbs or one.skill_id is None)

    def _begin(self, one: Regrouped, ids: Sequence[str], number: int) -> int:
        title = title_of([self._text_of[id] for id in ids if id in self._text_of][:NAMING_SAMPLE])
        if one.split_from is None:
            self._happened["founded"] += 1
            skill_id = found(
                self._db,
                title=title,
                tenant=self._view.tenant,
                like=None,
                embedder=self._view.embedder,
            )
            place(self._db, ids, skill_id)
            return skill_id
        self._happened["split"] += 1
        own = [self._view.ids[s][row] for s, row in one.members if s == one.split_from]
        own += [id for id, part in self._rest.items() if part == number]
        return split_off(self._db, one.split_from, own, title=title, actor=SYSTEM)

    def _name(self, texts: Mapping[int, Sequence[str]], touched: set[int]) -> None:
        """Give skills that were touched, or have none yet, their key terms, and maybe a title."""
        rows = {row.id: row for row in rows_by_id(self._db, texts)}
        stale = [id for id, row in rows.items() if id in touched or not row.key_terms]
        if not stale:
            return
        terms = key_terms(texts)
        for skill_id in stale:
            row = rows[skill_id]
            title = row.title
            if not row.is_fixed:
                title = title_from(terms[skill_id], texts[skill_id])
            set_title(self._db, row, title=title, key_terms=terms[skill_id])


def _strays(view: _View, plan: Sequence[Regrouped], allowed: int) -> dict[int, list[str]]:
    """Return the strays of each skill, as many as may leave; the newest of each skill first.

    No skill loses all its texts.
    """
    home_of = {was: one.skill_id for one in plan for was in (one.skill_id, *one.absorbs)}
    kept = [one for one in plan if len(one.strays) < len(one.members)]
    found = sorted((row, was) for one in kept for was, row in one.strays if was is not None)
    strays: dict[int, list[str]] = {}
    for row, was in found[: max(0, allowed)]:
        if (home := home_of.get(was)) is not None:
            strays.setdefault(home, []).append(view.ids[was][row])
    return strays


def _mean(view: _View, one: Regrouped) -> Vector:
    vectors = [view.vectors[skill][row] for skill, row in one.members]
    mean_D = np.mean(vectors, axis=0)
    return np.asarray(mean_D / (np.linalg.norm(mean_D) or 1.0), dtype=np.float32)


def _stacked(rows: Sequence[tuple[str, bytes]], dimension: int) -> Vectors:
    if not rows:
        return np.zeros((0, dimension), dtype=np.float32)
    stored = b"".join(vector for _, vector in rows)
    return np.frombuffer(stored, dtype="<f4").reshape(len(rows), -1).astype(np.float32)
