"""One granted request against its engine: start, retry before the first event, relay, abort.

A request may go to another replica only while no engine has begun it. Once an event arrived the
answer belongs to that engine, and its failure ends the request. Every early end is confirmed with
the engine, so that the credit returns when the place is really free and the bill is exact.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.protocol.errors import InvalidRequest
from gateway.engines.port import (
    EngineBroken,
    EngineClient,
    EngineError,
    EngineEvent,
    EngineRefused,
    EngineStream,
    EngineTimeout,
    EngineUnreachable,
)
from gateway.engines.request import CacheIdentity, completion_body
from gateway.errors import GatewayError, Overloaded, UpstreamFailed, UpstreamTimeout
from gateway.interrupt import Interrupt
from gateway.metering import Exchange
from gateway.queue import PoolQueue

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
BACKOFF_S = 0.05
# An engine answers an abort after its current step; a long prefill step on a CPU takes seconds.
ABORT_GRACE_S = 10.0


class ReplicaGone(Exception):  # noqa: N818 - an event
    """The replica was given up before it began the request, which waits again."""


@dataclass(frozen=True, slots=True)
class Upstreams:
    """The replicas of one pool; `suspect` reports one that takes no connection."""

    engines: Mapping[str, EngineClient]
    suspect: Callable[[str], None]


class Relay:
    """Drives one exchange; made for one handler task."""

    def __init__(
        self,
        exchange: Exchange,
        upstreams: Upstreams,
        cache: CacheIdentity,
        *,
        on_granted: Callable[[], None],
        headers: Callable[[], dict[str, str]],
    ) -> None:
        self._exchange = exchange
        self._queue: PoolQueue = exchange.queue
        self._upstreams = upstreams
        self._cache = cache
        self._on_granted = on_granted
        self._headers = headers
        self._attempts = 0
        self._client: EngineClient | None = None
        self._stream: EngineStream | None = None
        self._engine_id = exchange.request_id
        self.finish_reasons: dict[int, str] = {}

    @property
    def ended(self) -> bool:
        """Whether every choice has its finish reason."""
        return len(self.finish_reasons) == self._exchange.ticket.sequences

    async def first(self) -> list[EngineEvent]:
        """Wait for the grant and the engine's first events.

        Raises GatewayError and InvalidRequest; nothing has been sent to the client by then.
        """
        while True:
            replica = await self._exchange.ticket.granted
            if self._exchange.ticket.replica != replica:
                continue  # lost between the grant and our turn: it waits again
            self._on_granted()
            try:
                return await self._attempt(replica)
            except ReplicaGone:
                self._drop()
            except EngineUnreachable:
                self._exchange.ticket.sent = False
                self._upstreams.suspect(replica)
            except EngineRefused as refusal:
                await self._retry(replica, _refused(refusal))
            except EngineTimeout:
                await self._retry(
                    replica, UpstreamTimeout("The model's server did not answer in time.")
                )
            except EngineBroken:
                await self._retry(
                    replica, UpstreamFailed("The model's server broke off before it answered.")
                )

    async def next(self) -> list[EngineEvent]:
        """Further events; an empty list at the end. Raises GatewayError."""
        if self._stream is None:
            raise RuntimeError("next() before first()")
        began = time.perf_counter()
        try:
            events = await self._stream.next()
        except EngineTimeout as error:
            raise UpstreamTimeout("The model's server stopped answering.") from error
        except EngineError as error:
            raise UpstreamFailed("The model's server failed while answering.") from error
        finally:
            self._exchange.upstream_s += time.perf_counter() - began
        self._count(events)
        return events

    async def finish(self) -> None:
        """After the end: let the connection be reused."""
        if self._stream is not None:
            await self._stream.finish()
            self._stream = None

    def close(self) -> None:
        """Hang up on an engine that still answers, which ends the request there; idempotent."""
        self._drop()

    async def abandon(self) -> None:
        """Stop the engine at once and take its last count; safe in every phase, never raises."""
        if self._client is None or not self._exchange.ticket.sent:
            return
        stream, self._stream = self._stream, None
        try:
            async with asyncio.timeout(ABORT_GRACE_S):
                await self._client.abort(self._engine_id)
                while stream is not None and (events := await stream.next()):
                    self._count(events)
        except (EngineError, TimeoutError) as error:
            # An aborted stream ends with an error event: its counts came before that.
            log.debug("request %s aborted: %s", self._engine_id, type(error).__name__)
        finally:
            if stream is not None:
                stream.kill()

    async def _attempt(self, replica: str) -> list[EngineEvent]:
        ticket = self._exchange.ticket
        self._client = self._upstreams.engines[replica]
        self._stream = None
        began = time.perf_counter()
        try:
            async with Interrupt() as attempt:
                ticket.lost = lambda: attempt.fire(ReplicaGone())
                ticket.sent = True
                self._stream = await self._client.start(
                    self._body(), self._headers(), ticket.sequences
                )
                events = await self._stream.next()
                if not events:
                    raise EngineBroken("the stream ended before it began")
        finally:
            ticket.lost = None
            self._exchange.upstream_s += time.perf_counter() - began
        ticket.lost = self._stream.kill
        self._queue.begun(ticket)
        self._count(events)
        return events

    async def _retry(self, replica: str, error: GatewayError | InvalidRequest) -> None:
        """Queue again under the same charge, or give up with `error`."""
        self._drop()
        self._exchange.ticket.sent = False  # whatever the engine did of it is lost
        self._attempts += 1
        if isinstance(error, InvalidRequest) or self._attempts >= MAX_ATTEMPTS:
            raise error
        self._engine_id = f"{self._exchange.request_id}.{self._attempts}"
        await asyncio.sleep(BACKOFF_S * self._attempts)
        if self._exchange.ticket.replica == replica:
            self._queue.requeue(self._exchange.ticket)

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.kill()
            self._stream = None

    def _body(self) -> bytes:
        admitted = self._exchange.admitted
        return completion_body(
            request_id=self._engine_id,
            model=admitted.prepared.model,
            prompt=admitted.prepared.prompt,
            max_tokens=admitted.max_tokens,
            sampling=admitted.prepared.sampling,
            cache=self._cache,
        )

    def _count(self, events: list[EngineEvent]) -> None:
        """Take the engine's counts; what it had cached may be said with the first or the last."""
        exchange = self._exchange
        for event in events:
            if event.cached_tokens is not None and exchange.cached_tokens is None:
                exchange.cached_tokens = min(event.cached_tokens, exchange.prompt_tokens)
                self._queue.cached(exchange.ticket, exchange.cached_tokens)
            if event.index is not None and event.finish_reason is not None:
                self.finish_reasons[event.index] = event.finish_reason
            if event.output_tokens is not None:
                # Nobody is billed for more than was asked for, whatever an engine says.
                counted = min(event.output_tokens, exchange.ticket.output_limit)
                exchange.output_tokens = max(exchange.output_tokens, counted)
        self._queue.emitted(exchange.ticket, exchange.output_tokens)


def _refused(refusal: EngineRefused) -> GatewayError | InvalidRequest:
    """An engine's error, re-shaped: a 4xx of ours is the client's, the rest is the upstream's."""
    if refusal.status == 400 and refusal.message:
        return InvalidRequest(refusal.message, code=refusal.code)
    if refusal.status in {429, 503}:
        return Overloaded("The model's server is overloaded. Please retry.", retry_after_s=1.0)
    return UpstreamFailed("The model's server refused the request.")
