"""A home with episodes that have all that can hang on them, and what erases from it."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from memory.database import Transaction
from memory.eraser import Eraser
from memory.erasure_scope import Scope
from memory.grade_rows import set_grades
from memory.recording import CallKeys
from memory.store import Store
from memory.task_store import add_task
from memory.types import EpisodeSource, Feedback, Grade, GradeKind, Outcome
from memory.vector_file import FILE_NAME
from memory.vectors import EpisodeVectors
from tests.records import NOON, call, episode, later, task

PLANTED = "zq7PlantedSecretText5f1c9a"


class Home:
    """A store in a home folder, and what erases from it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = Store(path / "denizen.db")
        self.forgotten: set[str] = set()
        self.running: set[str] = set()
        self.vectors = self._vectors()
        self.eraser = Eraser(
            self.store,
            path,
            running=lambda scope: self.running,
            forget=[self.forgotten.update],
            clean_up=[self.vectors.forget_gone],
        )

    async def record(self, number: int, text: str = PLANTED, **fields: Any) -> str:
        """Record an episode of two calls with all that can hang on it; return its id."""
        id = f"ep_{number}"
        its = episode(id=id, task_text=f"about {text}", created_at=later(number), **fields)
        request = {"messages": [{"role": "user", "content": f"about {text} " * 40}]}
        answer = {"role": "assistant", "content": f"answer {text} " * 30}
        first = call(id=f"c{number}", episode_id=id, request=request, message=answer)
        longer = [*request["messages"], answer, {"role": "user", "content": f"more {text}"}]
        second = call(
            id=f"c{number}b", episode_id=id, request={"messages": longer}, parent_id=first.id
        )
        keys = CallKeys(quotes=[("user", "about", 2, text)])
        await self.store.episodes.record(its, [first], [keys])
        await self.store.episodes.record(its, [second], [keys])
        said = Feedback(
            id=f"fb{number}",
            episode_id=id,
            created_at=NOON,
            value=1,
            comment=f"comment {text}",
            correction=f"correction {text}",
        )
        await self.store.episodes.add_feedback(said)
        grade = Grade(
            kind=GradeKind.PERSON, grader="user", version="1", value=1, explanation=f"why {text}"
        )

        def hang(db: Transaction) -> None:
            set_grades(db, its, [grade], Outcome(value=1.0, provenance=None, num_grades=1))
            vector = np.ones(4, dtype="<f4").tobytes()
            db.execute(
                "INSERT INTO vectors (episode_id, embedder, vector) VALUES (?, 'e', ?)",
                (id, vector),
            )
            derived = task(
                number,
                messages=({"role": "user", "content": text},),
                origin=f"episode:{id}",
                tenant=its.tenant,
            )
            add_task(db, derived)

        await self.store.database.write_async(hang)
        return id

    async def practise(self, number: int, of: int, text: str = PLANTED) -> str:
        """Record practice on the task that was made of an episode."""
        return await self.take_again(number, of=f"task_{of:04d}", text=text)

    async def take_again(self, number: int, of: str, text: str = PLANTED) -> str:
        """Record practice at a prefix of an episode, or on a task."""
        id = f"ep_practice_{number}"
        its = episode(
            id=id,
            source=EpisodeSource.PRACTICE,
            task_id=of,
            task_text=text,
            digested_revision=1,
        )
        grade = Grade(kind=GradeKind.CHECK, grader="g", version="1", value=1)
        outcome = Outcome(value=1.0, provenance=None, num_grades=1)
        tried = (its, call(id=f"p{number}", episode_id=id), grade, outcome)
        await self.store.practice.record([[tried]])
        return id

    async def erase(self, **scope: Any) -> dict[str, Any]:
        return await self.eraser.erase(Scope(**scope), actor="test")

    def files_with(self, text: str) -> list[str]:
        return files_with(self.path, text)

    def killed(self, target: Path) -> Path:
        """Copy what a SIGKILL would leave of the home now; the writer must not be at work.

        The database first: a checkpoint may move pages meanwhile, and the log keeps them until the
        writer cuts it.
        """
        target.mkdir(exist_ok=True)
        shutil.copy(self.path / "denizen.db", target)
        shutil.copytree(
            self.path,
            target,
            ignore=shutil.ignore_patterns("denizen.db", "*-shm"),
            dirs_exist_ok=True,
        )
        return target

    def log(self, line: str) -> None:
        """Write a line to the service's log."""
        (self.path / "logs").mkdir(exist_ok=True)
        with (self.path / "logs" / "service.log").open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def index(self) -> None:
        """Have the vectors indexed in a file, as those of a large store are."""
        self.vectors.open()
        self.vectors.maintain()
        self.vectors.save()

    def indexed_ids(self) -> frozenset[int]:
        """Return the ids in the file of the index."""
        found = self._vectors()
        return frozenset() if (known := found._load()) is None else known[0].ids

    def vector_ids(self, but: str) -> set[int]:
        sql = "SELECT id FROM vectors WHERE episode_id != ?"
        return {row["id"] for row in self.store.database.read(sql, (but,))}

    def _vectors(self) -> EpisodeVectors:
        return EpisodeVectors(
            self.store.database,
            embedder_id="e",
            dimension=4,
            file=self.path / FILE_NAME,
            max_exact=1,
        )

    def count(self, table: str) -> int:
        return int(self.store.database.read(f"SELECT COUNT(*) AS n FROM {table}")[0]["n"])


def files_with(folder: Path, text: str) -> list[str]:
    return [
        path.name
        for path in folder.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    ]
