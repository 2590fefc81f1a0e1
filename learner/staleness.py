"""How many versions lie between the weights that sampled something and those that are trained."""

from collections.abc import Iterable

from memory.version_store import VERSION_NAME

BASE = "base"


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


def _number(name: str) -> int | None:
    if name == BASE:
        return 0
    return int(name.rpartition("-")[2]) if VERSION_NAME.fullmatch(name) else None
