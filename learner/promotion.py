"""Settings of ``[promotion]``: how a candidate proves itself, and who lets it go live."""

from typing import Literal

from pydantic import ConfigDict

from learner.drift import DriftConfig
from learner.gate import GateConfig


class PromotionConfig(GateConfig, DriftConfig):
    """The gate's settings, the limits of drift, and what a passed gate leads to."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    mode: Literal["auto", "propose"] = "auto"
    """After a passed gate: ``auto`` makes the candidate live, ``propose`` waits for a person to
    approve it.
    """
    promote_unreplayed: bool = False
    """Whether ``auto`` also makes a candidate live that learned from work that cannot be replayed,
    when enough recorded answers prove it (``learner/live_proof.py``). Else a person decides."""
