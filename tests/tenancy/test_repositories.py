"""One contract, three stores: in memory, SQLite and PostgreSQL."""

import random
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from itertools import combinations
from uuid import UUID, uuid4

import pytest

from tenancy import api_keys, tenants
from tenancy.entities import (
    DEFAULT_PLAN_LIMITS,
    Limits,
    Plan,
    TenantStatus,
)
from tenancy.errors import NotFoundError, SlugTakenError
from tenancy.quotas import MAX_LIMIT
from tenancy.usage import UsageGroup, UsageQuery, UsageTotal
from tests.support.tenancy import NOW, add_key, add_tenant, usage_row


async def revision(store):
    async with store.reading() as repos:
        return await repos.revision()


async def test_a_new_store_has_the_default_plan_and_nothing_else(store):
    async with store.reading() as repos:
        assert await repos.plans.get("default") == Plan("default", DEFAULT_PLAN_LIMITS)
        assert await repos.plans.get("none") is None
        assert await repos.tenants.all() == ()
        assert await repos.keys.all() == ()
        assert await repos.revision() == 0
        assert await repos.usage.totals(UsageQuery()) == ()


async def test_tenants_come_back_equal(store):
    full = Limits(1, 2, MAX_LIMIT, 4, 5, 6, 7)
    tenant = await add_tenant(store, "acme", weight_milli=2_500)
    changed = replace(
        tenant, weight_milli=1, status=TenantStatus.SUSPENDED, generation=2**62, limits=full
    )
    async with store.transaction() as repos:
        assert await repos.tenants.by_id(tenant.id) == tenant
        await repos.tenants.update(changed)
        assert await repos.tenants.by_id(tenant.id) == changed
    async with store.reading() as repos:
        assert await repos.tenants.by_slug("acme") == changed
        assert await repos.tenants.by_slug("other") is None
        assert await repos.tenants.by_id(uuid4()) is None
        assert await repos.tenants.all() == (changed,)


async def test_identity_slug_and_creation_never_change(store):
    tenant = await add_tenant(store)
    other = replace(tenant, slug="renamed", created_at=NOW + timedelta(days=1), weight_milli=7)
    async with store.transaction() as repos:
        await repos.tenants.update(other)
        assert await repos.tenants.by_id(tenant.id) == replace(tenant, weight_milli=7)


async def test_tenants_are_listed_oldest_first(store):
    for slug, minutes in (("c", 2), ("b", 1), ("a", 1)):
        await add_tenant(store, slug, now=NOW + timedelta(minutes=minutes))
    async with store.reading() as repos:
        assert [tenant.slug for tenant in await repos.tenants.all()] == ["a", "b", "c"]


async def test_a_slug_is_taken_once(store):
    await add_tenant(store, "acme")
    with pytest.raises(SlugTakenError, match="acme"):
        await add_tenant(store, "acme")
    assert await revision(store) == 1


async def test_what_does_not_exist_cannot_be_written_to(store):
    tenant = await add_tenant(store)
    key, _ = api_keys.mint(uuid4(), now=NOW)

    async def refuses(kind, write):
        with pytest.raises(NotFoundError) as caught:
            async with store.transaction() as repos:
                await write(repos)
        assert caught.value.kind == kind

    await refuses("plan", lambda repos: tenants.create(repos, "b", now=NOW, plan="gold"))
    await refuses("plan", lambda repos: repos.tenants.update(replace(tenant, plan="gold")))
    await refuses("tenant", lambda repos: repos.tenants.update(replace(tenant, id=uuid4())))
    await refuses("tenant", lambda repos: repos.keys.add(key, b"", 1))
    await refuses("key", lambda repos: repos.keys.update(key))
    await refuses("key", lambda repos: repos.keys.set_revoked(key.id, NOW))
    assert await revision(store) == 1


async def test_keys_come_back_equal(store):
    tenant, other = await add_tenant(store, "a"), await add_tenant(store, "b")
    first, _ = await add_key(store, tenant, name="first", expires_at=NOW + timedelta(days=1))
    second, _ = await add_key(store, tenant, now=NOW + timedelta(seconds=1))
    third, _ = await add_key(store, other, now=NOW + timedelta(seconds=2))
    async with store.transaction() as repos:
        assert await repos.keys.get(first.id) == first
        assert await repos.keys.get("nothing") is None
        assert await repos.keys.all() == (first, second, third)
        assert await repos.keys.all(tenant.id) == (first, second)
        assert await repos.keys.all(uuid4()) == ()
        limited = replace(first, name="new", expires_at=None, limits=Limits(rpm=2))
        await repos.keys.update(limited)
        assert await repos.keys.get(first.id) == limited


