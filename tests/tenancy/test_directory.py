"""From a key's id and digest to a context, or the reason why not."""

from datetime import timedelta

import pytest

from tenancy import api_keys, directory, tenants
from tenancy.directory import Refusal
from tenancy.entities import EffectiveLimit, TenantStatus
from tests.support.tenancy import NOW, PEPPER, add_key, add_tenant


async def load(store, key_id, text, now=NOW):
    async with store.reading() as repos:
        digest = api_keys.digest(PEPPER.value, text)
        return await directory.load_context(repos, key_id, digest, now)


@pytest.fixture
async def tenant(store):
    return await add_tenant(store, "acme", weight_milli=2_000)


async def test_a_key_gives_its_tenants_context(store, tenant):
    key, text = await add_key(store, tenant)
    async with store.transaction() as repos:
        await tenants.change_limits(repos, "acme", {"rpm": 60})
        await tenants.change_limits(repos, "acme", {"rpm": 2, "max_output": 1_000}, key.id)
    found = await load(store, key.id, text)
    assert (found.tenant_id, found.tenant_slug, found.weight_milli) == (tenant.id, "acme", 2_000)
    assert (found.key_id, found.generation) == (key.id, 1)
    assert found.limits.rpm == EffectiveLimit(60, "tenant")
    assert found.key_limits.rpm == EffectiveLimit(2, "key")
    assert found.limits.tpm == found.key_limits.tpm == EffectiveLimit(200_000, "plan")
    assert found.key_limits.max_output == EffectiveLimit(512, "plan")
    async with store.reading() as repos:
        assert found.revision == await directory.revision(repos) == 4


async def test_no_key_but_the_right_one(store, tenant):
    key, text = await add_key(store, tenant)
    _, other = await add_key(store, tenant)
    assert await load(store, key.id, other) is Refusal.MISMATCH
    assert await load(store, "unknown000", text) is Refusal.UNKNOWN
    async with store.reading() as repos:
        assert await directory.load_context(repos, "unknown000", bytes(32), NOW) is Refusal.UNKNOWN
        assert await directory.load_context(repos, key.id, bytes(32), NOW) is Refusal.MISMATCH
        assert await directory.load_context(repos, key.id, b"", NOW) is Refusal.MISMATCH


async def test_revoked_and_expired_keys(store, tenant):
    key, text = await add_key(store, tenant, expires_at=NOW + timedelta(hours=1))
    assert (await load(store, key.id, text)).key_expires_at == NOW + timedelta(hours=1)
    assert await load(store, key.id, text, NOW + timedelta(hours=1)) is Refusal.EXPIRED
    async with store.transaction() as repos:
        await repos.keys.set_revoked(key.id, NOW)
    assert await load(store, key.id, text) is Refusal.REVOKED
    assert await load(store, key.id, text + "x") is Refusal.MISMATCH  # says nothing of the state


async def test_a_suspended_tenant_is_still_known(store, tenant):
    key, text = await add_key(store, tenant)
    async with store.transaction() as repos:
        await tenants.set_status(repos, "acme", TenantStatus.SUSPENDED)
    assert (await load(store, key.id, text)).tenant_status is TenantStatus.SUSPENDED
