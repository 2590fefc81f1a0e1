"""``denizen tasks``: what can be practised, and where it comes from."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from console.commands import DEFAULT_LIMIT, After, JsonFlag, Limit, connect
from console.render import (
    content_text,
    on_terminal,
    one_line,
    print_json,
    print_more,
    print_record,
    print_table,
)
from console.task_files import TaskFileError, import_batches, read_tasks

tasks = typer.Typer(help="Tasks that can be practised.", no_args_is_help=True)


@tasks.command("import")
def import_tasks(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE.jsonl",
            exists=True,
            dir_okay=False,
            readable=True,
            help='A task a line: {"prompt" or "messages", "reference", "grader", …}.',
        ),
    ] = None,
    generator: Annotated[
        str | None, typer.Option("--from", help="Generate them instead: reasoning-gym:NAME.")
    ] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="How many to generate.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the generator.")] = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of it; may be repeated."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Import tasks from a file or from reasoning-gym; a known one is not imported twice."""
    if (file is None) == (generator is None):
        raise typer.BadParameter("give either a FILE.jsonl or --from reasoning-gym:NAME")
    if file is not None:
        try:
            batches = read_tasks(file)
        except TaskFileError as error:
            raise typer.BadParameter(str(error)) from error
        with connect() as client:
            answer = import_batches(client, batches, show_progress=on_terminal() and not as_json)
    else:
        options = dict(parse_setting(entry) for entry in settings or [])
        body = {"from": generator, "n": n, "seed": seed, "set": options}
        with connect() as client:
            answer = client.post("tasks", body=body)
    print_record(answer, as_json=as_json)


def parse_setting(entry: str) -> tuple[str, Any]:
    """Split ``KEY=VALUE``; a value that is JSON (a number, true, a list) is taken as such."""
    key, equals, text = entry.partition("=")
    if not (key and equals):
        raise typer.BadParameter(f"--set {entry!r} is not KEY=VALUE")
    try:
        return key, json.loads(text)
    except ValueError:
        return key, text


@tasks.command("ls")
def list_tasks(
    skill: Annotated[int | None, typer.Option(help="Only this skill's.")] = None,
    limit: Limit = DEFAULT_LIMIT,
    after: After = None,
    as_json: JsonFlag = False,
) -> None:
    """List tasks."""
    with connect() as client:
        page = client.page("tasks", skill=skill, limit=limit, after=after)
    if as_json:
        print_json(page.json)
        return
    columns = ("ID", "SPLIT", "SKILL", "task", "reference", "grader", "origin")
    rows = [
        (
            t["id"],
            t["split"],
            t["skill_id"],
            one_line(content_text(t["messages"][-1]["content"])),
            one_line(t["reference"], 24),
            t["grader"],
            t["origin"],
        )
        for t in page.rows
    ]
    print_table(columns, rows)
    print_more("denizen tasks ls", page.next)
