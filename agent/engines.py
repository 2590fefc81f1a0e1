"""The engines that answer, and the base model that they serve: a child of ours, or servers by URL.

It does not know which adapter is live; who watches passes what has to happen when one comes or
goes.
"""

import asyncio
from functools import partial
from pathlib import Path

from agent import attached, preflight
from agent.attached import OnDown, OnReady
from agent.base_model import local_model, prepare_packaged_model
from agent.engine import EngineConfig, Progress, VllmProcess
from agent.policy import PolicyClient
from agent.supervisor import supervise


class Engines:
    """One vLLM of our own, which ``watch`` starts, or those that run elsewhere.

    Attributes:
        model: the folder of the base model.
        clients: one for each engine.
        child: the engine of our own; None: they run elsewhere.
    """

    def __init__(
        self, model: Path, clients: list[PolicyClient], child: VllmProcess | None, say: Progress
    ) -> None:
        self.model = model
        self.clients = clients
        self.child = child
        self._say = say

    @classmethod
    async def find(cls, config: EngineConfig, home: Path, say: Progress) -> "Engines":
        """Return the engines that the settings name, and have the base model at hand.

        Args:
            config: the settings.
            home: where the packaged model and the engine's log are kept.
            say: told in one line each what a person should know.

        Raises:
            EngineUnavailableError: no engine named by URL answered in time.
            ConfigError: the base model is not known, or what the settings ask for cannot work.
        """
        if config.urls:
            clients = [PolicyClient(url, config.api_key) for url in config.urls]
            root = config.model or await attached.base_root(clients, config.start_timeout_s)
            model = await asyncio.to_thread(local_model, root, say)
            return cls(model, clients, None, say)
        if config.model is None:
            model = await asyncio.to_thread(prepare_packaged_model, home / "models", say)
        else:
            model = await asyncio.to_thread(local_model, config.model, say)
        for warning in await asyncio.to_thread(preflight.check, config, model):
            say(f"warning: {warning}")
        child = VllmProcess(config, model=model, log_path=home / "logs/engine.log")
        return cls(model, [PolicyClient(child.url, child.api_key)], child, say)

    async def watch(self, on_ready: OnReady, on_down: OnDown) -> None:
        """Tell when an engine answers and when not, until cancelled; a child is kept running."""
        if self.child is None:
            await attached.watch(self.clients, on_ready, on_down)
        else:
            [client] = self.clients
            await supervise(
                self.child, partial(on_ready, client), partial(on_down, client), self._say
            )

    async def close(self) -> None:
        """Close the clients."""
        for client in self.clients:
            await client.close()
