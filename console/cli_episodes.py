"""``denizen episodes`` and ``feedback``: what was asked and answered, and how good it was."""

from pathlib import Path
from typing import Annotated, Any

import typer

from console.call_tree import COLUMNS as CALL_COLUMNS
from console.call_tree import learnable, token_counts, tree_rows
from console.commands import DEFAULT_LIMIT, After, JsonFlag, Limit, connect
from console.render import (
    content_text,
    instant,
    on_terminal,
    one_line,
    print_fields,
    print_json,
    print_more,
    print_record,
    print_table,
)

episodes = typer.Typer(help="What was asked and answered.", no_args_is_help=True)

WORDS = {"good": True, "true": True, "bad": False, "false": False}
"""Thumbs, as words."""


@episodes.command("ls")
def list_episodes(
    skill: Annotated[int | None, typer.Option(help="Only this skill's.")] = None,
    source: Annotated[
        str | None, typer.Option(help="Only these: chat, harness, agent or practice.")
    ] = None,
    limit: Limit = DEFAULT_LIMIT,
    after: After = None,
    as_json: JsonFlag = False,
) -> None:
    """List episodes, newest first."""
    with connect() as client:
        page = client.page("episodes", skill=skill, source=source, limit=limit, after=after)
    if as_json:
        print_json(page.json)
        return
    columns = ("ID", "WHEN", "source", "SKILL", "task", "OUTCOME", "by", "ADAPTER", "CALLS")
    print_table(columns, [_episode_row(row) for row in page.rows])
    print_more("denizen episodes ls", page.next)


def _episode_row(row: dict[str, Any]) -> tuple[Any, ...]:
    outcome = row["outcome"] or {}
    return (
        row["id"],
        instant(row["created_at"]),
        row["source"],
        row["skill"],
        one_line(row["task_text"]),
        outcome.get("value"),
        outcome.get("provenance") or outcome.get("unscored_reason"),
        row["adapter"],
        row["num_calls"],
    )


@episodes.command("show")
def show_episode(episode_id: str, as_json: JsonFlag = False) -> None:
    """Show one episode: the tree of its calls, their answers, grades and feedback."""
    with connect() as client:
        episode = client.get("episodes", episode_id)
    if as_json:
        print_json(episode)
        return
    apart = ("calls", "grades", "past_grades", "trained_on", "feedback")
    print_fields({name: value for name, value in episode.items() if name not in apart})
    if on_terminal():
        print()
    print_table(CALL_COLUMNS, tree_rows(episode["calls"]), title="calls")
    for call in episode["calls"]:
        _print_call(call)
    if episode["grades"]:
        print_table(
            ("KIND", "grader", "VALUE", "why"),
            [
                (g["kind"], g["grader"], g["value"], g["explanation"] or g["unscored_reason"])
                for g in episode["grades"]
            ],
            title="grades",
        )
    if episode.get("past_grades"):
        print_table(
            ("UNTIL", "KIND", "grader", "VALUE", "why"),
            [_past_row(past) for past in episode["past_grades"]],
            title="grades before",
        )
    if episode.get("trained_on"):
        print_table(
            ("VERSION", "OUTCOME", "by", "CHANGED SINCE"),
            [
                (t["version"], t["outcome_value"], t["outcome_provenance"], t["outcome_changed"])
                for t in episode["trained_on"]
            ],
            title="taught",
        )
    if episode["feedback"]:
        print_table(
            ("WHEN", "VALUE", "source", "comment", "correction"),
            [
                (instant(f["created_at"]), f["value"], f["source"], f["comment"], f["correction"])
                for f in episode["feedback"]
            ],
            title="feedback",
        )


def _past_row(past: dict[str, Any]) -> tuple[Any, ...]:
    grade = past["grade"]
    why = grade["explanation"] or grade["unscored_reason"]
    return (instant(past["superseded_at"]), grade["kind"], grade["grader"], grade["value"], why)


@episodes.command("export")
def export_episodes(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="Where to; must not exist.")],
    since: Annotated[str | None, typer.Option(help="Only from this ISO 8601 instant on.")] = None,
    session: Annotated[str | None, typer.Option(help="Only this session's.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's; for admins.")] = None,
) -> None:
    """Write the record as JSON lines: an episode a line, with calls, grades and feedback."""
    with connect() as client:
        query = {"since": since, "session": session, "tenant": tenant}
        pieces = client.download("export", "episodes", **query)
        first = next(pieces, b"")  # what is wrong is known before a file is made
        num_lines = first.count(b"\n")
        try:
            with file.open("xb") as out:
                out.write(first)
                for piece in pieces:
                    num_lines += piece.count(b"\n")
                    out.write(piece)
        except OSError as error:
            raise typer.BadParameter(f"cannot write {file}: {error.strerror}") from error
    print(f"{num_lines} episodes in {file}")


def _print_call(call: dict[str, Any]) -> None:
    """Print what was asked last and what was answered, and whether it can be learned from."""
    asked = (call.get("request") or {}).get("messages") or []
    answer = call.get("message") or {}
    print()
    print_fields(
        {
            "call": call["id"],
            "adapter": call["adapter"],
            "status": call["status"],
            "asked": content_text(asked[-1].get("content")) if asked else None,
            "answered": content_text(answer.get("content") or answer.get("tool_calls")),
            "tokens": token_counts(call),
            "learnable": learnable(call),
        }
    )


def parse_value(text: str) -> float | bool:
    """Read a rating: ``good``, ``bad``, ``true``, ``false``, or a number from 0 to 1."""
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0.0 <= value <= 1.0:
        raise typer.BadParameter(f"{text!r} is neither good, bad nor a number from 0 to 1")
    return value


def feedback(
    answer_id: Annotated[
        str, typer.Argument(metavar="ID", help="A completion's id, or an episode's (ep_…).")
    ],
    value: Annotated[
        float, typer.Argument(parser=parse_value, metavar="VALUE", help="good, bad, or 0 to 1.")
    ],
    comment: Annotated[str | None, typer.Option(help="What was right or wrong.")] = None,
    correction: Annotated[
        str | None, typer.Option(help="What the answer should have been.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Say how good an answer was; it may be days old."""
    which = "episode_id" if answer_id.startswith("ep_") else "completion_id"
    body = {which: answer_id, "value": value, "comment": comment, "correction": correction}
    with connect() as client:
        answer = client.post("feedback", body=body)
    print_record(answer, as_json=as_json)
