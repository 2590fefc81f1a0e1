"""``denizen learn`` and ``cycles``: start a learning cycle, follow it, and read what it did."""

from typing import Annotated

import typer

from console.commands import DEFAULT_LIMIT, After, ExitCode, JsonFlag, Limit, connect, stop
from console.cycle_report import print_cycle
from console.follow import follow_cycle
from console.render import instant, print_json, print_more, print_table

cycles = typer.Typer(help="Learning cycles.", no_args_is_help=True)

BROKEN_STATES = ("failed", "interrupted")
"""Ends that are nobody's verdict; every other end is an answer, and answers exit with 0."""


def learn(
    skill: Annotated[
        int | None, typer.Option(help="Learn this skill [default: every skill that has tasks].")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow it to its end.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Start a learning cycle now and follow it; 1 when it failed or was interrupted."""
    with connect() as client:
        cycle = client.post("cycles", body={"skill": skill})
        if wait:
            try:
                cycle = follow_cycle(client, cycle["id"], quiet=as_json)
            except KeyboardInterrupt:
                message = f"{cycle['id']} goes on; see: denizen cycles show {cycle['id']}"
                raise stop(message, ExitCode.FAILED) from None
    if as_json:
        print_json(cycle)
    else:
        print_cycle(cycle)
    if cycle["state"] in BROKEN_STATES:
        raise typer.Exit(ExitCode.FAILED)


@cycles.command("ls")
def list_cycles(
    limit: Limit = DEFAULT_LIMIT, after: After = None, as_json: JsonFlag = False
) -> None:
    """List learning cycles, newest first."""
    with connect() as client:
        page = client.page("cycles", limit=limit, after=after)
    if as_json:
        print_json(page.json)
        return
    columns = ("ID", "WHEN", "STATE", "FROM", "CANDIDATE", "skills", "GAIN", "why")
    rows = [
        (
            c["id"],
            instant(c["created_at"]),
            c["state"],
            c["start_version"],
            c["candidate"],
            c["skill_ids"],
            ((c["gate"] or {}).get("overall") or {}).get("mean_gain"),
            c["end_reason"] or c["reason"],
        )
        for c in page.rows
    ]
    print_table(columns, rows)
    print_more("denizen cycles ls", page.next)


@cycles.command("show")
def show_cycle(cycle_id: str, as_json: JsonFlag = False) -> None:
    """Show one cycle: a plot of reward, its steps' receipts, and the gate's verdict."""
    with connect() as client:
        cycle = client.get("cycles", cycle_id)
    if as_json:
        print_json(cycle)
    else:
        print_cycle(cycle)
