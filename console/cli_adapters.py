"""``denizen adapters``: versions of the weights, which one is live, and decisions about them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from console.adapter_folder import AdapterFolderError, open_adapter
from console.commands import ExitCode, JsonFlag, Reason, connect
from console.render import instant, print_json, print_record, print_table

adapters = typer.Typer(help="Adapter versions and which one is live.", no_args_is_help=True)

AdapterId = Annotated[str, typer.Argument(metavar="ID", help="A version, such as denizen-000007.")]
Sha256 = Annotated[
    str | None, typer.Option(help="Decide only if the weights still have this digest.")
]


@adapters.command("ls")
def list_adapters(as_json: JsonFlag = False) -> None:
    """List versions, newest first."""
    with connect() as client:
        page = client.page("adapters")
    if as_json:
        print_json(page.json)
        return
    columns = ("ID", "LIVE", "STATUS", "PARENT", "WHEN", "origin", "CYCLE", "RANK", "MB")
    rows = [
        (
            a["id"],
            "live" if a["live"] else "",
            _status(a),
            a["parent"],
            instant(a["created_at"]),
            a["origin"],
            a["cycle_id"],
            a["rank"],
            f"{a['size_bytes'] / 1e6:.1f}",
        )
        for a in page.rows
    ]
    print_table(columns, rows)


def _status(version: dict[str, Any]) -> str:
    is_left = version["status"] == "tainted" or not version.get("tainted")
    return str(version["status"]) if is_left else f"{version['status']}, tainted"


@adapters.command("show")
def show_adapter(adapter_id: AdapterId, as_json: JsonFlag = False) -> None:
    """Show one version."""
    with connect() as client:
        answer = client.get("adapters", adapter_id)
    print_record(answer, as_json=as_json)


@adapters.command("import")
def import_adapter(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="adapter_model.safetensors and adapter_config.json, as peft saves."
        ),
    ],
    reason: Reason = None,
    as_json: JsonFlag = False,
) -> None:
    """Bring in a version from outside, as a candidate; promoting it needs --force."""
    try:
        with open_adapter(folder) as files, connect() as client:
            answer = client.upload("adapters", files=files, fields={"reason": reason})
    except AdapterFolderError as error:
        raise typer.BadParameter(str(error)) from error
    if as_json:
        print_json(answer)
    else:
        print(answer["id"])


@adapters.command("promote")
def promote_adapter(
    adapter_id: AdapterId,
    force: Annotated[
        bool, typer.Option("--force", help="Even without a passing gate; needs --reason.")
    ] = False,
    reason: Reason = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a version live; requests in flight finish on the one they started with."""
    if force and not reason:
        raise typer.BadParameter("--force needs --reason: it is logged with the move")
    body = {"force": force or None, "reason": reason}
    with connect() as client:
        answer = client.post("adapters", adapter_id, "promote", body=body)
    _print_move(answer, as_json=as_json)


@adapters.command("rollback")
def roll_back(
    to: Annotated[
        str | None, typer.Option(help="A version or base [default: the one live before].")
    ] = None,
    reason: Reason = None,
    as_json: JsonFlag = False,
) -> None:
    """Go back to the version that was live before; again, to the one before that."""
    with connect() as client:
        answer = client.post("adapters", "rollback", body={"to": to, "reason": reason})
    _print_move(answer, as_json=as_json)


def _print_move(answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    elif answer["moved"]:
        print(f"{answer['to']} is live (before: {answer['from']})")
    else:
        print(f"{answer['to']} is live already; nothing moved")


@adapters.command("approve")
def approve_adapter(
    adapter_id: AdapterId, sha256: Sha256 = None, reason: Reason = None, as_json: JsonFlag = False
) -> None:
    """Say yes to a proposed version: it becomes live."""
    answer = _decide(adapter_id, "approve", sha256=sha256, reason=reason)
    _print_move(answer, as_json=as_json)


@adapters.command("reject")
def reject_adapter(
    adapter_id: AdapterId, sha256: Sha256 = None, reason: Reason = None, as_json: JsonFlag = False
) -> None:
    """Say no to a proposed version."""
    answer = _decide(adapter_id, "reject", sha256=sha256, reason=reason)
    print_record(answer, as_json=as_json)


def _decide(
    adapter_id: str, verb: str, *, sha256: str | None, reason: str | None
) -> dict[str, Any]:
    body = {"sha256": sha256, "reason": reason}
    with connect() as client:
        answer: dict[str, Any] = client.post("adapters", adapter_id, verb, body=body)
    return answer


@adapters.command("verify")
def verify_adapter(
    adapter_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="A version [default: all of them].")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare files with what was recorded of them; 1 when they differ.

    Without ID every version, and whatever else lies among them.
    """
    path = ("adapters", adapter_id, "verify") if adapter_id is not None else ("adapters", "verify")
    with connect() as client:
        answer = client.get(*path)
    if as_json:
        print_json(answer)
    elif answer["ok"]:
        print(f"{adapter_id or 'every version'} is as recorded")
    else:
        print("\n".join(answer["problems"]))
    if not answer["ok"]:
        raise typer.Exit(ExitCode.FAILED)
