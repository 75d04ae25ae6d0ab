"""Hashes of how prompts begin: equal only under one key, one namespace and one beginning."""

from gateway.beginnings import MOST, STEP_TOKENS, beginnings
from gateway.engines.request import CacheIdentity
from gateway.queue import PoolQueue

KEY = b"k" * 32
PROMPT = tuple(range(1_000))


def hashes(prompt, namespace="mine", key=KEY, *, enabled=True):
    return beginnings(key, CacheIdentity(namespace, "owner", 1_000, enabled), prompt)


def test_they_are_few_small_and_all_different():
    found = hashes(PROMPT)
    assert len(set(found)) == len(found) == MOST
    assert max(found) < 2**52
    assert max(found).bit_length() > 40


def test_prompts_share_as_many_as_their_common_beginning_has():
    for shared in (0, 1, 63, 64, 65, 127, 128, 300, 512, 700):
        other = PROMPT[:shared] + tuple(range(5_000, 5_000 + 1_000 - shared))
        same = [mine == theirs for mine, theirs in zip(hashes(PROMPT), hashes(other), strict=True)]
        whole = min(MOST, shared // STEP_TOKENS)
        assert same == [True] * whole + [False] * (MOST - whole)


def test_a_longer_prompt_continues_a_shorter_ones():
    for length in (64, 128, 200, 511, 512):
        assert hashes(PROMPT[:length]) == hashes(PROMPT)[: length // STEP_TOKENS]
    assert len(hashes(PROMPT[:5])) == 1
    assert hashes(PROMPT[:5]) != hashes(PROMPT[:6])


def test_nobody_shares_across_namespaces_or_keys_or_without_a_cache():
    assert not set(hashes(PROMPT)) & set(hashes(PROMPT, namespace="theirs"))
    assert not set(hashes(PROMPT)) & set(hashes(PROMPT, key=b"o" * 32))
    assert hashes(PROMPT, enabled=False) == ()


async def test_a_request_brings_them_into_the_queue(gateway, monkeypatch):
    tickets, enqueue = [], PoolQueue.enqueue
    body = {"model": "smollm2-135m", "prompt": [5] * 200, "max_tokens": 1}

    def watched(self, ticket):
        tickets.append(ticket)
        enqueue(self, ticket)

    monkeypatch.setattr(PoolQueue, "enqueue", watched)
    _, other = await gateway.new_tenant("other")
    for key, fields in (
        (gateway.key, {}),
        (gateway.key, {}),
        (gateway.key, {"cache_scope": "x"}),
        (other, {}),
        (other, {"cache": "off"}),
    ):
        async with gateway.client(key).post("/v1/completions", json=body | fields) as reply:
            assert reply.status == 200
    first, again, scoped, theirs, off = [(ticket.affinity, ticket.prefix) for ticket in tickets]
    assert first == again
    assert len(first[1]) == 3
    assert first[0] == first[1][0]
    assert off == (0, ())
    assert len({first, scoped, theirs}) == 3
