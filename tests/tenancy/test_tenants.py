"""Administering tenants, keys and limits, on every store."""

from datetime import timedelta
from uuid import uuid4

import pytest

from tenancy import tenants
from tenancy.entities import Limits, TenantStatus
from tenancy.errors import InvalidValueError, NotFoundError
from tests.support.tenancy import NOW, PEPPER, add_key, add_tenant


async def change_limits(store, *args, **changes):
    async with store.transaction() as repos:
        return await tenants.change_limits(repos, *args, **changes)


async def test_create_and_find_by_slug_or_uuid(store):
    tenant = await add_tenant(store, "acme", weight_milli=3_000)
    assert (tenant.status, tenant.plan, tenant.generation) == (TenantStatus.ACTIVE, "default", 1)
    async with store.reading() as repos:
        assert await tenants.find(repos, "acme") == tenant
        assert await tenants.find(repos, str(tenant.id)) == tenant
        for unknown in ("nobody", str(uuid4()), ""):
            with pytest.raises(NotFoundError):
                await tenants.find(repos, unknown)


@pytest.mark.parametrize("slug", ["a", "a-b", "0", "a" * 63, "x--y"])
def test_slugs_that_are_fine(slug):
    assert tenants.checked_slug(slug) == slug


@pytest.mark.parametrize(
    "slug",
    ["", "-a", "a-", "A", "a b", "a_b", "ä", "a" * 64, "a\n", "../x", str(uuid4()), uuid4().hex],
)
def test_slugs_that_are_not(slug):
    with pytest.raises(InvalidValueError, match="slug"):
        tenants.checked_slug(slug)


@pytest.mark.parametrize("weight", [0, -1, 1_000_001, 10**30])
def test_weights_out_of_range(weight):
    with pytest.raises(InvalidValueError, match="weight"):
        tenants.checked_weight(weight)


async def test_change_sets_only_what_is_given(store):
    tenant = await add_tenant(store)
    async with store.transaction() as repos:
        changed = await tenants.change(repos, "acme", weight_milli=2_000)
    assert changed.weight_milli == 2_000
    async with store.transaction() as repos:
        assert await tenants.change(repos, str(tenant.id), plan="default") == changed
    with pytest.raises(InvalidValueError):
        async with store.transaction() as repos:
            await tenants.change(repos, "acme", weight_milli=0)


async def test_suspend_and_resume(store):
    await add_tenant(store)
    for status in (TenantStatus.SUSPENDED, TenantStatus.SUSPENDED, TenantStatus.ACTIVE):
        async with store.transaction() as repos:
            await tenants.set_status(repos, "acme", status)
        async with store.reading() as repos:
            assert (await tenants.find(repos, "acme")).status is status


async def test_limits_are_merged_and_cleared(store):
    await add_tenant(store)
    await change_limits(store, "acme", {"rpm": 2, "tpm": 100})
    tenant, key = await change_limits(store, "acme", {"rpm": None, "concurrency": 1})
    assert key is None
    assert tenant.limits == Limits(tpm=100, concurrency=1)
    with pytest.raises(InvalidValueError, match="rpm"):
        await change_limits(store, "acme", {"rpm": 0})


async def test_limits_of_a_key_are_its_own(store):
    owner = await add_tenant(store)
    key, _ = await add_key(store, owner)
    await add_tenant(store, "other")
    tenant, limited = await change_limits(store, "acme", {"rpm": 2}, key.id)
    assert limited.limits == Limits(rpm=2)
    assert tenant == owner
    for slug, key_id in (("other", key.id), ("acme", "unknown000"), ("nobody", key.id)):
        with pytest.raises(NotFoundError):
            await change_limits(store, slug, {"rpm": 2}, key_id)


async def test_keys_are_checked_before_they_are_made(store):
    tenant = await add_tenant(store)
    for wrong in ({"expires_at": NOW}, {"expires_at": NOW - timedelta(days=1)}):
        with pytest.raises(InvalidValueError, match="expires"):
            await add_key(store, tenant, **wrong)
    for name in ("x" * 65, "a\nb", "\x00"):
        with pytest.raises(InvalidValueError, match="name"):
            await add_key(store, tenant, name=name)
    async with store.reading() as repos:
        assert await repos.keys.all() == ()


async def test_the_text_of_a_key_is_not_stored(store):
    tenant = await add_tenant(store)
    async with store.transaction() as repos:
        key, text = await tenants.issue_key(repos, PEPPER, tenant, now=NOW)
        found = await repos.keys.credential(key.id)
    assert text.encode() not in found.digest
    assert len(found.digest) == 32


async def test_a_key_has_no_concurrency_of_its_own(store):
    key, _ = await add_key(store, await add_tenant(store))
    with pytest.raises(InvalidValueError, match="concurrency"):
        await change_limits(store, "acme", {"concurrency": 1}, key.id)
    await change_limits(store, "acme", {"concurrency": None, "rpm": 1}, key.id)
