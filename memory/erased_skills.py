"""Skills after an erasure: where they lie, and what they are called, without what was erased.

A word goes that an erased text said and no remaining text of the same tenant says, whoever put it
into a title: a title that a person gave may be the last place that names somebody. It does not know
what else is erased.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from memory import rows
from memory.database import Transaction
from memory.skill_writes import NEWEST_VECTORS, measure
from memory.titles import title_of

SAMPLED_TEXTS = 200  # of a skill, to find it a title that others' texts give it too
_WORD = re.compile(r"\w{2,}")
_IS_SAID = """SELECT EXISTS (SELECT 1 FROM episodes WHERE tenant IS ?1 AND source != 'practice'
        AND (instr(lower(task_text), ?2) OR instr(lower(task_key), ?2))
        AND NOT EXISTS (SELECT 1 FROM erased_ids WHERE erased_ids.id = episodes.id))
    OR EXISTS (SELECT 1 FROM tasks WHERE tenant IS ?1
        AND (instr(lower(messages), ?2) OR instr(lower(task_key), ?2))) AS is_said"""


def settle(
    db: Transaction, episodes: Sequence[Mapping[str, Any]], tasks: Sequence[Mapping[str, Any]] = ()
) -> set[int]:
    """Let skills be what remaining texts make of them; inside the write that deleted others.

    Args:
        db: the connection inside the write.
        episodes: the rows of the episodes that were deleted.
        tasks: those of the tasks.

    Returns:
        The skills that changed.
    """
    erased = [*episodes, *({**task, "task_text": task["messages"]} for task in tasks)]
    changed = {row["skill_id"] for row in erased if row["skill_id"] is not None}
    for skill_id in changed:
        _measure(db, skill_id)
    for tenant in {row["tenant"] for row in erased}:
        texts = [
            row[name] or ""
            for row in erased
            if row["tenant"] == tenant
            for name in ("task_text", "task_key", "reference")
        ]
        changed |= _without_words(db, tenant, _words(*texts))
    return changed


def _measure(db: Transaction, skill_id: int) -> None:
    """Set where a skill lies by what is left of it: nowhere, where nothing is."""
    [row] = db.query(
        """SELECT embedder, NOT EXISTS (SELECT 1 FROM tasks WHERE skill_id = skills.id)
            AND NOT EXISTS (SELECT 1 FROM episodes WHERE skill_id = skills.id
                AND source != 'practice') AS is_empty FROM skills WHERE id = ?""",
        (skill_id,),
    )
    if row["is_empty"]:
        db.execute(
            """UPDATE skills SET task_key = NULL, centroid = NULL, centroid_count = 0
                WHERE id = ? OR merged_into = ?""",
            (skill_id, skill_id),
        )
    elif any(db.query(NEWEST_VECTORS, (skill_id, row["embedder"], skill_id, row["embedder"], 1))):
        measure(db, skill_id)
    else:  # what it was measured on is gone
        db.execute(
            "UPDATE skills SET centroid = NULL, centroid_count = 0 WHERE id = ?", (skill_id,)
        )


def _without_words(db: Transaction, tenant: str | None, erased: Collection[str]) -> set[int]:
    """Take words that nothing says any more out of a tenant's skills; return which changed."""
    skills = list(db.query("SELECT * FROM skills WHERE tenant IS ?", (tenant,)))
    history = list(
        db.query(
            """SELECT id, skill_id, detail FROM skill_history WHERE detail IS NOT NULL
                AND skill_id IN (SELECT id FROM skills WHERE tenant IS ?)""",
            (tenant,),
        )
    )
    named = [text or "" for one in skills for text in (one["title"], one["task_key"])]
    named += [one["key_terms"] for one in skills] + [one["detail"] for one in history]
    gone = {
        word
        for word in _words(*named) & set(erased)
        if not next(db.query(_IS_SAID, (tenant, word)))["is_said"]
    }
    if not gone:
        return set()
    changed = {row["id"] for row in skills if _rename(db, row, gone)}
    for row in history:
        if _words(row["detail"]) & gone:
            db.execute("UPDATE skill_history SET detail = NULL WHERE id = ?", (row["id"],))
            changed.add(row["skill_id"])
    return changed


def _rename(db: Transaction, row: Mapping[str, Any], gone: Collection[str]) -> bool:
    """Give a skill a title of its remaining texts where its own holds a word that is gone."""
    told = {"title": row["title"], "key_terms": row["key_terms"], "task_key": row["task_key"]}
    new = dict(told)
    if _words(row["title"]) & set(gone):
        new["title"] = _title(db, row)
    if _words(row["key_terms"]) & set(gone):
        terms = rows.loads(row["key_terms"])
        new["key_terms"] = rows.encode_value([one for one in terms if not _words(one) & set(gone)])
    if _words(row["task_key"] or "") & set(gone):
        new["task_key"] = None
    if new == told:
        return False
    db.execute(
        "UPDATE skills SET title = ?, key_terms = ?, task_key = ? WHERE id = ?",
        (*new.values(), row["id"]),
    )
    return True


def _title(db: Transaction, row: Mapping[str, Any]) -> str:
    sql = """SELECT task_text FROM episodes WHERE skill_id = ? AND source != 'practice'
        AND NOT EXISTS (SELECT 1 FROM erased_ids WHERE erased_ids.id = episodes.id)
        ORDER BY id DESC LIMIT ?"""
    values = (row["merged_into"] or row["id"], SAMPLED_TEXTS)
    left = [found["task_text"] for found in db.query(sql, values)]
    return title_of(left) if left else f"skill {row['id']}"


def _words(*texts: str) -> set[str]:
    return {word for text in texts for word in _WORD.findall(text.lower())}