async def test_key_ids_differ_by_case(store):
    """Base62 tells upper from lower case; so must the database."""
    tenant = await add_tenant(store)
    key, _ = api_keys.mint(tenant.id, now=NOW)
    async with store.transaction() as repos:
        await repos.keys.add(replace(key, id="abcdefghij"), bytes(32), 1)
        await repos.keys.add(replace(key, id="ABCDEFGHIJ"), bytes(32), 1)
        assert len(await repos.keys.all()) == 2
        assert await repos.keys.get("Abcdefghij") is None


async def test_a_key_is_revoked_once_and_for_good(store):
    key, _ = await add_key(store, await add_tenant(store))
    async with store.transaction() as repos:
        assert await repos.keys.set_revoked(key.id, NOW) == replace(key, revoked_at=NOW)
    async with store.transaction() as repos:
        again = await repos.keys.set_revoked(key.id, NOW + timedelta(days=1))
        assert again.revoked_at == NOW
        await repos.keys.update(key)  # a value read before the revocation
        assert await repos.keys.get(key.id) == replace(key, revoked_at=NOW)


async def test_a_credential_joins_all_that_authentication_needs(store):
    tenant = await add_tenant(store)
    key, text = await add_key(store, tenant)
    async with store.reading() as repos:
        found = await repos.keys.credential(key.id)
        assert await repos.keys.credential("unknown000") is None
    assert (found.key, found.tenant) == (key, tenant)
    assert found.plan == Plan("default", DEFAULT_PLAN_LIMITS)
    assert found.digest == api_keys.digest(bytes(range(32)), text)
    assert found.revision == await revision(store) == 2
    assert repr(found.digest) not in repr(found)


async def test_every_directory_write_raises_the_revision_and_usage_does_not(store):
    tenant = await add_tenant(store)
    key, _ = await add_key(store, tenant)
    writes = (
        lambda repos: repos.tenants.update(tenant),
        lambda repos: repos.keys.update(key),
        lambda repos: repos.keys.set_revoked(key.id, NOW),
    )
    for write in writes:
        before = await revision(store)
        async with store.transaction() as repos:
            await write(repos)
        assert await revision(store) == before + 1
    async with store.transaction() as repos:
        await repos.lock_directory()
        await repos.usage.insert([usage_row()])
    assert await revision(store) == before + 1


async def test_a_transaction_is_all_or_nothing(store):
    class Stop(Exception):  # noqa: N818 - no error
        pass

    async def interrupted():
        async with store.transaction() as repos:
            await tenants.create(repos, "acme", now=NOW)
            await repos.usage.insert([usage_row()])
            raise Stop

    with pytest.raises(Stop):
        await interrupted()
    async with store.reading() as repos:
        assert await repos.tenants.all() == ()
        assert await repos.usage.totals(UsageQuery()) == ()
        assert await repos.revision() == 0


async def test_reading_keeps_nothing(store):
    async with store.reading() as repos:
        await tenants.create(repos, "acme", now=NOW)
    async with store.reading() as repos:
        assert await repos.tenants.all() == ()


async def test_moments_keep_their_instant_in_utc(store):
    paris = timezone(timedelta(hours=5, minutes=45))
    ends = datetime(2027, 1, 1, 1, 30, 0, 7, tzinfo=paris)
    key, _ = await add_key(store, await add_tenant(store), expires_at=ends)
    async with store.reading() as repos:
        found = await repos.keys.get(key.id)
    assert found.expires_at == ends
    assert found.created_at == NOW
    assert found.created_at.utcoffset() == timedelta()


# --- usage ---------------------------------------------------------------------------------------


async def insert(store, *rows):
    async with store.transaction() as repos:
        await repos.usage.insert(rows)


async def totals(store, **query):
    async with store.reading() as repos:
        return await repos.usage.totals(UsageQuery(**query))


