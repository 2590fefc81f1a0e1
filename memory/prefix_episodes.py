"""Live episodes at whose recorded prefixes a turn may be taken again, whether graded or not.

Never practice, never what is kept from learning, never a tenant's that may not teach, never one of
which a task was made, which is practised whole. It does not know which of its calls a turn is.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from memory import rows
from memory.database import Database
from memory.graded_episodes import REPLAYABLE, of_skills


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixEpisode:
    """A recorded episode of work that cannot be replayed.

    Example:
        ``PrefixEpisode(id="ep_0193-5c", skill_id=2, session="agent-7", tenant=None,
        text="Mend the build.")``
    """

    id: str
    skill_id: int
    session: str | None
    tenant: str | None
    text: str  # what was asked first


class PrefixEpisodes:
    """Reads such episodes.

    Args:
        database: where they are.
        learn_from: the tenants that may teach, besides the default one.
    """

    def __init__(self, database: Database, learn_from: Collection[str] = ()) -> None:
        self._db = database
        self._learn_from = tuple(learn_from)

    def newest(
        self, skill_ids: Sequence[int], *, until: datetime, limit: int
    ) -> list[PrefixEpisode]:
        """Return the skills' newest, in the order of their ids.

        Args:
            skill_ids: one that became part of another stands for the other.
            until: those that began later are left out.
            limit: how many at most.
        """
        where, values = of_skills(skill_ids, self._learn_from)
        sql = f"""SELECT e.id, e.skill_id, e.session, e.tenant, e.task_text AS text
            FROM episodes e WHERE e.source != 'practice' AND e.learn AND e.withheld IS NULL
            AND NOT {REPLAYABLE} AND {where} AND e.created_at <= ?
            ORDER BY e.id DESC LIMIT ?"""
        values = (*values, rows.encode_value(until), limit)
        return [rows.decode(PrefixEpisode, row) for row in self._db.read(sql, values)][::-1]
