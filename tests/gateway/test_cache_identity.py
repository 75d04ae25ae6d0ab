"""Every engine request carries its tenant's namespace; a client may narrow it, never widen."""

import re

BODY = {"model": "smollm2-135m", "prompt": [5] * 10, "max_tokens": 1}


async def salts(gateway, key=None, **fields):
    before = len(gateway.upstream.requests)
    async with gateway.client(key).post("/v1/completions", json=BODY | fields) as reply:
        assert reply.status == 200
    (sent,) = gateway.upstream.requests[before:]
    return sent["cache_salt"]


async def test_salts(gateway):
    _, other_key = await gateway.new_tenant("other")
    mine = await salts(gateway)
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", mine)
    assert await salts(gateway) == mine
    assert await salts(gateway, stream=True) == mine
    theirs = await salts(gateway, other_key)
    assert theirs != mine
    one, two = [await salts(gateway, cache_scope=scope) for scope in ("one", "two")]
    assert await salts(gateway, cache_scope="one") == one
    scoped_other = await salts(gateway, other_key, cache_scope="one")
    assert len({mine, theirs, one, two, scoped_other}) == 5


async def test_off_is_said_and_gets_a_namespace_nobody_else_has(gateway):
    first, second = [await salts(gateway, cache="off") for _ in range(2)]
    assert first != second
    assert [sent["cache"] for sent in gateway.upstream.requests] == ["off", "off"]
    assert await salts(gateway) not in {first, second}
    assert "cache" not in gateway.upstream.requests[-1]


async def test_owner_and_weight_are_the_tenants(gateway):
    other, key = await gateway.new_tenant("owner")
    await salts(gateway, key, cache_scope="x")
    sent = gateway.upstream.requests[-1]
    assert sent["cache_owner"] == str(other.id)
    assert sent["cache_weight"] == other.weight_milli
