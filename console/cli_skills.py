"""``denizen skills``: the task types that were found, and whether each may be learned."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from console.commands import ExitCode, JsonFlag, connect, stop
from console.render import harmless, on_terminal, print_json, print_record, print_table

skills = typer.Typer(help="Task types that were found.", no_args_is_help=True)

SHOWN = 40
"""Skills on a terminal, the largest: real traffic has hundreds of small ones."""

SkillId = Annotated[int, typer.Argument(metavar="SKILL", help="A skill's number.")]


@skills.command("ls")
def list_skills(
    as_json: JsonFlag = False,
    show_all: Annotated[bool, typer.Option("--all", help="On a terminal, small ones too.")] = False,
) -> None:
    """List skills, the largest first, with what each still misses before it learns."""
    with connect() as client:
        page = client.page("skills")
    if as_json:
        print_json(page.json)
        return
    columns = ("ID", "title", "POLICY", "EPISODES", "GRADED", "OUTCOME", "TASKS", "missing")
    rows = sorted(page.rows, key=lambda row: row["num_episodes"], reverse=True)
    shown = rows[:SHOWN] if on_terminal() and not show_all else rows
    print_table(columns, [_skill_row(row) for row in shown])
    if len(shown) < len(rows):
        left = len(rows) - len(shown)
        typer.echo(f"{left} skills, none of them larger, are left out; --all shows them.", err=True)


def _skill_row(row: dict[str, Any]) -> tuple[Any, ...]:
    return (
        row["id"],
        row["title"],
        row["policy"],
        row["num_episodes"],
        row["num_graded"],
        row["mean_outcome"],
        f"{row['num_train_tasks']}+{row['num_heldout_tasks']}",
        "; ".join(row["missing"]),
    )


@skills.command("show")
def show_skill(skill: SkillId, as_json: JsonFlag = False) -> None:
    """Show one skill: its counts, its key terms, and what happened to it."""
    with connect() as client:
        answer = client.get("skills", str(skill))
    if as_json:
        print_json(answer)
        return
    history = answer.pop("history", [])
    print_record(answer, as_json=False)
    if history:
        columns = ("WHEN", "who", "what", "OTHER", "details")
        print_table(columns, [_event_row(event) for event in history])


def _event_row(event: dict[str, Any]) -> tuple[Any, ...]:
    what = event["event"].replace("_", " ")
    return event["created_at"], event["actor"], what, event["other_id"], event["detail"]


@skills.command("rename")
def rename_skill(skill: SkillId, title: str, as_json: JsonFlag = False) -> None:
    """Give a skill a title of your own."""
    _change(skill, {"title": title}, as_json=as_json)


@skills.command("pause")
def pause_skill(skill: SkillId, as_json: JsonFlag = False) -> None:
    """Stop learning a skill for now; it is still recorded and graded."""
    _change(skill, {"policy": "paused"}, as_json=as_json)


@skills.command("resume")
def resume_skill(skill: SkillId, as_json: JsonFlag = False) -> None:
    """Learn a paused or locked skill again."""
    _change(skill, {"policy": "learn"}, as_json=as_json)


@skills.command("lock")
def lock_skill(skill: SkillId, as_json: JsonFlag = False) -> None:
    """Keep a skill as it is: never learned from, though still guarded by the gate."""
    _change(skill, {"policy": "locked"}, as_json=as_json)


@skills.command("merge")
def merge_skills(
    skill: SkillId,
    into: Annotated[int, typer.Argument(metavar="INTO", help="The skill that it becomes part of.")],
    as_json: JsonFlag = False,
) -> None:
    """Make a skill a part of another; its number goes on meaning the other."""
    with connect() as client:
        answer = client.post("skills", str(skill), "merge", body={"into": into})
    print_record(answer, as_json=as_json)


@skills.command("split")
def split_skill(
    skill: SkillId,
    episodes: Annotated[list[str], typer.Argument(metavar="EPISODE...", help="What moves out.")],
    title: Annotated[str | None, typer.Option(help="What the new skill is called.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Make some of a skill's episodes a skill of their own."""
    body = {"episode_ids": episodes, "title": title}
    with connect() as client:
        answer = client.post("skills", str(skill), "split", body=body)
    print_record(answer, as_json=as_json)


@skills.command("rubric")
def rubric(
    skill: SkillId,
    file: Annotated[
        Path | None, typer.Option("--set", help="A file whose text is the new version.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show by what judges score a skill's answers, or set it; an empty file: the default again."""
    body = None if file is None else {"text": _text_of(file)}
    with connect() as client:
        path = ("skills", str(skill), "rubric")
        answer = client.get(*path) if body is None else client.put(*path, body=body)
    if as_json:
        print_json(answer)
        return
    by = "the default" if answer["is_default"] else answer["history"][-1]["author"]
    typer.echo(f"version {answer['version']} ({harmless(by)})\n\n{harmless(answer['text'])}")


@skills.command("guideline")
def guideline(
    skill: SkillId,
    file: Annotated[
        Path | None,
        typer.Option("--set", help="A file (-: standard input) whose text is approved."),
    ] = None,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Let none be in force.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show how a skill's tasks are to be done, as recall tells the model; approve or withdraw it.

    Earlier versions are kept, with when and by whom: --json shows them.
    """
    text = _approved(file, withdraw=withdraw)
    path = ("skills", str(skill), "guideline")
    with connect() as client:
        answer = client.get(*path) if text is None else client.put(*path, body={"text": text})
    if as_json:
        print_json(answer)
    elif answer["version"] is None:
        typer.echo("none is in force")
    else:
        by = answer["history"][-1]["author"]
        typer.echo(f"version {answer['version']} ({harmless(by)})\n\n{harmless(answer['text'])}")


def _approved(file: Path | None, *, withdraw: bool) -> str | None:
    """Return the text that is to be in force, empty for none; None: what is stays."""
    if file is None:
        return "" if withdraw else None
    if withdraw:
        raise stop("--set and --withdraw exclude each other", ExitCode.USAGE)
    text = _text_of(file)
    if not text.strip():
        raise stop("the text is empty: --withdraw takes a guideline back", ExitCode.USAGE)
    return text


def _text_of(file: Path) -> str:
    try:
        if str(file) == "-":
            return sys.stdin.read()
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise stop(f"cannot read {file}: {error}", ExitCode.USAGE) from error


def _change(skill: int, change: dict[str, str], *, as_json: bool) -> None:
    with connect() as client:
        answer = client.patch("skills", str(skill), body=change)
    print_record(answer, as_json=as_json)
