"""The settings of ``[graders]``, put together from its parts."""

from pydantic import ConfigDict

from graders.judging import JudgeConfig


class GradersConfig(JudgeConfig):
    """Settings of ``[graders]``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
