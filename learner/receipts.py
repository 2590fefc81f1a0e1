"""What steps and cycles account for, under TRL's names where it has them."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from learner.rollouts import Trial


def practice_receipt(tried: Sequence[Sequence[Trial]]) -> dict[str, Any]:
    """Account for the rewards of what was sampled in a step."""
    rewards = [
        [trial.outcome.value for trial in trials if trial.outcome.value is not None]
        for trials in tried
    ]
    flat = [value for values in rewards for value in values]
    compared = [values for values in rewards if len(values) > 1]
    equal = sum(max(values) == min(values) for values in compared)
    lengths = [len(t.call.completion_token_ids or ()) for trials in tried for t in trials]
    outcomes = Counter(
        str(trial.outcome.provenance or "none") for trials in tried for trial in trials
    )
    return {
        "rollouts_by_provenance": dict(outcomes),
        "reward_mean": statistics.fmean(flat) if flat else None,
        "reward_std": statistics.pstdev(flat) if flat else None,
        "frac_reward_zero_std": equal / len(compared) if compared else None,
        "mean_completion_tokens": statistics.fmean(lengths) if lengths else None,
    }


def cycle_receipt(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum the steps up."""
    trained = [step for step in steps if "trained_tokens" in step]
    ages = [age for step in steps if (age := step.get("staleness_max")) is not None]
    provenance: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    for step in steps:
        provenance.update(step["rollouts_by_provenance"])
        skipped.update(step["skipped_rollouts"])
    return {
        "rollouts_by_provenance": dict(provenance),
        "skipped_rollouts": dict(skipped),
        "num_steps": len(steps),
        "num_trained_steps": len(trained),
        "num_rollouts": sum(step["num_rollouts"] for step in steps),
        "num_truncated": sum(step["num_truncated"] for step in steps),
        "trained_tokens": sum(step["trained_tokens"] for step in trained),
        "staleness_max": max(ages, default=None),
        "reward_first": steps[0]["reward_mean"] if steps else None,
        "reward_last": steps[-1]["reward_mean"] if steps else None,
        "rehearsal_rows": sum(step.get("rehearsal_rows", 0) for step in steps),
        "live_rows": sum(step.get("live_rows", 0) for step in steps),
        "next_turn_rows": sum(step.get("next_turn_rows", 0) for step in steps),
        "next_turns": _next_turns([step["next_turns"] for step in steps if "next_turns" in step]),
        "live": next((step["live"] for step in reversed(steps) if "live" in step), None),
        "seconds_sampling": sum(step["seconds_sampling"] for step in steps),
        "seconds_training": sum(step["seconds_training"] for step in steps),
    }


def _next_turns(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Sum up what became of recorded prefixes; None where no step looked for any."""
    if not steps:
        return None
    counted: dict[str, Counter[str]] = {"skipped": Counter(), "unscored": Counter()}
    for step in steps:
        for name, counter in counted.items():
            counter.update(step[name])
    totals: dict[str, Any] = {
        name: sum(step[name] for step in steps) for name in ("num_prefixes", "num_tried")
    }
    totals["left_out"] = steps[-1]["left_out"]
    why_not = Counter(step["why_not"] for step in steps if step["why_not"] is not None)
    return totals | {name: dict(one) for name, one in counted.items()} | {"why_not": dict(why_not)}


def effect_receipt(effect: Mapping[str, Any] | None) -> dict[str, Any]:
    """Say whether the steps made rewarded answers likelier than the others, and by how much.

    Args:
        effect: ``learner.effect.Effect`` as JSON; None where nothing rewarded was trained, or the
            service that trained it ended before it could ask.

    Returns:
        ``effect`` is ``rose``, ``no effect``, or None: not known; the figures beside it.
    """
    if effect is None:
        return {"effect": None}
    return {"effect": "no effect" if has_no_effect(effect) else "rose", **effect}


def has_no_effect(effect: Mapping[str, Any] | None) -> bool:
    """Say whether it is known that rewarded answers have not become likelier than the others."""
    if effect is None:
        return False
    return not effect["objective_gain"] > 0


def why_no_signal(steps: Sequence[Mapping[str, Any]]) -> str:
    """Say why none of the steps taught anything."""
    skipped: Counter[str] = Counter()
    for step in steps:
        skipped.update(step["skipped_groups"])
    counted = ", ".join(f"{num} {reason}" for reason, num in skipped.items()) or "none"
    return (
        f"in none of {len(steps)} steps did rollouts of one task, or recorded episodes, differ in "
        f"reward (groups skipped: {counted})"
    )
