"""``denizen demo``: the whole loop with real parts: ask, learn, recall, compare, roll back."""

import platform
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from console.client import ServiceClient
from console.demo_recall import recall_once
from console.demo_service import demo_service
from console.demo_traffic import FAMILIES, Tally, User, mixed_tasks
from console.follow import step_line
from console.render import print_json, print_table

NUM_PER_FAMILY = 96  # there are 100 products of two digits
NUM_BURST = 3 * 44  # tasks that start a cycle; more come, more slowly, while it learns
NUM_CYCLES = 2
TIME_LIMIT_S = 18 * 60.0  # for learning; the whole demo stays within 25 minutes
POLL_S = 1.0
SETTINGS = {
    "DENIZEN_LEARNER__CHECK_INTERVAL_S": "10",
    "DENIZEN_LEARNER__MIN_NEW_SIGNAL": "40",
    "DENIZEN_LEARNER__STEPS_PER_CYCLE": "14",
    "DENIZEN_PROMOTION__MODE": "auto",
    "DENIZEN_RECALL__DEADLINE_MS": "5000",  # the one recalled request may wait for a busy core
}


def run_demo(*, as_json: bool) -> int:
    """Run the demo; return the exit code: 0: it learned, recalled, lost no request, rolled back."""
    began = time.monotonic()
    console = Console(stderr=as_json, quiet=as_json and not Console(stderr=True).is_terminal)
    console.print("Starting a service over a throw-away home …")
    tasks = mixed_tasks(NUM_PER_FAMILY, seed=int(time.time()) % 100_000)
    with demo_service(SETTINGS) as client:
        report = _Demo(client, console, tasks).run()
    report["minutes"] = round((time.monotonic() - began) / 60, 1)
    report["machine"] = f"{platform.machine()}, {_cpu_count()} cores, {platform.system()}"
    if as_json:
        print_json(report)
    else:
        _show(report)
    return 0 if report["ok"] else 1


