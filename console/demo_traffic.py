"""A user for the demo, who works through the ``openai`` client.

Sends real tasks, streamed, says what the right answers were, and counts every request that fails.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from console.errors import MissingTasksError

FAMILIES: dict[str, dict[str, Any]] = {
    "products": {"min_digits": 1, "max_digits": 1},
    "gcd": {"min_numbers": 2, "max_numbers": 2, "min_value": 2, "max_value": 30},
    "letter_counting": {"min_words": 2, "max_words": 5},
}
MAX_TOKENS = 24
PAUSE_S = 4.0
"""Between requests once the first burst is over: a user who goes on working while the agent learns.
"""


@dataclass(slots=True)
class Tally:
    """What became of the requests."""

    num_sent: int = 0
    failures: list[str] = field(default_factory=list)
    adapters: dict[str, int] = field(default_factory=dict)  # version -> answers


def mixed_tasks(num_per_family: int, seed: int) -> list[tuple[str, str]]:
    """Return (question, answer) pairs of all families, taking turns; no pair twice.

    Raises:
        MissingTasksError: reasoning-gym is not installed.
    """
    try:
        import reasoning_gym  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingTasksError(
            "the demo's tasks come from reasoning-gym: install the extra 'tasks'"
        ) from error

    by_family = []
    for name, settings in FAMILIES.items():
        dataset = reasoning_gym.create_dataset(name, size=num_per_family * 3, seed=seed, **settings)
        pairs = dict.fromkeys((entry["question"], entry["answer"]) for entry in dataset)
        by_family.append(list(pairs)[:num_per_family])
    return [pair for turn in zip(*by_family, strict=False) for pair in turn]


class User:
    """Works with the agent in the background until told to stop."""

    def __init__(self, url: str, tasks: Sequence[tuple[str, str]]) -> None:
        from openai import OpenAI

        # No retries: a refused request must be seen, not smoothed over.
        self._client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        self._tasks = list(tasks)
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.tally = Tally()

    def burst(self, start: int, num: int, num_threads: int) -> Iterator[int]:
        """Send ``num`` tasks from ``start``, several at a time; yield how many are answered."""
        work = iter(self._tasks[start : start + num])
        before = self.tally.num_sent
        threads = [threading.Thread(target=self._drain, args=(work,)) for _ in range(num_threads)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            yield min(num, self.tally.num_sent - before)
            self._stopped.wait(0.2)
        yield num

    def keep_working(self, start: int) -> None:
        """Go on with the tasks from ``start``, one after another, over and over, until ``stop``."""
        thread = threading.Thread(target=self._work, args=(start,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def ask_recalling(self, question: str) -> str | None:
        """Ask once with recall, as a program of one's own may; return the episode, if answered."""
        return self._ask(question, None, headers={"x-denizen-recall": "on"})

    def stop(self) -> Tally:
        """Finish the request that runs and return the tally."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        return self.tally

    def _work(self, start: int) -> None:
        later = self._tasks[start:] or self._tasks
        position = 0
        while not self._stopped.is_set():
            self._ask(*later[position % len(later)])
            position += 1
            self._stopped.wait(PAUSE_S)

    def _drain(self, work: Iterator[tuple[str, str]]) -> None:
        while True:
            with self._lock:
                task = next(work, None)
            if task is None:
                return
            self._ask(*task)

    def _ask(
        self, question: str, reference: str | None, headers: Mapping[str, str] | None = None
    ) -> str | None:
        """Ask and count; return the episode's id, None where it failed."""
        try:
            answer = self._client.chat.completions.with_raw_response.create(
                model="denizen",
                messages=[{"role": "user", "content": question}],
                max_tokens=MAX_TOKENS,
                stream=True,
                extra_body={"metadata": {"reference": reference}} if reference else None,
                extra_headers=headers,
            )
            num_chunks = sum(1 for _ in answer.parse())
            failure = None if num_chunks else "an empty stream"
            adapter = answer.headers["x-denizen-adapter"]
            episode_id = None if failure else answer.headers["x-denizen-episode-id"]
        except Exception as error:  # whatever goes wrong for a user is a failed request
            failure, adapter, episode_id = f"{type(error).__name__}: {error}", None, None
        with self._lock:
            self.tally.num_sent += 1
            if failure:
                self.tally.failures.append(failure)
            if adapter:
                self.tally.adapters[adapter] = self.tally.adapters.get(adapter, 0) + 1
        return episode_id
