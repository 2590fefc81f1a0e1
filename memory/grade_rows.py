"""Rows of grades and outcomes: what is in force, and what others took the place of.

All that writes here runs inside a write, so that grades and outcome change together.
"""

from collections.abc import Sequence
from typing import Any

from memory import rows
from memory.database import Transaction
from memory.types import Episode, Grade, GradeKind, Outcome, utc_now


def set_grades(
    db: Transaction, episode: Episode, grades: Sequence[Grade], outcome: Outcome
) -> None:
    """Put grades and the outcome in force; runs inside a write. Old grades stay as history.

    A grade that says what one in force says is left as it stands, so that the history holds changes
    only. A judge's grade stays in force, whether it is among these or not, until the judge has
    another. The episode counts as digested up to the revision that was read; what came since keeps
    it open.
    """
    now = rows.encode_value(utc_now())
    new = [rows.encode(grade) for grade in grades]
    sql = "SELECT * FROM grades WHERE episode_id = ? AND superseded_at IS NULL"
    for row in list(db.query(sql, (episode.id,))):
        same = next((one for one in new if one.items() <= row.items()), None)
        if same is not None:
            new.remove(same)
        elif row["kind"] != GradeKind.JUDGE:
            db.execute("UPDATE grades SET superseded_at = ? WHERE id = ?", (now, row["id"]))
    for one in new:
        rows.insert(db, "grades", one | {"episode_id": episode.id, "created_at": now})
    values = (outcome.value, outcome.provenance, outcome.num_grades, outcome.unscored_reason)
    db.execute(
        """UPDATE episodes SET outcome_value = ?, outcome_provenance = ?, outcome_num_grades = ?,
            outcome_unscored_reason = ?, digested_revision = ? WHERE id = ?""",
        (*values, episode.revision, episode.id),
    )


def set_judged(db: Transaction, episode_id: str, grade: Grade) -> None:
    """Put a judge's grade in the place of its earlier one, and open the episode for merging again.

    Runs inside a write. An episode that went meanwhile is left alone.
    """
    if not list(db.query("SELECT 1 FROM episodes WHERE id = ?", (episode_id,))):
        return
    now = rows.encode_value(utc_now())
    db.execute(
        """UPDATE grades SET superseded_at = ? WHERE episode_id = ? AND superseded_at IS NULL
            AND kind = ? AND grader = ?""",
        (now, episode_id, grade.kind, grade.grader),
    )
    row = rows.encode(grade) | {"episode_id": episode_id, "created_at": now}
    rows.insert(db, "grades", row)
    reopen(db, episode_id)


def retire_judged(db: Transaction, episode_id: str, call_id: str) -> None:
    """Supersede what judges said of other answers than the last one; inside a write."""
    db.execute(
        """UPDATE grades SET superseded_at = ? WHERE episode_id = ? AND superseded_at IS NULL
            AND kind = 'judge' AND json_extract(evidence, '$.call_id') != ?""",
        (rows.encode_value(utc_now()), episode_id, call_id),
    )


def reopen(db: Transaction, episode_id: str) -> None:
    """Have an episode graded again."""
    db.execute("UPDATE episodes SET revision = revision + 1 WHERE id = ?", (episode_id,))


def outcome_of(row: dict[str, Any]) -> Outcome | None:
    """Read the outcome columns of an episode's row; None while nothing has been graded."""
    if row["outcome_num_grades"] is None:
        return None
    provenance = row["outcome_provenance"]
    return Outcome(
        value=row["outcome_value"],
        provenance=None if provenance is None else GradeKind(provenance),
        num_grades=row["outcome_num_grades"],
        unscored_reason=row["outcome_unscored_reason"],
    )