class _Demo:
    """The demo's acts, in order."""

    def __init__(
        self, client: ServiceClient, console: Console, tasks: list[tuple[str, str]]
    ) -> None:
        self._client = client
        self._console = console
        self._tasks = tasks

    def run(self) -> dict[str, Any]:
        """Play all acts and return the report."""
        user = User(self._client.url, self._tasks)
        user.keep_working(NUM_CYCLES * NUM_BURST)
        try:
            cycles = self._learn(user)
            self._pause_learning()
            self._console.print("Approving a guideline; asking once with recall …")
            recalled = recall_once(self._client, user)
            live = self._live()
            self._console.print(f"Comparing base and {live} on the held-out tasks …")
            learned = self._compare(live)
            back = self._client.post(
                "adapters", "rollback", body={"to": "base", "reason": "the demo's last act"}
            )
            self._console.print(f"Rolled back to {back['to']}; asking again …")
            restored = self._compare(self._live())
        finally:
            tally = user.stop()
        return self._report(cycles, live, recalled, learned, restored, tally)

    def _learn(self, user: User) -> list[dict[str, Any]]:
        """Ask much, watch the scheduler start a cycle by itself, and again."""
        deadline = time.monotonic() + TIME_LIMIT_S
        ended: list[dict[str, Any]] = []
        for number in range(NUM_CYCLES):
            self._ask_much(user, number * NUM_BURST)
            cycle = self._watch_cycle(number, deadline)
            if cycle is None:
                self._console.print("No more time to learn; what is live now is compared.")
                break
            self._console.print(f"{cycle['id']} {cycle['state']}: {cycle['end_reason']}")
            ended.append(cycle)
        return ended

    def _ask_much(self, user: User, start: int) -> None:
        with self._progress() as progress:
            bar = progress.add_task(f"A user asks about {', '.join(FAMILIES)}", total=NUM_BURST)
            for num in user.burst(start, NUM_BURST, num_threads=8):
                progress.update(bar, completed=num)

    def _watch_cycle(self, number: int, deadline: float) -> dict[str, Any] | None:
        """Show the ``number``-th cycle until it has ended; None when time runs out first."""
        with self._progress() as progress:
            bar = progress.add_task("Waiting for the scheduler", total=None)
            while time.monotonic() < deadline:
                begun = self._client.get("cycles")["data"]
                if len(begun) > number:
                    cycle: dict[str, Any] = self._client.get("cycles", begun[-1 - number]["id"])
                    self._show_cycle(progress, bar, cycle)
                    if cycle["state"] != "running":
                        return cycle
                time.sleep(POLL_S)
        return None

    def _show_cycle(self, progress: Progress, bar: Any, cycle: Mapping[str, Any]) -> None:
        steps = cycle["steps"]
        line = step_line(steps[-1]) if steps else "first rollouts"
        phase = (cycle.get("progress") or {}).get("phase", cycle["state"])
        progress.update(
            bar,
            description=f"{line} · {phase}",
            completed=len(steps),
            total=cycle["receipt"].get("max_steps"),
        )

    def _pause_learning(self) -> None:
        for skill in self._client.get("skills")["data"]:
            self._client.patch("skills", str(skill["id"]), body={"policy": "paused"})
        while self._client.get("status")["running"]:
            time.sleep(POLL_S)

    def _live(self) -> str:
        return str(self._client.get("status")["live"])

    def _compare(self, version: str) -> dict[str, Any]:
        body = {"before": "base", "after": version}
        report: dict[str, Any] = self._client.post("adapters", "compare", body=body)
        return report

    def _report(
        self,
        cycles: list[dict[str, Any]],
        live: str,
        recalled: dict[str, Any],
        learned: dict[str, Any],
        restored: dict[str, Any],
        tally: Tally,
    ) -> dict[str, Any]:
        titles = {skill["id"]: skill["title"] for skill in self._client.get("skills")["data"]}
        overall = learned["overall"]
        back = restored["overall"]["mean_after"]
        is_restored = abs(back - overall["mean_before"]) < 0.05
        ok = bool(
            overall["gain_low"] is not None
            and overall["gain_low"] > 0
            and not tally.failures
            and is_restored
            and recalled["guideline"]
        )
        return {
            "ok": ok,
            "live": live,
            "overall": overall,
            "skills": [
                row | {"title": titles.get(row["skill_id"], "-")} for row in learned["skills"]
            ],
            "after_rollback": back,
            "recalled": recalled,
            "cycles": [
                {key: cycle[key] for key in ("id", "state", "end_reason", "candidate", "receipt")}
                for cycle in cycles
            ],
            "requests": tally.num_sent,
            "failed_requests": tally.failures,
            "answers_by_version": tally.adapters,
        }

    def _progress(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        return Progress(*columns, TimeElapsedColumn(), console=self._console)


def _show(report: Mapping[str, Any]) -> None:
    rows = [_score_row(row["title"], row, report["live"]) for row in report["skills"]]
    rows.append(_score_row("all", report["overall"], report["live"]))
    columns = ("SKILL", "held-out tasks", "before", "after", "gain", "95 % interval", "version")
    print_table(columns, rows)
    base, back = report["overall"]["mean_before"], report["after_rollback"]
    print(f"after the rollback: {back:.3f} (before learning: {base:.3f})")
    told = report["recalled"]
    guideline = "the guideline" if told["guideline"] else "no guideline"
    print(f"recalled for {told['title']}: {guideline} and {told['episodes']} earlier episodes")
    versions = ", ".join(f"{name} {num}" for name, num in report["answers_by_version"].items())
    num_failed = len(report["failed_requests"])
    print(f"requests: {report['requests']}, failed: {num_failed}; answers by version: {versions}")
    print(f"{report['minutes']} minutes on {report['machine']}")


def _score_row(title: str, row: Mapping[str, Any], version: str) -> tuple[Any, ...]:
    if row["mean_gain"] is None:
        return (title, row["num_tasks"], None, None, None, None, version)
    interval = f"[{row['gain_low']:+.3f}, {row['gain_high']:+.3f}]"
    means = (f"{row['mean_before']:.3f}", f"{row['mean_after']:.3f}", f"{row['mean_gain']:+.3f}")
    return (title, row["num_tasks"], *means, interval, version)


def _cpu_count() -> int:
    import os

    return len(os.sched_getaffinity(0))
