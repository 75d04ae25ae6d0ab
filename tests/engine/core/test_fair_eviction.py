"""One tenant floods the cache with unique prompts; another's warm prefix must survive it.

Virtual time only orders the requests: each minute the flooding tenant sends ten times the pool,
then the other touches its prefix of 1,000 tokens once. The control gives both tenants one owner,
which is plain least-recently-used.
"""

import pytest

from engine.core.batch import RunnerOutput, SampledToken, ScheduledBatch
from engine.core.config import CoreConfig
from engine.core.engine_core import EngineCore
from engine.core.kv_cache import KVCache
from engine.core.request import Request, SamplingParams

NUM_BLOCKS = 300
BLOCK = 16
PREFIX = tuple(range(1000))  # 62 full blocks: less than A's half of the pool
SMALL_FLOOD = 400  # 25 blocks; four of them run at once, and hold a third of the pool
LARGE_FLOOD = 832  # four of these hold all but 88 blocks: only what is held shows whose pool it is
MINUTES = 6


class CheapRunner:
    """Always samples the token 1."""

    def execute(self, batch: ScheduledBatch) -> RunnerOutput:
        return RunnerOutput({row.request_id: SampledToken(1) for row in batch.rows if row.samples})


class Flood:
    """The core under both tenants; `owner_of` maps a tenant to the owner its blocks count for."""

    def __init__(
        self,
        owner_of: dict[str, str],
        *,
        fresh_scopes: bool,
        flood_tokens: int = SMALL_FLOOD,
        b_weight: int = 1,
    ) -> None:
        self._owner_of = owner_of
        self._flood_tokens = flood_tokens
        self._fresh_scopes = fresh_scopes
        self._b_weight = b_weight
        self._num_sent = 0
        self.core = EngineCore(
            CoreConfig(
                NUM_BLOCKS, 4096, bytes(32), BLOCK, max_num_seqs=4, max_num_batched_tokens=4096
            ),
            CheapRunner(),
        )

    def send(self, tenant: str, prompt: tuple[int, ...], scope: str = "") -> Request:
        self._num_sent += 1
        wanted = Request(
            f"r{self._num_sent}",
            prompt,
            SamplingParams(max_tokens=1),
            f"namespace of {tenant}{scope}",
            owner=self._owner_of[tenant],
            weight=self._b_weight if tenant == "b" else 1,
        )
        self.core.add(wanted)
        return wanted

    def minute(self) -> float:
        """Ten pools of unique prompts, then one touch of the prefix; its share of hits."""
        for number in range(10 * NUM_BLOCKS * BLOCK // self._flood_tokens):
            unique = (self._num_sent + 1, *range(1, self._flood_tokens))
            self.send("b", unique, f"/{self._num_sent}" if self._fresh_scopes else "")
            if number % 4 == 3:
                self._drain()
        self._drain()
        touch = self.send("a", (*PREFIX, 5, 6, 7))
        self._drain()
        return touch.num_cached_tokens / len(PREFIX)

    def _drain(self) -> None:
        while self.core.has_work():
            self.core.step()

    def run(self) -> list[float]:
        """The share of the prefix found, minute by minute, once it was warm."""
        self.minute()
        shares = [self.minute() for _ in range(MINUTES)]
        self.core.check_integrity()
        return shares


@pytest.mark.parametrize("flood_tokens", [SMALL_FLOOD, LARGE_FLOOD])
@pytest.mark.parametrize("fresh_scopes", [False, True])
def test_a_warm_prefix_below_its_owners_share_survives_a_flood_and_not_under_plain_lru(
    fresh_scopes, flood_tokens
):
    def run(owner_of: dict[str, str]) -> list[float]:
        return Flood(owner_of, fresh_scopes=fresh_scopes, flood_tokens=flood_tokens).run()

    fair = run({"a": "owner-a", "b": "owner-b"})
    plain = run({"a": "one", "b": "one"})
    assert min(fair) >= 0.95
    assert max(plain) == 0


def test_an_owner_above_its_share_loses_its_tail_and_keeps_its_share():
    """At 1 against 15, A may keep a sixteenth of the pool: of 300 blocks, 18."""
    owners = {"a": "owner-a", "b": "owner-b"}
    shares = Flood(owners, fresh_scopes=False, b_weight=15).run()
    assert all(17 * BLOCK / 1000 <= share <= 19 * BLOCK / 1000 for share in shares)


def test_the_weight_of_an_owners_latest_request_counts():
    cache = KVCache(CoreConfig(12, 4096, bytes(32), BLOCK))

    def use(tenant: str, weight: int = 1) -> None:
        prompt = tuple(ord(tenant) * 1000 + index for index in range(5 * BLOCK + 1))
        wanted = Request(tenant, prompt, SamplingParams(1), tenant, owner=tenant, weight=weight)
        assert cache.admit(wanted, 0)
        wanted.num_computed_tokens = len(prompt)
        cache.commit(wanted)
        cache.free(wanted)

    def next_victim() -> str:
        block = cache.pool.eviction_order()[cache.pool.num_free]
        return cache.pool._blocks[block].owner.name

    use("a")
    use("b")
    assert next_victim() == "a"
    use("a", weight=2)  # all of it hits: nothing is published, the weight is heard all the same
    assert next_victim() == "b"
    use("b", weight=9)
    assert next_victim() == "a"
    with pytest.raises(ValueError, match="weight"):
        use("b", weight=0)
