"""What share of the sampled tokens can be learned from lately, and why the rest cannot.

Counted over a window: the newest live episodes, up to a bound on their calls. An episode is counted
again only when something was recorded in it since. It does not know what becomes of the rows.
"""

import threading
from collections import Counter
from typing import Any

from learner.trees import TRAINED, rows_of_tree
from memory.episode_store import EpisodeStore

WINDOW_EPISODES = 100
WINDOW_CALLS = 400  # about 0.1 s to count anew, at 4,000 tokens a call


class Coverage:
    """Counts the newest episodes' sampled tokens by what becomes of them."""

    def __init__(self, episodes: EpisodeStore) -> None:
        self._episodes = episodes
        self._counted: dict[tuple[str, int], dict[str, int]] = {}  # (episode, revision) -> account
        self._lock = threading.Lock()

    def report(self) -> dict[str, Any]:
        """Return the share, and the tokens of the rest by reason."""
        with self._lock:
            window = self._window()
            self._counted = {key: self._counted.get(key) or self._account(key[0]) for key in window}
            total: Counter[str] = Counter()
            for account in self._counted.values():
                total.update(account)
        num_trained = total.pop(TRAINED, 0)
        num_sampled = num_trained + total.total()
        return {
            "window_episodes": len(window),
            "sampled_tokens": num_sampled,
            "learnable_tokens": num_trained,
            "share": num_trained / num_sampled if num_sampled else None,
            "not_learnable": dict(total.most_common()),
        }

    def _window(self) -> list[tuple[str, int]]:
        """Return the newest episodes and their revisions, as long as their calls fit."""
        window: list[tuple[str, int]] = []
        num_calls = 0
        for row in self._episodes.newest_live(WINDOW_EPISODES):
            num_calls += row["num_calls"]
            if num_calls > WINDOW_CALLS and window:
                break
            window.append((row["id"], row["revision"]))
        return window

    def _account(self, episode_id: str) -> dict[str, int]:
        calls = self._episodes.calls(episode_id, limit=WINDOW_CALLS)
        return rows_of_tree(calls, group_id=episode_id).account
