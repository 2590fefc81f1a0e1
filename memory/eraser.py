"""One erasure from the request to the proof: the record, what runs, the indexes, the files.

It knows the order, which a kill may cut at any place, and the next start goes through again:

1. What goes is written down with the audit row, in one commit. Before it nothing has happened.
2. The texts to look for are kept in a file of their own (``memory/needle_file.py``), since the rows
   that tell them are about to go.
3. The rows go, then what indexes hold of them, then the traces in files.
4. The kept texts are overwritten and deleted.
5. Only then the audit row says that it has ended; without that, all is done again from 2 on.

The rows are the business of ``memory/erasure.py``, the files that of ``memory/scrubbing.py``.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from memory import scrubbing
from memory.erasure import MAX_ROUNDS, Erased, Erasure
from memory.erasure_scope import Scope
from memory.errors import NotFoundError
from memory.needle_file import NeedleFile
from memory.store import Store

log = logging.getLogger(__name__)


class Eraser:
    """Erases while the service runs; one at a time."""

    def __init__(
        self,
        store: Store,
        home: Path,
        *,
        running: Callable[[Scope], Collection[str]],
        forget: Sequence[Callable[[Collection[str]], None]],
        let_go: Sequence[Callable[[Sequence[str]], Awaitable[None]]] = (),
        clean_up: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Compose.

        Args:
            store: the record.
            home: whose files are searched.
            running: the episodes of a scope that are being answered, and may not be recorded yet;
                called on the event loop.
            forget: take episodes out of what is held in memory; called on the event loop.
            let_go: stop what works with episodes that are about to go; called on the event loop.
            clean_up: bring caches of the rows and their files up to date, whether they have been
                read yet or not; called in a thread.
        """
        self.erasure = Erasure(store)
        self._store = store
        self._home = home
        self._running = running
        self._forget = forget
        self._let_go = let_go
        self._clean_up = clean_up
        self._turn = asyncio.Lock()

    async def erase(self, scope: Scope, *, actor: str) -> dict[str, Any]:
        """Erase a scope and prove it; what is recorded in it meanwhile goes as well.

        Returns:
            ``{"id", "scope", "counts", "tainted", "files"}``: how many rows of each kind went, the
            versions that had learned from them, and what was done to the files.

        Raises:
            NotFoundError: a single episode or task was named, and there is none.
        """
        async with self._turn:
            found = await self._found(scope)
            self._out_of_mind(found)
            erased = await self.erasure.begin(scope, found, actor=actor)
            for _ in range(MAX_ROUNDS):
                await self._take_out(found, erased)
                if scope.is_single or not (found := await self._found(scope)):
                    break
                self._out_of_mind(found)
                await self.erasure.mark(found, erased)
            tainted = await asyncio.to_thread(self.erasure.tainted_by, erased)
            files = await self._close(erased)
        counts = dict(erased.counts)
        log.info("%s: erased %s (%s)", erased.id, scope.kind, counts)
        return {
            "id": erased.id,
            "scope": scope.kind,
            "counts": counts,
            "tainted": tainted,
            "files": files,
        }

    async def finish(self) -> None:
        """Finish the erasures that have not ended: cut short, or held up by a reader of the file.

        To be called before anything is answered, and now and then.
        """
        async with self._turn:
            for erased, left in await asyncio.to_thread(self.erasure.unfinished):
                self._out_of_mind(left)
                await self.erasure.mark(left, erased)
                await self._take_out(left, erased)
                files = await self._close(erased)
                log.warning("%s had not ended, and is gone on with (%s)", erased.id, files)

    async def _found(self, scope: Scope) -> list[str]:
        """Return the episodes of a scope, recorded or running."""
        running = self._running(scope)  # first: what ends meanwhile is found in the record
        try:
            recorded = await asyncio.to_thread(self.erasure.find, scope)
        except NotFoundError:
            if not running:
                raise
            recorded = []
        return list(dict.fromkeys([*recorded, *running]))

    def _out_of_mind(self, ids: Sequence[str]) -> None:
        for forget in self._forget:
            forget(ids)

    async def _take_out(self, ids: Sequence[str], erased: Erased) -> None:
        """Let the rows go of what has been written down; nothing more of it comes in."""
        for let_go in self._let_go:
            await let_go(ids)
        await asyncio.to_thread(self._keep_needles, ids, erased)
        await self.erasure.erase(ids, erased)

    def _keep_needles(self, ids: Sequence[str], erased: Erased) -> None:
        if needles := self.erasure.needles(ids):
            NeedleFile(self._home, erased.id).add(needles)

    async def _close(self, erased: Erased) -> scrubbing.Scrubbed:
        """Clean what is not a row; the erasure has ended once that has all been done."""
        for bring_up_to_date in self._clean_up:
            await asyncio.to_thread(bring_up_to_date)
        return await self._scrub(erased)

    async def _scrub(self, erased: Erased) -> scrubbing.Scrubbed:
        kept = NeedleFile(self._home, erased.id)
        is_drained = await asyncio.to_thread(self._store.drain_journal)
        files = await asyncio.to_thread(
            scrubbing.scrub,
            self._store.database,
            self._home,
            kept.read(),
            partial(_is_said, self._store),
        )
        if is_drained and files.is_wal_cut:
            await asyncio.to_thread(kept.destroy)
            await self.erasure.end(erased)
        return files


def _is_said(store: Store, text: str) -> bool:
    """Say whether a record holds a text."""
    sql = """SELECT EXISTS (SELECT 1 FROM calls WHERE instr(request, ?1) OR instr(message, ?1))
        OR EXISTS (SELECT 1 FROM episodes WHERE instr(task_text, ?1))
        OR EXISTS (SELECT 1 FROM tasks WHERE instr(messages, ?1) OR instr(reference, ?1)
            OR instr(grader_config, ?1))
        OR EXISTS (SELECT 1 FROM feedback WHERE instr(comment, ?1) OR instr(correction, ?1))
        AS is_said"""
    return bool(store.database.read(sql, (text,))[0]["is_said"])
