"""Keeps one vLLM process running: notices an end or a hang, and starts it anew after a pause.

It does not know which adapter is live nor who asks; who needs to act when the engine comes or goes
passes two callbacks.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from agent.diagnosis import ANSWERS_NOTHING, COMPUTES_NOTHING
from agent.engine import Progress, VllmProcess
from agent.errors import EngineStartError
from agent.policy import PolicyClient

LOOK_INTERVAL_S = 6.0
LOOK_TIMEOUT_S = 15.0
HANG_AFTER_S = 30.0
"""Without a token in this time an engine hangs. A look takes up to ``LOOK_TIMEOUT_S`` and once
``HEALTH_TIMEOUT_S``, so one that fails, as on a machine too busy to answer, ends nothing, and two
find a hang within 60 s."""
PAUSES_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Before each start after a failure. One failure costs no time; a loop of them soon waits."""
WELL_AFTER_S = 120.0
"""How long an engine has to run to count as well, after which the pauses begin anew."""


async def supervise(
    engine: VllmProcess,
    on_ready: Callable[[], Awaitable[None]],
    on_down: Callable[[str], Awaitable[None]],
    progress: Progress,
) -> None:
    """Keep the engine running until cancelled, and stop it then.

    After each start ``on_ready`` runs; after each end, hang or failed start
    ``on_down(reason)``, whose first line says what is the matter, and then the next pause.
    """
    failures = 0
    try:
        while True:
            ready_at = None
            try:
                await engine.start(progress)
            except EngineStartError as error:
                reason = error.message
            else:
                ready_at = time.monotonic()
                reason = await _serve(engine, on_ready)
            await on_down(reason)
            await engine.stop()
            if ready_at is not None and time.monotonic() - ready_at >= WELL_AFTER_S:
                failures = 0
            pause_s = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
            failures += 1
            progress(f"vLLM starts again {f'in {pause_s:.0f} s' if pause_s else 'at once'}")
            await asyncio.sleep(pause_s)
    finally:
        await engine.stop()


async def _serve(engine: VllmProcess, on_ready: Callable[[], Awaitable[None]]) -> str:
    """Tell that the engine is ready, which may hang with it; return why it no longer serves."""
    telling = asyncio.ensure_future(on_ready())
    try:
        return await _until_useless(engine)
    finally:
        telling.cancel()
        with suppress(asyncio.CancelledError):
            await telling


async def _until_useless(engine: VllmProcess) -> str:
    """Return, when the process has ended or no longer computes, what is the matter."""
    ended = asyncio.create_task(engine.wait_ended())
    moved_at = time.monotonic()
    try:
        async with PolicyClient(engine.url, engine.api_key) as client:
            while not (await asyncio.wait({ended}, timeout=LOOK_INTERVAL_S))[0]:
                if await client.makes_progress("base", LOOK_TIMEOUT_S):
                    moved_at = time.monotonic()
                elif time.monotonic() - moved_at >= HANG_AFTER_S and engine.is_running:
                    return COMPUTES_NOTHING if await client.health() else ANSWERS_NOTHING
        return await ended
    finally:
        ended.cancel()
