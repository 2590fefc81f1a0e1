"""Calls in whose prompts something was recalled, once what was recalled has been erased.

Such a call keeps its request and its answer. The recalled block goes, and so do the tokens that
spell it, by which the call could have taught. It does not know how anything is erased.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from memory import rows
from memory.database import Transaction
from memory.types import Call

ERASED = "erased"  # the prompt held what was erased


def without_erased(db: Transaction, call: Call) -> Call:
    """Return a call as it may be stored: what it was told may have been erased while it ran.

    Inside a write.
    """
    if call.recalled is None:
        return call
    quoted = [one["id"] for one in call.recalled["episodes"]]
    erased = _erased_among(db, quoted)
    if not erased:
        return call
    return dataclasses.replace(
        call,
        recalled=_told_without(call.recalled, erased),
        prompt_token_ids=None,
        completion_token_ids=None,
        sampler_logprobs=None,
        withheld=ERASED,
    )


def forget(db: Transaction, erasure_id: str) -> list[str]:
    """Take what an erasure names out of the calls of other episodes; inside a write.

    Returns:
        The episodes that held something of it.
    """
    sql = """SELECT DISTINCT episode_id FROM calls, json_each(recalled, '$.episodes') AS one
        WHERE recalled IS NOT NULL AND json_extract(one.value, '$.id') IN
            (SELECT id FROM erased_ids WHERE erasure_id = ?1)
        AND episode_id NOT IN (SELECT id FROM erased_ids WHERE erasure_id = ?1)"""
    found = [str(row["episode_id"]) for row in db.query(sql, (erasure_id,))]
    for episode_id in found:
        _forget_in(db, episode_id)
    return found


def _forget_in(db: Transaction, episode_id: str) -> None:
    sql = "SELECT id, recalled FROM calls WHERE episode_id = ? AND recalled IS NOT NULL"
    for row in list(db.query(sql, (episode_id,))):
        told = rows.loads(row["recalled"])
        erased = _erased_among(db, [one["id"] for one in told["episodes"]])
        db.execute(
            "UPDATE calls SET recalled = ? WHERE id = ?",
            (rows.encode_value(_told_without(told, erased)), row["id"]),
        )
    db.execute(
        """UPDATE calls SET prompt_token_ids = NULL, completion_token_ids = NULL,
            sampler_logprobs = NULL, shared = json_remove(shared, '$.tokens'), withheld = ?
            WHERE episode_id = ?""",
        (ERASED, episode_id),
    )


def _told_without(told: Mapping[str, Any], erased: set[str]) -> dict[str, Any]:
    left = [one for one in told["episodes"] if one["id"] not in erased]
    return {**told, "episodes": left, "block": None, "erased": True}


def _erased_among(db: Transaction, ids: Sequence[str]) -> set[str]:
    marks = ", ".join("?" * len(ids))
    sql = f"SELECT id FROM erased_ids WHERE id IN ({marks})"
    return {str(row["id"]) for row in db.query(sql, tuple(ids))}