async def test_a_usage_row_is_written_once(store):
    row = usage_row(request_id="r", output_tokens=5)
    await insert(store, row)
    await insert(store, replace(row, output_tokens=900), usage_row(output_tokens=1))
    await insert(store, row, row)
    (total,) = await totals(store)
    assert (total.requests, total.output_tokens) == (2, 6)
    await insert(store, replace(row, attempt=2))
    (total,) = await totals(store)
    assert (total.requests, total.output_tokens) == (3, 11)
    await insert(store)


async def test_a_batch_that_repeats_itself_is_written_once(store):
    row = usage_row()
    await insert(store, row, row, replace(row, output_tokens=1))
    (total,) = await totals(store)
    assert (total.requests, total.output_tokens) == (1, 5)


async def test_unknown_cached_tokens_are_counted_apart(store):
    await insert(store, usage_row(cached_tokens=None), usage_row(cached_tokens=3))
    (total,) = await totals(store)
    assert (total.cached_tokens, total.requests_cache_unknown) == (3, 1)
    await insert(store, usage_row(tenant_id=UUID(int=2), cached_tokens=None))
    (total,) = await totals(store, tenant_id=UUID(int=2))
    assert (total.cached_tokens, total.requests_cache_unknown) == (0, 1)


async def test_without_groups_there_is_one_total(store):
    assert await totals(store, group_by=()) == (UsageTotal(None, None, None, None, 0, 0, 0, 0, 0),)
    await insert(store, usage_row(), usage_row(tenant_id=UUID(int=2)))
    assert await totals(store, group_by=()) == (
        UsageTotal(None, None, None, None, 2, 20, 0, 10, 0),
    )


async def test_days_are_utc_and_windows_half_open(store):
    midnight = datetime(2026, 11, 15, tzinfo=UTC)
    last = midnight - timedelta(microseconds=1)
    await insert(store, usage_row(created_at=midnight), usage_row(created_at=last))
    by_day = await totals(store, group_by=(UsageGroup.DAY,))
    assert [(t.day, t.requests) for t in by_day] == [
        (date(2026, 11, 14), 1),
        (date(2026, 11, 15), 1),
    ]
    (after,) = await totals(store, start=midnight, group_by=(UsageGroup.DAY,))
    assert after.day == date(2026, 11, 15)
    (before,) = await totals(store, end=midnight, group_by=(UsageGroup.DAY,))
    assert before.day == date(2026, 11, 14)
    assert await totals(store, start=midnight, end=midnight) == ()


def random_rows(seed, count):
    source = random.Random(seed)
    start = datetime(2026, 11, 1, tzinfo=UTC)
    return [
        usage_row(
            tenant_id=UUID(int=source.randrange(1, 4)),
            key_id=f"KEY000000{source.randrange(3)}",
            model=source.choice(["a", "b"]),
            prompt_tokens=source.randrange(2**40),
            cached_tokens=source.choice([None, source.randrange(100)]),
            output_tokens=source.randrange(1_000),
            created_at=start + timedelta(seconds=source.randrange(3 * 86_400)),
        )
        for _ in range(count)
    ]


def naive(rows, group_by):
    """The sums, straight from the rows."""
    fields = {"tenant": "tenant_id", "key": "key_id", "model": "model"}
    found = {}
    for row in rows:
        key = tuple(
            row.created_at.date() if group == "day" else getattr(row, fields[group])
            for group in group_by
        )
        sums = found.setdefault(key, [0, 0, 0, 0, 0])
        unknown = row.cached_tokens is None
        values = (1, row.prompt_tokens, row.cached_tokens or 0, row.output_tokens, int(unknown))
        for position, value in enumerate(values):
            sums[position] += value
    return [(*key, *found[key]) for key in sorted(found)]


async def test_sums_equal_the_naive_ones_for_every_grouping(store):
    rows = random_rows(seed=7, count=300)
    await insert(store, *rows)
    every = [groups for size in (1, 2, 3, 4) for groups in combinations(UsageGroup, size)]
    fields = {"tenant": "tenant_id", "key": "key_id", "model": "model", "day": "day"}
    sums = ("requests", "prompt_tokens", "cached_tokens", "output_tokens", "requests_cache_unknown")
    for group_by in every:
        found = await totals(store, group_by=group_by)
        names = [fields[group] for group in group_by] + list(sums)
        assert [tuple(getattr(total, name) for name in names) for total in found] == naive(
            rows, group_by
        )
        assert all(type(total.prompt_tokens) is int for total in found)
