"""Settings of ``[promotion]``: how a candidate proves itself, and who lets it go live."""

from typing import Literal

from pydantic import ConfigDict

from learner.gate import GateConfig


class PromotionConfig(GateConfig):
    """The gate's settings, and what a passed gate leads to."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    mode: Literal["auto", "propose"] = "auto"
    """After a passed gate: ``auto`` makes the candidate live, ``propose`` waits for a person to
    approve it.
    """
