"""``denizen erase`` and ``tasks rm``: take episodes of a person, or a task, out for good."""

from typing import Annotated, Any

import typer

from console.commands import ExitCode, JsonFlag, connect, stop
from console.render import print_fields, print_json, print_table


def erase(
    episode: Annotated[str | None, typer.Option(help="One episode (ep_…).")] = None,
    session: Annotated[str | None, typer.Option(help="All of a session.")] = None,
    user: Annotated[str | None, typer.Option(help="All of a user.")] = None,
    tenant: Annotated[
        str | None, typer.Option(help="All of a tenant; or only its session or user.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Erase episodes for good: rows, vectors, tasks made of them, traces in logs.

    Versions that learned from them become tainted, and are listed.
    """
    scope = {"episode": episode, "session": session, "user": user, "tenant": tenant}
    if not any(scope.values()):
        raise typer.BadParameter("name --episode, --session, --user or --tenant")
    erase_scope(scope, yes=yes, as_json=as_json)


def erase_task(
    id: Annotated[str, typer.Argument(help="The task (task_…).")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Erase a task for good, with all practice on it and its traces in logs.

    Versions that learned from it become tainted, and are listed. The episode that it was made of
    stays, if it was made of one.
    """
    erase_scope({"task": id}, yes=yes, as_json=as_json)


def erase_scope(scope: dict[str, str | None], *, yes: bool, as_json: bool) -> None:
    """Erase what is named, after asking, and print what was done."""
    with connect() as client:
        if not yes:
            plan = client.post("erase", body=scope | {"dry_run": True})
            print_fields(
                _counts(plan),
            )
            if not typer.confirm("Erase this for good?", err=True):
                raise stop("nothing was erased", ExitCode.FAILED)
        answer = client.post("erase", body=scope)
    if as_json:
        print_json(answer)
        return
    print_fields(_counts(answer) | {"files": _files_line(answer["files"])})
    if answer["tainted"]:
        columns = ("TAINTED", "LIVE", "STATUS", "EPISODES", "what to do")
        print_table(columns, [_tainted_row(one) for one in answer["tainted"]])


def _counts(answer: dict[str, Any]) -> dict[str, Any]:
    counts = ", ".join(f"{num} {name}" for name, num in answer["counts"].items() if num)
    names = ", ".join(one["version"] for one in answer["tainted"])
    return {"rows": counts or "none", "tainted": names or "no version learned from them"}


def _files_line(files: dict[str, Any]) -> str:
    masked = ", ".join(f"{name} ({num} places)" for name, num in files["masked"].items())
    found = ", ".join(files["found"])
    parts = [
        "write-ahead log cut" if files["is_wal_cut"] else "write-ahead log held open by a reader",
        "database rewritten" if files["is_vacuumed"] else "",
        f"overwritten in {masked}" if masked else "",
        f"still in {found}, where other records or your own files say the same" if found else "",
    ]
    return "; ".join(part for part in parts if part)


def _tainted_row(one: dict[str, Any]) -> tuple[Any, ...]:
    commands = [f"`denizen learn --skill {skill}`" for skill in one["skills"]]
    again = ", ".join(commands) or "learn again"
    leave = (
        f"`denizen adapters rollback --to {one['clean_ancestor']}`, then " if one["is_live"] else ""
    )
    return (
        one["version"],
        "live" if one["is_live"] else "",
        one["status"],
        one["num_episodes"] or f"by {one['inherited_from']}",
        leave + again,
    )
