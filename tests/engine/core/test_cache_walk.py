"""Ten thousand random operations on small caches, checked after each one.

The naive twin says which blocks every admission must find; the strict runner refuses to compute
over anything that is not the request's own history; the integrity check counts every block and
finds any that could be written through two tables.
"""

import random

import pytest

from engine.core.errors import NamespaceInUse, PinLimit
from engine.core.request import Request
from tests.engine.core.cache_rig import CacheRig, cache_config, known, request

STEPS = 2_000
NAMESPACES = ("a", "a", "b")


class Walk:
    """Draws operations; waiting requests are those that were preempted or did not fit yet."""

    def __init__(self, seed: int, **settings) -> None:
        self.draw = random.Random(seed)
        self.rig = CacheRig(cache_config(**settings))
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.pinned: dict[tuple[str, tuple[int, ...]], int] = {}
        self.num_made = 0
        self.done: dict[str, int] = {}

    def step(self) -> None:
        operations = {
            self.arrive: 3,
            self.resume: 3,
            self.fork: 4,
            self.compute: 14,
            self.preempt: 1,
            self.finish: 2,
            self.pin: 1,
            self.unpin: 1,
            self.erase: 1,
        }
        (operation,) = self.draw.choices([*operations], [*operations.values()])
        if operation():
            self.done[operation.__name__] = self.done.get(operation.__name__, 0) + 1

    def arrive(self) -> bool:
        """A prompt that begins like others of its family, for one of two owners."""
        length = self.draw.randint(1, self.rig.config.max_sequence_tokens - 1)
        shared = self.draw.randint(0, length)
        family = self.draw.randint(0, 1)
        prompt = [family] * shared + [self.draw.randint(2, 9) for _ in range(length - shared)]
        self.num_made += 1
        self.waiting.append(
            request(
                f"r{self.num_made}",
                prompt,
                self.draw.choice(NAMESPACES),
                use_cache=self.draw.random() < 0.9,
                prompt_logprobs=self.draw.choice([None, None, None, 0]),
                owner=self.draw.choice("xyz"),
                weight=self.draw.randint(1, 3),
            )
        )
        return self.resume()

    def resume(self) -> bool:
        if not self.waiting:
            return False
        wanted = self.draw.choice(self.waiting)
        if not self.rig.admit(wanted, self.draw.choice([0, 0, 2])):
            if not self.running and self.rig.cache.release_pins():
                self.pinned.clear()
            return False
        self.waiting.remove(wanted)
        self.running.append(wanted)
        return True

    def fork(self) -> bool:
        """A sample of the same prompt, or a branch of what the sibling has generated."""
        if not self.running:
            return False
        sibling = self.draw.choice(self.running)
        branch = self.draw.random() < 0.5
        self.num_made += 1
        output = sibling.output_token_ids if branch else []
        child = request(
            f"r{self.num_made}",
            sibling.prompt_token_ids,
            sibling.namespace,
            output=output,
            use_cache=sibling.use_cache,
            owner=sibling.owner,
        )
        if self.rig.fork(sibling, child, self.draw.choice([0, 0, 2])) is None:
            return False
        self.running.append(child)
        assert self.rig.compute(child, 1)  # in the same step, as the copies must be made in it
        return True

    def compute(self) -> bool:
        if not self.running:
            return False
        wanted = self.draw.choice(self.running)
        if wanted.num_tokens >= self.rig.config.max_sequence_tokens:
            self._end(wanted)
            return False
        if not self.rig.compute(wanted, self.draw.choice([None, 1, 5, 17])):
            assert self.rig.pool.num_idle < len(self.rig.config.windows)
            return False
        if self.draw.random() < 0.5 and wanted.num_pending_tokens == 1 and wanted.output_token_ids:
            wanted.output_token_ids[-1] = self.draw.randint(0, 1)  # sampled differently
        return True

    def preempt(self) -> bool:
        if not self.running:
            return False
        victim = self.draw.choice(self.running)
        idle = self.rig.pool.num_idle
        frees = self.rig.cache.frees_a_block(victim)
        self.rig.free(victim)
        assert (self.rig.pool.num_idle > idle) == frees
        self.running.remove(victim)
        self.waiting.append(victim)
        return True

    def finish(self) -> bool:
        if not self.running:
            return False
        self._end(self.draw.choice(self.running))
        return True

    def _end(self, wanted: Request) -> None:
        self.rig.free(wanted)
        self.running.remove(wanted)

    def pin(self) -> bool:
        token_ids = tuple([self.draw.randint(0, 1)] * self.draw.randint(1, 24))
        namespace = self.draw.choice(NAMESPACES)
        expected = len(self.rig.twin.longest(namespace, token_ids)[0]) * self.rig.config.block_size
        before = self.rig.state()
        try:
            pinned = self.rig.cache.pin(namespace, token_ids)
        except PinLimit:
            assert self.rig.state() == before
            return False
        self.rig.check()
        assert self.rig.pool.num_pinned <= self.rig.config.num_blocks // 4
        assert pinned == expected
        size = self.rig.config.block_size
        full = token_ids[: len(token_ids) // size * size]
        if pinned:
            self.pinned[namespace, full] = pinned
        return bool(pinned)

    def unpin(self) -> bool:
        if not self.pinned:
            return False
        pin = self.draw.choice([*self.pinned])
        assert self.rig.cache.unpin(*pin) == self.pinned.pop(pin)
        assert self.rig.cache.unpin(*pin) == 0
        self.rig.check()
        return True

    def erase(self) -> bool:
        namespace = self.draw.choice(NAMESPACES)
        before = self.rig.state()
        if any(wanted.namespace == namespace for wanted in self.running):
            with pytest.raises(NamespaceInUse):
                self.rig.cache.erase(namespace)
            assert self.rig.state() == before
            return False
        erased = self.rig.cache.erase(namespace)
        assert erased == self.rig.twin.erase(namespace)
        self.pinned = {pin: count for pin, count in self.pinned.items() if pin[0] != namespace}
        self.rig.check()
        return erased > 0


@pytest.mark.parametrize(
    ("windows", "block_size", "prefix_cache"),
    [
        ((None,), 4, True),
        ((None,), 4, False),
        ((None, 8), 4, True),
        ((7,), 4, True),
        ((3, None, 13), 2, True),
    ],
)
def test_random_lives_keep_every_promise(windows, block_size, prefix_cache):
    walk = Walk(
        seed=len(windows) + block_size,
        num_blocks=36,
        block_size=block_size,
        windows=windows,
        prefix_cache=prefix_cache,
        max_model_len=80,
    )
    for _ in range(STEPS):
        walk.step()
    while walk.running:
        walk.finish()
    walk.rig.cache.release_pins()
    assert walk.rig.pool.num_idle == 36
    kinds = {"arrive", "resume", "fork", "compute", "preempt", "finish"}
    assert kinds <= walk.done.keys()
    if prefix_cache:
        assert {"pin", "unpin", "erase"} <= walk.done.keys()
    assert sum(walk.done.values()) > STEPS / 3


def test_a_walk_is_repeatable():
    def trace():
        walk = Walk(seed=5, num_blocks=20, block_size=4, windows=(None, 8), max_model_len=60)
        for _ in range(200):
            walk.step()
        return walk.rig.state(), [known(wanted) for wanted in walk.running]

    assert trace() == trace()
