"""The settings of ``[graders]``, put together from its parts."""

from pydantic import ConfigDict

from graders.calibration import TrustConfig
from graders.functions import FunctionsConfig
from graders.judging import JudgeConfig


class GradersConfig(JudgeConfig, TrustConfig, FunctionsConfig):
    """Settings of ``[graders]``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
