"""``denizen learn`` and ``cycles``: start a learning cycle, follow it, and read what it did."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from console.commands import DEFAULT_LIMIT, After, ExitCode, JsonFlag, Limit, connect, stop
from console.follow import follow_cycle, progress_line
from console.render import instant, print_fields, print_json, print_more, print_table

cycles = typer.Typer(help="Learning cycles.", no_args_is_help=True)

BROKEN_STATES = ("failed", "interrupted")
"""Ends that are nobody's verdict; every other end is an answer, and answers exit with 0."""

RECEIPT_COLUMNS = {
    "reward": "reward_mean",
    "no contrast": "frac_reward_zero_std",
    "groups": "num_groups",
    "tokens": "trained_tokens",
    "grad norm": "grad_norm",
    "steps old": "staleness_max",
    "seconds": "seconds",
}
"""A step's table: what a column is called, and the receipt's name for it."""


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
        _print_cycle(cycle)
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
    """Show one cycle: its steps, their receipts, and the gate's verdict."""
    with connect() as client:
        cycle = client.get("cycles", cycle_id)
    if as_json:
        print_json(cycle)
    else:
        _print_cycle(cycle)


def _print_cycle(cycle: Mapping[str, Any]) -> None:
    apart = ("steps", "receipt", "gate", "progress")
    print_fields({name: value for name, value in cycle.items() if name not in apart})
    if cycle.get("progress"):
        print_fields({"progress": progress_line(cycle["progress"])})
    if cycle.get("receipt"):
        print_fields(cycle["receipt"])
    if cycle.get("steps"):
        rows = [
            (s["index"], *(s["receipt"].get(name) for name in RECEIPT_COLUMNS.values()))
            for s in cycle["steps"]
        ]
        print_table(("STEP", *RECEIPT_COLUMNS), rows, title="steps")
    if cycle.get("gate"):
        _print_gate(cycle["gate"])


def _print_gate(gate: Mapping[str, Any]) -> None:
    """Print held-out scores before and after, a row a skill, and the verdict with its reasons."""
    scores = [("all", gate["overall"]), *((s["skill_id"], s) for s in gate["skills"])]
    columns = ("num_tasks", "mean_before", "mean_after", "mean_gain", "gain_low", "gain_high")
    rows = [(skill, *(score[name] for name in columns)) for skill, score in scores]
    title = f"held-out score; {gate['confidence']:.0%} interval of the gain"
    headings = ("SKILL", "TASKS", "BEFORE", "AFTER", "GAIN", "LOW", "HIGH")
    print_table(headings, rows, title=title)
    if gate.get("live"):
        print_fields({f"recorded answers: {name}": value for name, value in gate["live"].items()})
    print_fields({"verdict": gate["verdict"], "reasons": "; ".join(gate["reasons"])})
