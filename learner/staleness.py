"""How old the weights are that sampled something, seen from those that learn from it.

Recorded work is counted in versions, what a cycle samples itself in its optimizer steps.
"""

from collections.abc import Iterable, Sequence

from memory.version_store import VERSION_NAME

BASE = "base"
MAX_STEPS = 1
"""Optimizer steps that may lie between the weights that sample a rollout and those that learn from
it: as many as sampling beside training takes. One changes the weights little, and the importance
weights correct for it; asynchronous training loses little up to about 4 (AReaL,
arXiv:2505.24298)."""


def staleness(samplers: Iterable[str], trained: str) -> int | None:
    """Count versions from the oldest sampler of an episode to the weights that learn from it.

    An episode may span versions: it is as stale as its oldest token.

    Args:
        samplers: ``Call.adapter`` of each call, ``base`` or a version.
        trained: the version that is continued.

    Returns:
        0 when all was sampled from the trained weights or newer ones; None when a name is no
        version: nobody knows how far it is.
    """
    ages = [_number(trained), *(_number(name) for name in samplers)]
    known = [age for age in ages if age is not None]
    return max(known[0] - min(known), 0) if len(known) == len(ages) else None


def steps_between(sampler: str, lineage: Sequence[str]) -> int | None:
    """Count the optimizer steps that a cycle's weights are ahead of those that sampled something.

    Args:
        sampler: ``Call.adapter``.
        lineage: the weights that the cycle has gone through, oldest first, the trained ones last:
            ``("denizen-000007", "denizen-000008-step-01-5eed5eed")``.

    Returns:
        0 when the trained weights sampled it; None when none of the cycle's did.
    """
    ages = {_passing(name): age for age, name in enumerate(reversed(lineage))}
    return ages.get(_passing(sampler))


def _passing(name: str) -> str:
    """Return what names weights for good: a step's without the number of the version to come.

    The service that goes on with a cycle may count on another number.
    """
    return name.partition("-step-")[2] or name


def _number(name: str) -> int | None:
    if name == BASE:
        return 0
    return int(name.rpartition("-")[2]) if VERSION_NAME.fullmatch(name) else None
