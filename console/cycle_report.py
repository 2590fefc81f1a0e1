"""How a learning cycle looks: its fields, a plot of reward, the figures of its steps, the gate.

The names are those of the receipts; what a step or a gate did not measure is ``-``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from console.follow import progress_line
from console.render import print_bars, print_fields, print_table

WORK_COLUMNS = {
    "no contrast": "frac_reward_zero_std",
    "groups": "num_groups",
    "tokens": "trained_tokens",
    "grad norm": "grad_norm",
    "steps old": "staleness_max",
    "seconds": "seconds",
}
"""The first table of steps, after the reward: what a column is called, and the receipt's name."""

WEIGHT_COLUMNS = {
    "change": "parameter_change",
    "kl": "kl_reference",
    "kl sampler": "kl_sampler_trainer",
    "gap": "logprob_gap",
    "clipped": "is_clipped_share",
    "cut": "num_truncated",
    "MiB": "peak_memory_mib",
}
"""The second one: what the step did to the weights, and how far trainer and sampler agree."""


DRIFT_COLUMNS = {
    "answers": "num_answers",
    "tokens": "mean_tokens",
    "cut off": "cut_share",
    "surprisal": "mean_surprisal",
}
"""Of drift: what held-out answers look like before and after."""


def print_cycle(cycle: Mapping[str, Any]) -> None:
    """Print all that is known of a cycle; plots only on a terminal."""
    apart = ("steps", "receipt", "gate", "progress")
    print_fields({name: value for name, value in cycle.items() if name not in apart})
    if cycle.get("progress"):
        print_fields({"progress": progress_line(cycle["progress"])})
    if cycle.get("receipt"):
        print_fields(cycle["receipt"])
    if cycle.get("steps"):
        _print_steps(cycle["steps"])
    if cycle.get("gate"):
        _print_gate(cycle["gate"])


def reward_of(receipt: Mapping[str, Any]) -> float | None:
    """Return a step's mean reward: of practice, or of recorded episodes where there was none."""
    practised: float | None = receipt.get("reward_mean")
    recorded: float | None = (receipt.get("live") or {}).get("reward_mean")
    return recorded if practised is None else practised


def _print_steps(steps: Sequence[Mapping[str, Any]]) -> None:
    receipts = [(step["index"], step["receipt"]) for step in steps]
    is_practice = any(receipt.get("reward_mean") is not None for _, receipt in receipts)
    what = "reward" if is_practice else "reward of recorded episodes"
    rewards = [(f"step {index}", reward_of(receipt)) for index, receipt in receipts]
    print_bars(rewards, title=f"mean {what} (0 to 1)")
    work = [
        (index, reward_of(receipt), *(receipt.get(name) for name in WORK_COLUMNS.values()))
        for index, receipt in receipts
    ]
    print_table(("STEP", "reward", *WORK_COLUMNS), work, title="steps")
    weights = [
        (index, *(_short(receipt.get(name)) for name in WEIGHT_COLUMNS.values()))
        for index, receipt in receipts
    ]
    title = "steps: the weights, trainer against sampler, rollouts cut off, memory"
    print_table(("STEP", *WEIGHT_COLUMNS), weights, title=title)
    _print_skipped(receipts)


def _short(value: float | None) -> str | None:
    """Show three significant digits: a change of 0.00012 is not none."""
    if value is None:
        return None
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _print_skipped(receipts: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
    """Print how many groups each step skipped, a column a reason; nothing where none was."""
    counted = [(index, receipt.get("skipped_groups") or {}) for index, receipt in receipts]
    reasons = sorted({reason for _, skipped in counted for reason in skipped})
    if reasons:
        rows = [(index, *(skipped.get(why, 0) for why in reasons)) for index, skipped in counted]
        print_table(("STEP", *reasons), rows, title="groups skipped, by reason")


def _print_gate(gate: Mapping[str, Any]) -> None:
    """Print held-out scores before and after, a row a skill, and the verdict with its reasons."""
    overall, sure = gate["overall"], f"{gate['confidence']:.0%}"
    if overall["mean_gain"] is not None:
        low, high = overall["gain_low"], overall["gain_high"]
        gain = f"gain {overall['mean_gain']:+.3f} ({sure}: {low:+.3f} to {high:+.3f})"
        scored = [("before", overall["mean_before"]), ("after", overall["mean_after"])]
        print_bars(scored, title=f"held-out score (0 to 1), {gain}")
    scores = [("all", overall), *((s["skill_id"], s) for s in gate["skills"])]
    columns = ("num_tasks", "mean_before", "mean_after", "mean_gain", "gain_low", "gain_high")
    rows = [(skill, *(score[name] for name in columns)) for skill, score in scores]
    title = f"held-out score; {sure} interval of the gain"
    headings = ("SKILL", "TASKS", "BEFORE", "AFTER", "GAIN", "LOW", "HIGH")
    print_table(headings, rows, title=title)
    if gate.get("live"):
        print_fields({f"recorded answers: {name}": value for name, value in gate["live"].items()})
    if gate.get("drift"):
        _print_drift(gate["drift"])
    print_fields({"verdict": gate["verdict"], "reasons": "; ".join(gate["reasons"])})


def _print_drift(drift: Mapping[str, Any]) -> None:
    """Print how held-out answers, and the general probe, moved from the live version."""
    rows = []
    for kind in ("others", "practised"):
        answers = drift[kind] or {}
        for when in ("before", "after") if answers else ():
            figures = answers[when]
            kl = answers["kl"] if when == "after" else None
            rows.append(
                (
                    kind,
                    when,
                    *(_short(figures[name]) for name in DRIFT_COLUMNS.values()),
                    _short(kl),
                )
            )
    if rows:
        title = "drift: held-out answers of other and of practised skills"
        print_table(("TASKS", "", *DRIFT_COLUMNS, "kl"), rows, title=title)
    probe = drift["probe"] or {"none": drift["why_no_probe"]}
    print_fields({f"general probe: {name}": value for name, value in probe.items()})
