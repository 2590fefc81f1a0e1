"""The proxy: lets the right weights answer, and keeps what was said before the last byte.

It does not know how an engine is run, how versions come to be, or what is learned from the record.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from agent import metrics
from agent.adapter_slot import AdapterSlot, Lease
from agent.capture import Capture
from agent.dialects.dialect import Ask, Dialect, FindCall
from agent.errors import EngineError, EngineRejectedError
from agent.event_stream import EventStream, unless_gone
from agent.exchange import Exchange, Options
from agent.model_names import LIVE_NAME
from agent.pins import Pins
from agent.placement import Asked, Placement
from agent.prompts import Prompts
from agent.recorder import Recorder
from memory.errors import DenizenError, UnavailableError
from memory.http import error_answer, unexpected_error
from memory.tenants import Sight, caller_of
from memory.types import Call, CallStatus, utc_now
from memory.wire import read_json

log = logging.getLogger(__name__)
CLIENT_CLOSED = 499  # nginx's status for "the client went away"; nobody reads it


class Gateway:
    """Answers completions, in whatever dialect they are asked for, and records them."""

    def __init__(
        self,
        *,
        slot: AdapterSlot,
        placement: Placement,
        recorder: Recorder,
        prompts: Prompts,
        find_call: Callable[[str, Sight], Call],
        resolve: Callable[[str], str],
        check_grader: Callable[[str], object],
        pins: Pins | None = None,
    ) -> None:
        """Compose.

        Args:
            slot: gives the engine and the engine's model name for a version.
            placement: finds the conversation of a request.
            recorder: keeps what was said.
            prompts: what the engine is asked in place of what the client wrote.
            find_call: returns an earlier answer that a client names, if it is in sight.
            resolve: the version behind a model name; raises ``NotFoundError`` for an unknown one.
            check_grader: raises ``InvalidRequestError`` for a grader that does not exist.
            pins: the version that a conversation stays with; None: the live one answers always.
        """
        self._slot = slot
        self._placement = placement
        self._recorder = recorder
        self._prompts = prompts
        self._find_call = find_call
        self._resolve = resolve
        self._check_grader = check_grader
        self._pins = pins

    async def answer(self, request: Request, dialect: Dialect) -> Response:
        """Answer one request in its dialect, streamed or not; so is what goes wrong told."""
        try:
            return await self._answer(request, dialect)
        except DenizenError as error:
            return error_answer(error, dialect.error(error))
        except Exception:
            log.exception("a request failed for an unforeseen reason")
            failure = unexpected_error()
            return error_answer(failure, dialect.error(failure))

    async def count_tokens(self, model: str, body: dict[str, Any]) -> int:
        """Return how many tokens a conversation's prompt has for a model."""
        async with self._slot.lease(self._resolve(model)) as lease:
            return await lease.client.count_tokens(body | {"model": lease.model})

    async def _answer(self, request: Request, dialect: Dialect) -> Response:
        caller = caller_of(request)

        def find_call(call_id: str) -> Call:
            return self._find_call(call_id, caller.own)

        ask = await self._read(dialect, read_json(await request.body()), find_call)
        if ask.metadata.grader:
            self._check_grader(ask.metadata.grader)
        options = Options.of(request.headers, request.path_params.get("session"))
        exchange = self._open(ask, options, caller.tenant)
        if self._is_placed_first(exchange):
            await self._recorder.find_place(exchange)
        async with AsyncExitStack() as stack:
            if self._pins is not None and ask.model == LIVE_NAME:
                episode_id = exchange.place.episode.id
                pinned = self._pins.version_of(episode_id)
                exchange.adapter = pinned or exchange.adapter
                stack.enter_context(self._pins.answering(episode_id, exchange.adapter))
            try:
                lease = await stack.enter_async_context(
                    self._slot.lease(
                        exchange.adapter,
                        affinity=lambda: options.session or exchange.place.episode.id,
                    )
                )
                upstream = lease.addressed(await self._prompts.prepare(exchange))
                # once it has been sent
                asyncio.get_running_loop().call_soon(self._recorder.find_place_soon, exchange)
                if not ask.stream:
                    return await self._plain(request, exchange, lease, upstream)
                events = lease.client.stream(upstream, ask.path)
                stack.push_async_callback(_close, events)
                first = await unless_gone(request.receive, _first(events))
                if first is None:
                    return await self._left(exchange)
                opening = exchange.absorb(first)
                await self._recorder.find_place(exchange)
            except (EngineError, EngineRejectedError, UnavailableError) as error:
                await self._recorder.record(exchange, CallStatus.ERROR, error.message)
                raise
            except asyncio.CancelledError:  # the service stops
                await self._recorder.record(exchange, CallStatus.CANCELLED, None)
                raise
            return EventStream(
                self._events(exchange, opening, events),
                exchange.headers(),
                on_gone=lambda: self._recorder.record(exchange, CallStatus.CANCELLED, None),
                release=stack.pop_all(),
            )

    def _open(self, ask: Ask, options: Options, tenant: str | None) -> Exchange:
        asked = Asked(
            messages=ask.messages,
            request=ask.record,
            continues=ask.continues,
            session=options.session,
            user=ask.user or ask.metadata.user,
            tenant=tenant,
            task=ask.metadata.task,
            reference=ask.metadata.reference,
            grader=ask.metadata.grader,
            learn=options.learn,
            record=options.record,
            retry_key=options.retry_key,
            is_retry=options.is_retry,
        )
        capture = Capture()
        return Exchange(
            ask=ask,
            options=options,
            placing=self._placement.placing(asked),
            adapter=self._resolve(ask.model),
            capture=capture,
            reply=ask.reply(capture),
        )

    async def _read(self, dialect: Dialect, body: dict[str, Any], find_call: FindCall) -> Ask:
        """Read a request, which may name an answer that was given a moment ago."""
        try:
            return dialect.read(body, find_call)
        except DenizenError:
            if self._placement.is_settled:
                raise
            await self._placement.settled()
            return dialect.read(body, find_call)

    def _is_placed_first(self, exchange: Exchange) -> bool:
        """Say whether a request's place decides what the engine is asked, or which engine."""
        is_pinned = self._pins is not None and exchange.ask.model == LIVE_NAME
        by_place = self._slot.is_fleet and exchange.options.session is None
        return is_pinned or by_place or self._prompts.is_wanted(exchange)

    async def _plain(
        self, request: Request, exchange: Exchange, lease: Lease, upstream: dict[str, Any]
    ) -> Response:
        path = exchange.ask.path
        answer = await unless_gone(request.receive, lease.client.chat(upstream, path))
        if answer is None:
            return await self._left(exchange)
        exchange.capture.absorb(answer)
        view = exchange.reply.body(answer)
        metrics.FIRST_BYTE.observe((utc_now() - exchange.started_at).total_seconds())
        await self._recorder.find_place(exchange)
        safe = self._recorder.keep(exchange, CallStatus.OK, None)
        response = Response(
            orjson.dumps(view), media_type="application/json", headers=exchange.headers()
        )
        if safe is not None:
            await safe
        return response

    async def _left(self, exchange: Exchange) -> Response:
        """Record an answer that nobody waits for any more."""
        await self._recorder.record(exchange, CallStatus.CANCELLED, None)
        return Response(status_code=CLIENT_CLOSED)

    async def _events(
        self, exchange: Exchange, opening: bytes, events: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        """Yield what the client sees; record before the last of it."""
        metrics.FIRST_BYTE.observe((utc_now() - exchange.started_at).total_seconds())
        try:
            if opening:
                yield opening
            async for raw in events:
                if shown := exchange.absorb(raw):
                    yield shown
        except (EngineError, UnavailableError) as error:
            await self._recorder.record(exchange, CallStatus.ERROR, error.message)
            yield b"".join(exchange.reply.failure(error))
            return
        await self._recorder.record(exchange, CallStatus.OK, None)
        yield b"".join(exchange.reply.end())


async def _first(events: AsyncIterator[bytes]) -> bytes:
    try:
        return await anext(events)
    except StopAsyncIteration:
        raise EngineError("the engine ended the stream before its first chunk") from None


async def _close(events: AsyncIterator[bytes]) -> None:
    """Close the upstream connection, by which the engine stops computing."""
    if isinstance(events, AsyncGenerator):
        await events.aclose()
