"""What the authenticator says when the store says nothing, and how fresh its snapshots are."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from gateway.auth import AuthConfig, Authenticator, StoreDown
from gateway.errors import AuthUnavailable, InvalidKey
from tenancy import api_keys
from tenancy.entities import DEFAULT_PLAN_LIMITS, Limits, TenantContext, TenantStatus
from tenancy.quotas import effective

PEPPER = b"p" * 32


class Store:
    """A key store that can be silenced, and counts what it is asked."""

    def __init__(self):
        self.down = False
        self.revision_now = 1
        self.contexts = {}
        self.asked = 0
        self.wait = asyncio.Event()
        self.wait.set()

    async def revision(self):
        if self.down:
            raise StoreDown
        return self.revision_now

    async def load(self, key_id, digest):
        self.asked += 1
        found = self.contexts.get(digest)
        revision = self.revision_now
        await self.wait.wait()
        if self.down:
            raise StoreDown
        return None if found is None else replace(found, revision=revision)

    def add(self, **changes):
        key, text = api_keys.mint(uuid4(), now=datetime.now(UTC))
        limits = effective(DEFAULT_PLAN_LIMITS, Limits())
        context = TenantContext(
            tenant_id=key.tenant_id,
            tenant_slug="acme",
            tenant_status=TenantStatus.ACTIVE,
            generation=1,
            weight_milli=1000,
            key_id=key.id,
            key_expires_at=None,
            limits=limits,
            key_limits=limits,
            revision=0,
        )
        self.contexts[api_keys.digest(PEPPER, text)] = replace(context, **changes)
        return text


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def auth(store, clock):
    return Authenticator(store, PEPPER, AuthConfig(silence_s=10), clock=clock)


def ask(auth, text):
    return auth.authenticate([(b"authorization", b"Bearer " + text.encode())])


async def test_a_snapshot_serves_until_the_revision_changes(auth, store):
    text = store.add()
    await auth.poll()
    for _ in range(3):
        await ask(auth, text)
    assert store.asked == 1
    store.revision_now = 2
    store.contexts.clear()
    await ask(auth, text)
    await auth.poll()
    with pytest.raises(InvalidKey):
        await ask(auth, text)


async def test_a_silent_store_is_503_and_never_401(auth, store, clock):
    text = store.add()
    await auth.poll()
    await ask(auth, text)
    store.down = True
    clock.now = 9.0
    await auth.poll()
    await ask(auth, text)
    unknown = api_keys.mint(uuid4(), now=datetime.now(UTC))[1]
    with pytest.raises(AuthUnavailable) as refused:
        await ask(auth, unknown)
    assert refused.value.retry_after_s
    clock.now = 10.1
    with pytest.raises(AuthUnavailable):
        await ask(auth, text)
    assert not auth.store_up
    store.down = False
    await auth.poll()
    await ask(auth, text)


async def test_a_stale_snapshot_is_not_believed_while_the_store_is_down(auth, store):
    text = store.add()
    await auth.poll()
    await ask(auth, text)
    store.revision_now = 2
    await auth.poll()
    store.down = True
    with pytest.raises(AuthUnavailable):
        await ask(auth, text)


async def test_a_slow_read_does_not_bring_a_revoked_key_back(auth, store):
    text = store.add()
    await auth.poll()
    store.wait.clear()
    slow = asyncio.create_task(ask(auth, text))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    store.contexts.clear()
    store.revision_now = 2
    await auth.poll()
    joins = asyncio.create_task(ask(auth, text))
    await asyncio.sleep(0)
    store.wait.set()
    for call in (slow, joins, ask(auth, text)):
        with pytest.raises(InvalidKey):
            await call


async def test_an_unknown_key_is_asked_for_once_per_revision(auth, store):
    await auth.poll()
    unknown = api_keys.mint(uuid4(), now=datetime.now(UTC))[1]
    for _ in range(5):
        with pytest.raises(InvalidKey):
            await ask(auth, unknown)
    assert store.asked == 1
    store.revision_now = 2
    await auth.poll()
    with pytest.raises(InvalidKey):
        await ask(auth, unknown)
    assert store.asked == 2


async def test_many_at_once_ask_once(auth, store):
    text = store.add()
    await auth.poll()
    await asyncio.gather(*(ask(auth, text) for _ in range(50)))
    assert store.asked == 1


async def test_the_caches_are_bounded(store, clock):
    auth = Authenticator(store, PEPPER, AuthConfig(cache_size=3), clock=clock)
    await auth.poll()
    for _ in range(10):
        await ask(auth, store.add())
        with pytest.raises(InvalidKey):
            await ask(auth, api_keys.mint(uuid4(), now=datetime.now(UTC))[1])
    assert len(auth._cache) == 3
    assert len(auth._refused) == 3


async def test_a_cached_key_still_expires(auth, store):
    soon = datetime.now(UTC) + timedelta(milliseconds=50)
    text = store.add(key_expires_at=soon)
    await auth.poll()
    await ask(auth, text)
    await asyncio.sleep(0.06)
    with pytest.raises(InvalidKey):
        await ask(auth, text)


async def test_no_malformed_key_reaches_the_store(auth, store):
    await auth.poll()
    good = store.add()
    for text in ("", "x", good[:-1], good + "A", good.swapcase(), "eh_live_' OR 1=1 --"):
        with pytest.raises(InvalidKey):
            await ask(auth, text)
    assert store.asked == 0


async def test_a_slow_refresh_does_not_hold_up_the_next_revision(store):
    """Many snapshots take long to read again; a revocation meanwhile must not wait for them."""
    text = store.add()
    context = store.contexts[api_keys.digest(PEPPER, text)]
    auth = Authenticator(
        store, PEPPER, AuthConfig(interval_s=0.001), active_tenants=lambda: {context.tenant_id}
    )
    await auth.poll()
    await ask(auth, text)
    background = asyncio.get_running_loop().create_task(auth.run())
    store.wait.clear()
    asked, store.revision_now = store.asked, 2
    async with asyncio.timeout(10):
        while store.asked == asked:  # noqa: ASYNC110 - watches another's plain number
            await asyncio.sleep(0)
        store.revision_now = 3
        while auth.revision != 3:  # noqa: ASYNC110 - the same
            await asyncio.sleep(0)
    background.cancel()
    with pytest.raises(asyncio.CancelledError):
        await background
