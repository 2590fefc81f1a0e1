"""``denizen episodes review``: where a person's word would tell most, and a way to say it."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from console.cli_episodes import parse_value
from console.commands import JsonFlag, connect
from console.render import (
    content_text,
    harmless,
    instant,
    on_terminal,
    one_line,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from console.client import ServiceClient

ANSWERS = "good, bad, or 0 to 1; words after it are your comment · Enter: skip · q: stop"
LONGEST_SHOWN = 4_000  # characters of a question or an answer


def review(
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many.")] = 20,
    ask: Annotated[
        bool | None,
        typer.Option("--ask/--list", help="Ask for a value of each; the default on a terminal."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the answers on which your word would tell most, and take it."""
    with connect() as client:
        page = client.page("episodes", "review", limit=limit)
        if as_json:
            print_json(page.json)
        elif not page.rows:
            typer.echo("No answer waits for a person's word.")
        elif ask if ask is not None else on_terminal():
            _ask(client, page.rows)
        else:
            rows = [
                (
                    row["id"],
                    instant(row["created_at"]),
                    row["skill"],
                    row["priority"],
                    "; ".join(row["reasons"]),
                    one_line(row["task_text"]),
                )
                for row in page.rows
            ]
            print_table(("ID", "WHEN", "SKILL", "PRIORITY", "why", "task"), rows)


def _ask(client: "ServiceClient", rows: list[dict[str, Any]]) -> None:
    typer.secho(ANSWERS, dim=True)
    num_said = 0
    for number, row in enumerate(rows, start=1):
        episode = client.get("episodes", row["id"])
        typer.secho(f"\n{number} of {len(rows)} · {row['id']} · {'; '.join(row['reasons'])}")
        _show(episode)
        said = _read()
        if said is None:
            break
        if said:
            value, comment = said
            body = {"episode_id": row["id"], "value": value, "comment": comment or None}
            client.post("feedback", body=body)
            num_said += 1
    typer.echo(f"{num_said} of {len(rows)} answered.")


def _show(episode: dict[str, Any]) -> None:
    """Print the last question and the answer that people are asked about."""
    answered = [call for call in episode["calls"] if call.get("message")]
    if not answered:
        typer.echo("(nothing was answered)")
        return
    call = answered[-1]
    asked = (call.get("request") or {}).get("messages") or [{}]
    message = call["message"]
    for who, content in (
        ("asked", asked[-1].get("content")),
        ("answered", message.get("content") or message.get("tool_calls")),
    ):
        typer.echo(f"{who}: {harmless(content_text(content) or '')[:LONGEST_SHOWN]}")


def _read() -> tuple[float | bool, str] | tuple[()] | None:
    """Read one value; ``()`` when it is skipped, None when the person stops."""
    while True:
        try:
            line = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            typer.echo()
            return None
        if line in {"q", "quit", "/quit"}:
            return None
        if not line:
            return ()
        word, _, comment = line.partition(" ")
        try:
            return parse_value(word), comment.strip()
        except typer.BadParameter as error:
            typer.echo(error.message)
