"""From an `Authorization: Bearer` header to a `TenantContext`, honest about what it cannot know.

A cached snapshot serves while it is of the current revision; the revision is polled, so that any
administrative change, a revocation too, is live one poll later. 401 is said only when the store
itself said no: while it is silent, cached keys serve for `silence_s` and then everything is 503.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, TypeVar
from uuid import UUID

from gateway.errors import (
    AuthUnavailable,
    ConflictingCredentials,
    InvalidKey,
    MissingCredentials,
    TenantSuspended,
)
from tenancy import api_keys
from tenancy.entities import TenantContext, TenantStatus

log = logging.getLogger(__name__)

OTHER_CREDENTIALS = frozenset({b"x-api-key", b"api-key"})
BEARER = "bearer "
# A look-up slower than this counts as a store that is down; so does a poll.
STORE_TIMEOUT_S = 2.0
RETRY_AFTER_S = 1.0

T = TypeVar("T")
V = TypeVar("V")
RawHeaders = list[tuple[bytes, bytes]]


class StoreDown(Exception):  # noqa: N818 - a state, translated at once
    """The key store did not answer; nothing is known about the key."""


class KeyStore(Protocol):
    """What authentication reads. Both raise `StoreDown`."""

    async def revision(self) -> int:
        """The number of administrative writes so far."""

    async def load(self, key_id: str, digest: bytes) -> TenantContext | None:
        """The context of a live key with that digest, else None: an authoritative no."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A cached no, as of a revision: the next administrative write makes us ask again."""

    revision: int


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """Times in seconds; `cache_size` bounds positive and negative entries together each."""

    interval_s: float = 0.25
    silence_s: float = 10.0
    cache_size: int = 10_000
    max_lookups: int = 8


def bearer(headers: RawHeaders) -> str:
    """The one credential of a request. Raises MissingCredentials, ConflictingCredentials."""
    found = None
    others = False
    for name, value in headers:
        if name == b"authorization":
            if found is not None:
                raise ConflictingCredentials("More than one Authorization header was sent.")
            found = value
        elif name in OTHER_CREDENTIALS:
            others = True
    if found is None:
        raise MissingCredentials(
            "You didn't provide an API key. Send it in an Authorization header: Bearer YOUR_KEY."
        )
    if others:
        raise ConflictingCredentials("Send the API key in the Authorization header only.")
    text = found.decode("latin-1")
    if text[: len(BEARER)].lower() != BEARER:
        raise MissingCredentials("The Authorization header must have the form: Bearer YOUR_KEY.")
    return text[len(BEARER) :].strip()


