"""The ``denizen`` command: starts the service, and talks to a running one.

Each group of commands lives in its own ``cli_*`` module; here they are put together, beside the
ones that stand alone. Knows no HTTP and no learning.
"""

from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from console import (
    cli_adapters,
    cli_chat,
    cli_episodes,
    cli_erase,
    cli_key,
    cli_learning,
    cli_review,
    cli_skills,
    cli_tasks,
)
from console.commands import EXIT_CODES, ExitCode, JsonFlag, ServiceGroup, connect, stop
from console.follow import progress_line
from console.render import instant, on_terminal, print_fields, print_json, print_table

app = typer.Typer(
    cls=ServiceGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks print local variables, keys among them
)
app.command("chat")(cli_chat.chat)
app.command("feedback")(cli_episodes.feedback)
app.command("learn")(cli_learning.learn)
app.command("erase")(cli_erase.erase)
app.command("key")(cli_key.key)
app.add_typer(cli_episodes.episodes, name="episodes")
cli_episodes.episodes.command("review")(cli_review.review)
app.add_typer(cli_tasks.tasks, name="tasks")
cli_tasks.tasks.command("rm")(cli_erase.erase_task)
app.add_typer(cli_skills.skills, name="skills")
app.add_typer(cli_learning.cycles, name="cycles")
app.add_typer(cli_adapters.adapters, name="adapters")


def print_version(wanted: bool) -> None:
    """Print the version and end, when asked to."""
    if wanted:
        typer.echo(f"denizen {version('denizen')}")
        raise typer.Exit


@app.callback(epilog=EXIT_CODES)
def denizen(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Say which version."),
    ] = False,
) -> None:
    """An agent that is deployed once and learns on the job.

    Most commands talk to a running service: the one at DENIZEN_URL, else the one that wrote its
    address into DENIZEN_HOME (~/.denizen). DENIZEN_API_KEY is sent when set.
    """


@app.command()
def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on [default: 127.0.0.1].")
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="[default: 8000]")] = None,
    engine_url: Annotated[
        list[str] | None,
        typer.Option(help="A running vLLM server; may be repeated. None: start one."),
    ] = None,
    home: Annotated[
        Path | None, typer.Option(help="Where everything is kept [default: ~/.denizen].")
    ] = None,
) -> None:
    """Start the service: the gateway, the learner and, without --engine-url, vLLM."""
    import service

    try:
        service.serve(home=home, host=host, port=port, engine_urls=engine_url)
    except service.ConfigError as error:
        raise stop(str(error), ExitCode.USAGE) from error
    except service.DenizenError as error:
        raise stop(str(error), ExitCode.FAILED) from error


@app.command()
def demo(as_json: JsonFlag = False) -> None:
    """Send real tasks as a user would, let it learn, show the gain, and roll back."""
    from console.demo import run_demo

    raise typer.Exit(run_demo(as_json=as_json))


@app.command()
def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="Mend what is safe first.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Check this installation and say how to mend what is wrong; 1 when something has to be."""
    from console.client import denizen_home
    from doctor.examination import examine
    from doctor.repair import repair

    home = denizen_home()
    repairs = repair(home, partial(typer.echo, err=True)) if fix else []
    findings = repairs + examine(home)
    if as_json:
        print_json({"data": [finding.as_json() for finding in findings]})
    else:
        rows = [(f.verdict, f.name, f.detail, f.mend or "") for f in findings]
        print_table(("STATE", "CHECK", "finding", "what to do"), rows)
    if any(finding.verdict == "fail" for finding in findings):
        raise typer.Exit(ExitCode.FAILED)


@app.command()
def status(as_json: JsonFlag = False) -> None:
    """Say what is live, what runs, and what is missing before the next learning cycle."""
    with connect() as client:
        answer = client.get("status")
    if as_json:
        print_json(answer)
        return
    print_fields(_status_fields(answer))
    skills = answer["skills"]
    if skills:
        if on_terminal():
            print()
        rows = [
            (s["id"], s["title"], s["num_new_signal"], "; ".join(s["missing"]) or "nothing")
            for s in skills
        ]
        print_table(("SKILL", "title", "NEW", "missing before it learns"), rows)
    if answer.get("judges"):
        if on_terminal():
            print()
        columns = ("SKILL", "judge", "version", "PAIRS", "KAPPA", "INTERVAL", "may teach")
        print_table(columns, [_judge_row(judge) for judge in answer["judges"]])


