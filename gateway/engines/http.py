"""The engine client over HTTP, on a unix socket (a path, with or without `unix:`) or a URL.

Connections are pooled without a limit (a limit would be a queue outside the fair one), and one is
reused only after its answer was read to the end: a cancelled call discards its connection.
"""

import asyncio
import errno
import logging
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson

from fairness.types import ReplicaCapacity
from gateway.engines.events import EventReader
from gateway.engines.port import (
    EngineBroken,
    EngineCapacity,
    EngineEvent,
    EngineRefused,
    EngineStream,
    EngineTimeout,
    EngineUnreachable,
)

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 2.0
PROBE_TIMEOUT_S = 2.0
PROBE_TIMEOUT = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
# An engine confirms an abort after its current step, which may take longer than a probe.
ABORT_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
# Below the idle timeout of uvicorn (5 s), so that the engine never closes under a new request.
KEEP_ALIVE_S = 3.0
# Why a connection fails while the engine is there: we are out of descriptors or memory, or its
# backlog is full. Were it taken for a lost replica, many clients at once could end all streams.
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN})
MAX_ERROR_BYTES = 64 * 1024
END_OF_BODY_S = 0.25


class HttpEngine:
    """One replica behind HTTP; must be made inside the running event loop."""

    def __init__(self, address: str, *, read_timeout_s: float) -> None:
        connector: aiohttp.BaseConnector
        if address.startswith(("http://", "https://")):
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
            self._base = address.rstrip("/")
        else:
            path = address.removeprefix("unix:")
            connector = aiohttp.UnixConnector(path, limit=0, keepalive_timeout=KEEP_ALIVE_S)
            self._base = "http://engine"
        self._name = address
        self._completions = f"{self._base}/v1/completions"
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=read_timeout_s
            ),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
            trust_env=False,
        )

    @property
    def name(self) -> str:
        """The address itself."""
        return self._name

    async def start(self, body: bytes, headers: Mapping[str, str], choices: int) -> EngineStream:
        """POST the request and wait for the response's headers. Raises EngineError."""
        response = await _guarded(
            self._session.post(
                self._completions,
                data=body,
                headers={"Content-Type": "application/json", **headers},
                allow_redirects=False,
            )
        )
        if response.status != 200:
            raise await _refusal(response)
        return HttpStream(response, choices)

    async def abort(self, request_id: str) -> None:
        """POST /abort/{id}; a 404 means it is over already. The caller bounds the wait."""
        await self._read(
            "POST",
            f"/abort/{request_id}",
            accept=frozenset({200, 202, 204, 404}),
            within=ABORT_TIMEOUT,
        )

    async def health(self) -> None:
        """GET /health; returns if the engine can work. Raises EngineError."""
        await self._read("GET", "/health")

    async def capacity(self) -> EngineCapacity:
        """GET /capacity."""
        raw = await self._read("GET", "/capacity")
        try:
            data: dict[str, Any] = orjson.loads(raw)
            return EngineCapacity(
                replica=ReplicaCapacity(
                    slots=int(data["slots"]),
                    kv_tokens=int(data["kv_tokens"]["total"]),
                    block_size=int(data["block_size"]),
                ),
                max_model_len=int(data["max_model_len"]),
                model=str(data["model"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise EngineBroken("the capacity report cannot be read") from error

    async def metrics(self) -> bytes:
        """GET /metrics."""
        return await self._read("GET", "/metrics")

    async def close(self) -> None:
        """Close the pool."""
        await self._session.close()

    async def _read(
        self,
        method: str,
        path: str,
        accept: frozenset[int] = frozenset({200}),
        within: aiohttp.ClientTimeout = PROBE_TIMEOUT,
    ) -> bytes:
        response = await _guarded(
            self._session.request(
                method, f"{self._base}{path}", timeout=within, allow_redirects=False
            )
        )
        try:
            if response.status not in accept:
                raise await _refusal(response)
            body: bytes = await _guarded(response.read())
        finally:
            response.release()
        return body


class HttpStream:
    """Events of one response; totals may only grow, so a late or repeated event does no harm."""

    def __init__(self, response: aiohttp.ClientResponse, choices: int) -> None:
        self._response = response
        self._reader = EventReader(choices)

    async def next(self) -> list[EngineEvent]:
        """Wait for at least one event; an empty list after `[DONE]`."""
        reader = self._reader
        while not reader.done:
            if reader.failure is not None:
                raise reader.failure
            chunk = await _guarded(self._response.content.readany())
            if not chunk:
                raise EngineBroken("the stream ended without [DONE]")
            events = reader.feed(chunk)
            if events:
                return events
        return []

    async def finish(self) -> None:
        """Read the end of the body so that the connection can be reused, or drop it."""
        content = self._response.content
        if not content.at_eof():
            try:
                async with asyncio.timeout(END_OF_BODY_S):
                    while not content.at_eof():
                        await content.readany()
            except (TimeoutError, aiohttp.ClientError) as error:
                log.debug("connection not reused: %s", type(error).__name__)
        self._response.close()

    def kill(self) -> None:
        """Close the connection under any reader."""
        self._response.close()


async def _refusal(response: aiohttp.ClientResponse) -> EngineRefused:
    """The engine's error object, read within bounds and reduced to what may be shown on."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            raw = await response.content.read(MAX_ERROR_BYTES)
        error = orjson.loads(raw)["error"]
        message, code = str(error["message"]), error.get("code")
    except (TimeoutError, aiohttp.ClientError, ValueError, KeyError, TypeError, AttributeError):
        message, code = "", None
    finally:
        response.close()
    return EngineRefused(response.status, message, code if isinstance(code, str) else None)


async def _guarded(call: Any) -> Any:
    """Await an aiohttp call with its failures turned into this port's."""
    try:
        return await call
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        if getattr(error, "errno", None) in SHORTAGES:
            raise EngineBroken("no connection could be afforded") from error
        raise EngineUnreachable("no connection") from error
    except TimeoutError as error:
        raise EngineTimeout("no answer in time") from error
    except (aiohttp.ClientError, ConnectionError) as error:
        raise EngineBroken("the connection broke") from error
