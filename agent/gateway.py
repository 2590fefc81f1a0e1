"""The proxy: lets the right weights answer, and keeps what was said before the last byte.

It does not know how an engine is run, how versions come to be, or what is learned from the record.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agent import metrics
from agent.adapter_slot import AdapterSlot, Lease
from agent.capture import Capture
from agent.chat_request import ChatRequest, Metadata, upstream_body
from agent.errors import EngineError
from agent.exchange import Exchange, Options
from agent.model_names import LIVE_NAME
from agent.pins import Pins
from agent.policy import parse_json
from agent.sessions import earlier_keys, scope_of
from memory.episode_store import EpisodeStore
from memory.errors import StoreError, UnavailableError
from memory.types import (
    CallStatus,
    Episode,
    EpisodeSource,
    Message,
    new_id,
    task_text,
    utc_now,
)
from memory.wire import parse_body, read_json

log = logging.getLogger(__name__)
DONE = b"data: [DONE]\n\n"
FAILURE_SHOWN_S = 30.0
"""How long one unwritten record makes the service "degraded": a balancer that then sends nothing
would otherwise never see it well again."""
CLIENT_CLOSED = 499  # nginx's status for "the client went away"; nobody reads it


class Gateway:
    """Answers chat completions and records them."""

    def __init__(
        self,
        *,
        slot: AdapterSlot,
        episodes: EpisodeStore,
        resolve: Callable[[str], str],
        check_grader: Callable[[str], object],
        on_recorded: Callable[[], None],
        pins: Pins | None = None,
    ) -> None:
        """Compose.

        Args:
            slot: gives the engine and the engine's model name for a version.
            episodes: keeps the record.
            resolve: the version behind a model name; raises ``NotFoundError`` for an unknown one.
            check_grader: raises ``InvalidRequestError`` for a grader that does not exist.
            on_recorded: called after each record, so that grading may begin.
            pins: the version that a conversation stays with; None: the live one answers always.
        """
        self._slot = slot
        self._episodes = episodes
        self._resolve = resolve
        self._check_grader = check_grader
        self._on_recorded = on_recorded
        self._pins = pins
        self._background: set[asyncio.Task[None]] = set()
        self._failure: str | None = None
        self._failed_at = 0.0
        self._running: dict[str, Episode] = {}  # named session -> its episode, not recorded yet

    async def chat(self, request: Request, session: str | None = None) -> Response:
        """Answer ``POST /v1/chat/completions``, streamed or not."""
        body = read_json(await request.body())
        chat = parse_body(ChatRequest, body)
        if chat.metadata and chat.metadata.grader:
            self._check_grader(chat.metadata.grader)
        options = Options.of(request.headers, session)
        exchange = self._open(chat, body, options, self._resolve(chat.model))
        async with AsyncExitStack() as stack:
            if self._pins is not None and chat.model == LIVE_NAME:
                stack.enter_context(self._pins.answering(exchange.episode.id, exchange.adapter))
            try:
                lease = await stack.enter_async_context(
                    self._slot.lease(
                        exchange.adapter, affinity=options.session or exchange.episode.id
                    )
                )
                upstream = upstream_body(body, lease.model)
                if not chat.stream:
                    return await self._plain(request, exchange, lease, upstream)
                events = lease.client.stream(upstream)
                stack.push_async_callback(_close, events)
                opening = exchange.capture.chunk(parse_json(await _first(events)))
            except (EngineError, UnavailableError) as error:
                await self._record(exchange, CallStatus.ERROR, error.message)
                raise
            except asyncio.CancelledError:  # the service stops
                await self._record(exchange, CallStatus.CANCELLED, None)
                raise
            return EventStream(
                self._events(exchange, opening, events),
                exchange.headers(),
                on_gone=lambda: self._record(exchange, CallStatus.CANCELLED, None),
                release=stack.pop_all(),
            )

    @property
    def record_failure(self) -> str | None:
        """Why answers were not recorded a moment ago; None when none failed of late."""
        is_recent = time.monotonic() - self._failed_at < FAILURE_SHOWN_S
        return self._failure if is_recent else None

    async def close(self) -> None:
        """Wait for records that are still being written."""
        await asyncio.gather(*self._background, return_exceptions=True)

    def _open(
        self, chat: ChatRequest, body: dict[str, Any], options: Options, adapter: str
    ) -> Exchange:
        history = chat.history
        user = chat.user or (chat.metadata.user if chat.metadata else None)
        scope = scope_of(options.session, user)
        episode, parent_id = self._place(chat, history, options, user, scope)
        if self._pins is not None and chat.model == LIVE_NAME:
            adapter = self._pins.version_of(episode.id) or adapter
        return Exchange(
            body=body,
            history=history,
            options=options,
            episode=episode,
            parent_id=parent_id,
            scope=scope,
            adapter=adapter,
            capture=Capture(
                asked_model=chat.model,
                asked_logprobs=bool(chat.logprobs),
                asked_token_ids=bool(chat.return_token_ids),
            ),
        )

    def _place(
        self,
        chat: ChatRequest,
        history: list[Message],
        options: Options,
        user: str | None,
        scope: str,
    ) -> tuple[Episode, str | None]:
        """Return the episode this request belongs to, and the call that it continues."""
        keys = earlier_keys(history, scope=scope)
        known = self._episodes.find_chain(keys) if keys else {}
        for key in keys:
            if key in known:
                call_id, episode_id = known[key]
                return self._episodes.get(episode_id), call_id
        metadata = chat.metadata or Metadata()
        running = self._running_episode(options.session)
        if running is not None and _is_same_task(running, metadata):
            return running, None
        episode = Episode(
            id=new_id("ep"),
            created_at=utc_now(),
            source=EpisodeSource.HARNESS if options.session else EpisodeSource.CHAT,
            task_text=task_text(history),
            task_key=metadata.task,
            reference=metadata.reference,
            grader=metadata.grader,
            user=user,
            session=options.session,
            learn=options.learn,
        )
        if options.session and options.record:
            self._running[options.session] = episode
        return episode, None

    def _running_episode(self, session: str | None) -> Episode | None:
        """Return the newest episode of a named session, recorded or about to be."""
        if session is None:
            return None
        if session in self._running:
            return self._running[session]
        newest = self._episodes.session_episode(session)
        return None if newest is None else self._episodes.get(newest)

    async def _plain(
        self, request: Request, exchange: Exchange, lease: Lease, upstream: dict[str, Any]
    ) -> Response:
        answer = await _unless_gone(request.receive, lease.client.chat(upstream))
        if answer is None:
            await self._record(exchange, CallStatus.CANCELLED, None)
            return Response(status_code=CLIENT_CLOSED)
        view = exchange.capture.answer(answer)
        metrics.FIRST_BYTE.observe((utc_now() - exchange.started_at).total_seconds())
        await self._record(exchange, CallStatus.OK, None)
        return Response(
            orjson.dumps(view), media_type="application/json", headers=exchange.headers()
        )

    async def _events(
        self, exchange: Exchange, opening: dict[str, Any] | None, events: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        """Yield what the client sees; record before the last of it."""
        metrics.FIRST_BYTE.observe((utc_now() - exchange.started_at).total_seconds())
        try:
            if opening is not None:
                yield _event(opening)
            async for raw in events:
                view = exchange.capture.chunk(parse_json(raw))
                if view is not None:
                    yield _event(view)
        except (EngineError, UnavailableError) as error:
            await self._record(exchange, CallStatus.ERROR, error.message)
            yield _event(error.body())
            return
        await self._record(exchange, CallStatus.OK, None)
        yield DONE

    async def _record(self, exchange: Exchange, status: CallStatus, error: str | None) -> None:
        """Keep the exchange, once; a client that leaves now does not take the record with it."""
        if exchange.is_closed:
            return
        exchange.is_closed = True
        metrics.REQUESTS.labels(status).inc()
        if exchange.options.record:
            await asyncio.shield(self._spawn(self._keep(exchange, status, error)))

    async def _keep(self, exchange: Exchange, status: CallStatus, error: str | None) -> None:
        """Write the records; what cannot be written is counted and shown, and breaks no answer."""
        calls = exchange.calls(status, error)
        try:
            await self._episodes.record(exchange.episode, calls, exchange.chain_keys(calls))
        except (StoreError, UnavailableError) as failure:
            metrics.RECORDS_DROPPED.inc(len(calls))
            self._failure, self._failed_at = failure.message, time.monotonic()
            log.error("call %s was answered but not recorded: %s", exchange.call_id, failure)
            return
        finally:
            self._forget_running(exchange.episode)
        self._failure = None
        metrics.RECORDS.labels(status).inc(len(calls))
        self._on_recorded()

    def _forget_running(self, episode: Episode) -> None:
        if episode.session and self._running.get(episode.session) is episode:
            del self._running[episode.session]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


class EventStream(Response):
    """Server-sent events to one client; notices when the client leaves."""

    def __init__(
        self,
        events: AsyncIterator[bytes],
        headers: dict[str, str],
        *,
        on_gone: Callable[[], Coroutine[Any, Any, None]],
        release: AsyncExitStack,
    ) -> None:
        super().__init__(
            headers=headers | {"cache-control": "no-cache"}, media_type="text/event-stream"
        )
        del self.headers["content-length"]
        self._events = events
        self._on_gone = on_gone
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client leaves."""
        async with self._release:
            pump = asyncio.create_task(self._pump(send))
            gone = asyncio.create_task(_disconnected(receive))
            try:
                await asyncio.wait({pump, gone}, return_when=asyncio.FIRST_COMPLETED)
            finally:  # also when the service stops and cancels this very task
                gone.cancel()
                if not pump.done():
                    pump.cancel()
                    await asyncio.wait({pump})
                    await self._on_gone()
            if not pump.cancelled():
                pump.result()

    async def _pump(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async for event in self._events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _unless_gone(
    receive: Receive, answer: Coroutine[Any, Any, dict[str, Any]]
) -> dict[str, Any] | None:
    """Await an answer; drop it and return None when the client leaves first."""
    work = asyncio.create_task(answer)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else None
    finally:
        gone.cancel()
        work.cancel()
        await asyncio.wait({work})


def _is_same_task(episode: Episode, metadata: Metadata) -> bool:
    """Say whether what a caller tells of a request fits an episode; nothing told fits every one."""
    told = (metadata.task, metadata.reference, metadata.grader)
    known = (episode.task_key, episode.reference, episode.grader)
    return all(new is None or new == old for new, old in zip(told, known, strict=True))


async def _first(events: AsyncIterator[bytes]) -> bytes:
    try:
        return await anext(events)
    except StopAsyncIteration:
        raise EngineError("the engine ended the stream before its first chunk") from None


async def _close(events: AsyncIterator[bytes]) -> None:
    """Close the upstream connection, by which the engine stops computing."""
    if isinstance(events, AsyncGenerator):
        await events.aclose()


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"