def _status_fields(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the status as lines that read from top to bottom."""
    record = ", ".join(
        f"{count} {name.replace('_', ' ')}" for name, count in answer["counts"].items()
    )
    service = f"{answer['url']} (version {answer['version']})"
    if "engine" not in answer:  # a tenant is told of nothing but its own
        ready = "yes" if answer["ready"] else "no"
        return {"service": service, "ready": ready, "live": answer["live"], "record": record}
    engine = answer["engine"]
    return {
        "service": service,
        "ready": "yes" if answer["ready"] else "no: " + "; ".join(answer["reasons"]),
        "engine": _with_reason(engine["state"], engine["reason"]),
        "live": f"{answer['live']} (before it: {answer['previous'] or '-'})",
        **({"tainted": _tainted_line(answer)} if answer.get("tainted") else {}),
        "record": record,
        "learnable": _learnable_line(answer["learnable"]),
        **({"judge": _judge_line(answer["judge"])} if "judge" in answer else {}),
        "learning": _learning_line(answer),
        "last cycle": _last_cycle_line(answer["last_cycle"]),
        **{f"job {name} fails": job["error"] for name, job in answer["failed_jobs"].items()},
    }


def _judge_row(judge: dict[str, Any]) -> tuple[Any, ...]:
    """Show how far a judge agrees with checks and people, and what keeps it from teaching."""
    agreement = judge["agreement"]
    low, high = agreement["low"], agreement["high"]
    return (
        judge["skill_id"],
        judge["grader"],
        judge["version"],
        f"{judge['num_pairs']} of {judge['min_pairs']}",
        agreement["kappa"],
        None if low is None else f"{low:.2f} to {high:.2f}",
        "yes" if judge["is_trusted"] else f"no: {'; '.join(judge['missing'])}",
    )


def _tainted_line(answer: dict[str, Any]) -> str:
    """Name the versions that learned from what was erased, and say what a person can do."""
    names = ", ".join(answer["tainted"])
    if answer["live"] not in answer["tainted"]:
        return f"{names}; none of them is live"
    return (
        f"{names}; {answer['live']} is live and learned from what was erased since: "
        "`denizen adapters rollback`, then `denizen learn`"
    )


def _learnable_line(learnable: dict[str, Any]) -> str:
    """Say what share of the newest sampled tokens can be learned from, and why not the rest."""
    if not learnable["sampled_tokens"]:
        return "nothing was sampled yet"
    rest = ", ".join(f"{n} {reason}" for reason, n in learnable["not_learnable"].items())
    share = f"{learnable['share']:.1%} of {learnable['sampled_tokens']} tokens"
    line = f"{share} in the newest {learnable['window_episodes']} episodes"
    return f"{line}; not {rest}" if rest else line


def _learning_line(answer: dict[str, Any]) -> str:
    running, check_in_s = answer["running"], answer["next_check_in_s"]
    if running:
        where = progress_line(answer["progress"])
        return f"{running['id']} since {instant(running['created_at'])}; {where}"
    if check_in_s is None:
        return "no cycle runs; none is scheduled"
    return f"no cycle runs; next check in {check_in_s:.0f} s"


def _judge_line(judge: dict[str, Any]) -> str:
    if judge["mode"] == "off":
        return "off"
    results = ", ".join(f"{count} {result}" for result, count in judge["results"].items())
    cost = f"{judge['calls']} calls, {judge['tokens']} tokens, {judge['seconds']:.0f} s"
    pause = judge["paused"] and f"{judge['paused']} for {judge['paused_for_s']:.0f} s"
    told = (
        f"{judge['model']}: {results or 'nothing judged yet'}; {judge['waiting']} waiting; {cost}"
    )
    return _with_reason(told, pause)


def _last_cycle_line(cycle: dict[str, Any] | None) -> str:
    if cycle is None:
        return "none yet"
    return _with_reason(f"{cycle['id']} {cycle['state']}", cycle["end_reason"])


def _with_reason(text: str, reason: str | None) -> str:
    return f"{text}: {reason}" if reason else text


def main() -> None:
    """Run the command line; the entry point of the ``denizen`` script."""
    app()


if __name__ == "__main__":
    main()
