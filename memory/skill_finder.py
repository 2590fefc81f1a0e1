"""Says which skill a text would join, and changes nothing: for what is asked in passing.

What is only looked up must move no centroid and wait in no pen; it comes again, as an episode, once
it was answered. It does not know what is asked for.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from memory.embed import Vector
from memory.skills import SkillAssigner, SkillsConfig


class SkillFinder(SkillAssigner):
    """An assigner that can be asked as well as told."""

    @classmethod
    def load(
        cls,
        rows: Iterable[Mapping[str, Any]],
        pen: Iterable[Mapping[str, Any]] = (),
        *,
        dimension: int,
        config: SkillsConfig | None = None,
    ) -> "SkillFinder":
        """Start from the stored rows, as every assigner does."""
        loaded = super().load(rows, pen, dimension=dimension, config=config)
        assert isinstance(loaded, cls)
        return loaded

    def find(self, vector_D: Vector, *, tenant: str | None) -> int | None:
        """Return the skill that an episode's text would join; None: it would wait, or found one.

        Args:
            vector_D: float32 [D], the text's.
            tenant: whose text it is.
        """
        with self._lock:
            nearest = self._nearest(self._of(tenant), vector_D, self._config.threshold)
            return None if nearest is None else nearest.id
