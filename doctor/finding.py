"""What a check or a repair has to say."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    FIXED = "fixed"  # it was not well, and now is
    WARN = "warn"  # works, or mends itself with the next `denizen serve`
    FAIL = "fail"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of the report; never holds a secret.

    Example:
        ``Finding.fail("database", "/home/…/denizen.db cannot be read: file is not a database",
        mend="restore it from a backup, or move it away to start empty")``
    """

    name: str
    verdict: Verdict
    detail: str
    mend: str | None = None

    @classmethod
    def ok(cls, name: str, detail: str) -> "Finding":
        """All is well."""
        return cls(name=name, verdict=Verdict.OK, detail=detail)

    @classmethod
    def fixed(cls, name: str, detail: str) -> "Finding":
        """Something was mended."""
        return cls(name=name, verdict=Verdict.FIXED, detail=detail)

    @classmethod
    def warn(cls, name: str, detail: str, *, mend: str) -> "Finding":
        """It works, but."""
        return cls(name=name, verdict=Verdict.WARN, detail=detail, mend=mend)

    @classmethod
    def fail(cls, name: str, detail: str, *, mend: str) -> "Finding":
        """It has to be mended."""
        return cls(name=name, verdict=Verdict.FAIL, detail=detail, mend=mend)

    def as_json(self) -> dict[str, Any]:
        """Return the finding as a JSON object."""
        return asdict(self)
