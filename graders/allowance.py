"""How much may be asked of a judge: calls and tokens an hour, and a rest after failures."""

import time
from collections import deque
from collections.abc import Callable

HOUR_S = 3_600.0
Clock = Callable[[], float]


class Allowance:
    """Calls and tokens of the past hour, against what is allowed.

    Args:
        max_calls: an hour.
        max_tokens: an hour; the call that passes it is the last for now.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        *,
        max_calls: int = 1_000,
        max_tokens: int = 2_000_000,
        clock: Clock = time.monotonic,
    ) -> None:
        self._calls = _Window(max_calls, clock)
        self._tokens = _Window(max_tokens, clock)

    def spend_call(self) -> None:
        """Count one call."""
        self._calls.spend(1)

    def spend_tokens(self, number: int) -> None:
        """Count tokens."""
        self._tokens.spend(number)

    def seconds_left(self) -> float:
        """Return how long to wait for the next call; 0: none."""
        return max(self._calls.seconds_left(), self._tokens.seconds_left())


class _Window:
    """A sum over the past hour."""

    def __init__(self, at_most: int, clock: Clock) -> None:
        self._at_most = at_most
        self._clock = clock
        self._spent: deque[tuple[float, int]] = deque()
        self._sum = 0

    def spend(self, number: int) -> None:
        self._spent.append((self._clock(), number))
        self._sum += number

    def seconds_left(self) -> float:
        now = self._clock()
        while self._spent and self._spent[0][0] <= now - HOUR_S:
            self._sum -= self._spent.popleft()[1]
        left = self._sum
        for at, number in self._spent:
            if left < self._at_most:
                break
            left -= number
            if left < self._at_most:
                return at + HOUR_S - now
        return 0.0


class Breaker:
    """A rest after failures in a row, twice as long each time that it did not help.

    After a rest one question is enough to tell: it succeeds, or the next rest begins.

    Args:
        max_failures: in a row, before the first rest.
        first_rest_s: how long.
        max_rest_s: at most.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        *,
        max_failures: int = 5,
        first_rest_s: float = 30.0,
        max_rest_s: float = 600.0,
        clock: Clock = time.monotonic,
    ) -> None:
        self._max_failures = max_failures
        self._first_rest_s = first_rest_s
        self._max_rest_s = max_rest_s
        self._clock = clock
        self._num_failures = 0
        self._num_rests = 0
        self._until = 0.0

    def succeeded(self) -> None:
        """Forget the failures."""
        self._num_failures = self._num_rests = 0

    def failed(self) -> None:
        """Count a failure; those of questions that were under way when the rest began do not."""
        if self.seconds_left() > 0:
            return
        self._num_failures += 1
        if self._num_failures >= self._max_failures or self._num_rests:
            rest_s = min(self._first_rest_s * 2**self._num_rests, self._max_rest_s)
            self._until = self._clock() + rest_s
            self._num_rests += 1
            self._num_failures = 0

    def seconds_left(self) -> float:
        """Return how long the rest still lasts; 0: there is none."""
        return max(0.0, self._until - self._clock())
