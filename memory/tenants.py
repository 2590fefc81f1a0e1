"""Who asks, and whose records that caller may see.

A tenant is a name that the operator gives to some keys (``[auth.tenants]``); who has another key,
or none, belongs to the default tenant, written None. Every query over records is narrowed to a
``Sight``; what lies outside is not found, as if it were not there. It does not know how a key is
checked.
"""

import re
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from memory.errors import InvalidRequestError

TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Sight:
    """Whose records are seen: one tenant's, or everybody's.

    Example:
        ``Sight("acme").clause`` is ``"tenant = 'acme'"``; ``Sight(None).clause`` ``"tenant IS
        NULL"``.
    """

    tenant: str | None = None
    is_everything: bool = False

    def __post_init__(self) -> None:
        if self.tenant is not None and not TENANT_NAME.fullmatch(self.tenant):
            raise InvalidRequestError(
                f"{self.tenant!r:.80} is no tenant's name: letters, digits, _ . and -, 64 at most",
                param="tenant",
            )

    @property
    def clause(self) -> str:
        """What narrows a query over rows with a column ``tenant``, as SQL.

        The name stands in it as it is, so that SQLite can choose the index of named tenants; its
        form was checked.
        """
        if self.is_everything:
            return "TRUE"
        return "tenant IS NULL" if self.tenant is None else f"tenant = '{self.tenant}'"

    def sees(self, tenant: str | None) -> bool:
        """Say whether a tenant's records are seen."""
        return self.is_everything or tenant == self.tenant


EVERYTHING = Sight(is_everything=True)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request.

    Example:
        ``Caller(tenant="acme", is_admin=False)``
    """

    tenant: str | None = None
    is_admin: bool = True  # an admin's key; anybody, where no key is asked for

    @property
    def own(self) -> Sight:
        """What belongs to the caller's conversations: an admin, too, only goes on with its own."""
        return Sight(self.tenant)

    @property
    def sight(self) -> Sight:
        """What the caller may look at."""
        return EVERYTHING if self.is_admin else self.own

    def looking_at(self, tenant: str | None) -> Sight:
        """Narrow what is looked at to a tenant that was asked for; None: no narrowing.

        Another's records are simply not there.
        """
        if tenant is None:
            return self.sight
        if not (self.is_admin or tenant == self.tenant):
            raise InvalidRequestError("only an admin key may name a tenant", param="tenant")
        return Sight(tenant)


ANYBODY = Caller()
"""Who asks where nobody checks keys."""


def caller_of(request: HTTPConnection) -> Caller:
    """Return who sends a request, as ``agent/access.py`` found by its key."""
    found = request.scope.get("state", {}).get("caller", ANYBODY)
    assert isinstance(found, Caller)
    return found
