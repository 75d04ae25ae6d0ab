"""The first tenant is made once, however many start."""

import asyncio

import pytest

from tenancy import api_keys, directory
from tenancy.bootstrap import ensure_first_tenant
from tenancy.entities import TenantContext
from tenancy.keyring import Keyring
from tests.support.tenancy import NOW, add_tenant


@pytest.fixture
def keyring(tmp_path):
    return Keyring.create(tmp_path / "keyring.json")


async def test_the_first_start_makes_a_tenant_and_its_key(store, keyring):
    tenant, text = await ensure_first_tenant(store, keyring)
    assert tenant.slug == "default"
    async with store.reading() as repos:
        digest = api_keys.digest(keyring.pepper.value, text)
        found = await directory.load_context(repos, api_keys.parse(text).id, digest, NOW)
    assert isinstance(found, TenantContext)
    assert found.tenant_id == tenant.id
    assert await ensure_first_tenant(store, keyring) == (tenant, None)


async def test_a_deployment_with_tenants_gets_none(store, keyring):
    acme = await add_tenant(store, "acme")
    assert await ensure_first_tenant(store, keyring) == (acme, None)
    default = await add_tenant(store, "default")
    assert await ensure_first_tenant(store, keyring) == (default, None)


async def test_starts_at_once_make_one(store, keyring):
    found = await asyncio.gather(*(ensure_first_tenant(store, keyring) for _ in range(5)))
    assert len({tenant.id for tenant, _ in found}) == 1
    assert len([text for _, text in found if text is not None]) == 1
    async with store.reading() as repos:
        assert len(await repos.tenants.all()) == 1
        assert len(await repos.keys.all()) == 1