class Authenticator:
    """Owns the snapshot cache and the revision poll; one per process, on the event loop."""

    def __init__(
        self,
        store: KeyStore,
        pepper: bytes,
        config: AuthConfig = AuthConfig(),
        *,
        clock: Callable[[], float] = time.monotonic,
        on_failure: Callable[[str], None] = lambda _reason: None,
        on_change: Callable[[TenantContext], None] = lambda _context: None,
        active_tenants: Callable[[], Collection[UUID]] = tuple,
    ) -> None:
        self._store = store
        self._pepper = pepper
        self._config = config
        self._clock = clock
        self._on_failure = on_failure
        self._on_change = on_change
        self._active_tenants = active_tenants
        self._cache: OrderedDict[bytes, TenantContext] = OrderedDict()
        self._refused: OrderedDict[bytes, Refused] = OrderedDict()
        self._lookups: dict[bytes, asyncio.Task[TenantContext | None]] = {}
        self._gate = asyncio.Semaphore(config.max_lookups)
        self._last_answer = clock()
        self._changed = asyncio.Event()
        self.revision = 0
        self.store_up = False

    # --- per request -------------------------------------------------------------------------

    async def authenticate(self, headers: RawHeaders) -> TenantContext:
        """Who calls. Raises the errors of `gateway.errors` for every way that can fail."""
        try:
            context = await self._identify(bearer(headers))
        except MissingCredentials:
            self._on_failure("missing")
            raise
        except ConflictingCredentials:
            self._on_failure("conflicting")
            raise
        except InvalidKey:
            self._on_failure("invalid")
            raise
        except AuthUnavailable:
            self._on_failure("unavailable")
            raise
        if context.tenant_status is not TenantStatus.ACTIVE:
            self._on_failure("suspended")
            raise TenantSuspended("This account is suspended. Contact the platform's operator.")
        return context

    async def _identify(self, text: str) -> TenantContext:
        parts = api_keys.parse(text)
        if parts is None:
            raise InvalidKey
        digest = api_keys.digest(self._pepper, text)
        self._require_live_store()
        context = self._cache.get(digest)
        while context is None or context.revision < self.revision:
            # Again if the read that we joined began before the change: a revocation is a change.
            context = await self._look_up(parts.id, digest)
        expires = context.key_expires_at
        if expires is not None and expires <= datetime.now(UTC):
            raise InvalidKey
        return context

    def _require_live_store(self) -> None:
        if self._clock() - self._last_answer > self._config.silence_s:
            raise _unavailable()

    async def _look_up(self, key_id: str, digest: bytes) -> TenantContext:
        """Ask the store once, however many requests with this key wait for the answer."""
        refused = self._refused.get(digest)
        if refused is not None and refused.revision >= self.revision:
            raise InvalidKey
        task = self._lookups.get(digest)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._load(key_id, digest))
            self._lookups[digest] = task
            task.add_done_callback(lambda _done: self._lookups.pop(digest, None))
        try:
            context = await asyncio.shield(task)
        except StoreDown as error:
            raise _unavailable() from error
        if context is None:
            raise InvalidKey
        return context

    async def _load(self, key_id: str, digest: bytes) -> TenantContext | None:
        before = self.revision
        async with self._gate:
            context = await self._ask(self._store.load(key_id, digest))
        if context is None:
            self._cache.pop(digest, None)
            _remember(self._refused, digest, Refused(before), self._config.cache_size)
            return None
        self._refused.pop(digest, None)
        known = self._cache.get(digest)
        if known is None or known.revision <= context.revision:
            # A slow read must not put an older snapshot over a newer one.
            _remember(self._cache, digest, context, self._config.cache_size)
            self._on_change(context)
        return context

    async def _ask(self, question: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                result = await question
        except (TimeoutError, StoreDown) as error:
            self.store_up = False
            raise StoreDown from error
        return result

    # --- in the background -------------------------------------------------------------------

    async def poll(self) -> None:
        """One look at the revision; a change makes every older snapshot stale at once."""
        try:
            revision = await self._ask(self._store.revision())
        except StoreDown:
            return
        self.store_up = True
        self._last_answer = self._clock()
        if revision != self.revision:
            self.revision = revision
            self._changed.set()

    async def refresh(self) -> None:
        """Re-read the snapshots in use now, so that weights and limits change without a request."""
        self._changed.clear()
        active = self._active_tenants()
        for digest, context in list(self._cache.items()):
            if context.tenant_id not in active:
                continue
            try:
                await self._load(context.key_id, digest)
            except StoreDown:
                return

    async def run(self) -> None:
        """Poll for ever; however long the snapshots of many tenants take, the poll is on time."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._keep_polling())
            both.create_task(self._keep_refreshing())

    async def _keep_polling(self) -> None:
        while True:
            await self.poll()
            await asyncio.sleep(self._config.interval_s)

    async def _keep_refreshing(self) -> None:
        while True:
            await self._changed.wait()
            await self.refresh()


def _unavailable() -> AuthUnavailable:
    return AuthUnavailable(
        "The API key cannot be checked right now. Please retry.", retry_after_s=RETRY_AFTER_S
    )


def _remember(cache: OrderedDict[bytes, V], key: bytes, value: V, size: int) -> None:
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > size:
        cache.popitem(last=False)
