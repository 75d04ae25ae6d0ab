"""Ten thousand random admissions, aborts, preemptions, forks and ends lose or share no block."""

import random

import pytest

from engine.core.batch import RunnerOutput, ScheduledBatch
from engine.core.engine_core import EngineCore
from engine.core.errors import NamespaceInUse, PinLimit
from engine.runner.fake import FakeRunner, FakeRunnerError, seeded
from tests.engine.core.rig import VOCAB, Forced, config, samples, tokens

EVENTS = 10_000


class Walk:
    """A core on a crowded pool, and what happened to it; with the rig's quick checks only."""

    def __init__(self, seed: int, windows: tuple[int | None, ...]) -> None:
        self.draw = random.Random(seed)
        self.config = config(
            26,
            block_size=4,
            max_num_seqs=8,
            max_num_batched_tokens=40,
            windows=windows,
            reserve=0.02,
        )
        self.forced = Forced()
        self._runner = FakeRunner(26, 4, VOCAB, choose=seeded(VOCAB), windows=windows)
        self.core = EngineCore(self.config, self, self.forced)
        self.live = self.core._scheduler.requests
        self.num_added = 0
        self.events = dict.fromkeys(("admit", "abort", "preempt", "fork", "end"), 0)

    def execute(self, batch: ScheduledBatch) -> RunnerOutput:
        """The core would try again in halves; here no batch may be wrong."""
        try:
            return self._runner.execute(batch)
        except FakeRunnerError as error:
            pytest.fail(str(error))

    def turn(self) -> None:
        """Something happens between two steps, then a step."""
        chance = self.draw.random()
        if len(self.live) < 12:
            self.add()
        elif chance < 0.15:
            self.events["abort"] += self.core.abort(self.any_id())
        elif chance < 0.3:
            self.forced.request_ids = {self.any_id(), self.any_id()}
        elif chance < 0.32:
            self.pin_or_erase()
        self.check()
        copied = self.core.stats().copied_blocks
        report = self.core.step()
        for failure in report.failed:
            raise failure.error
        self.events["admit"] += len(report.admitted)
        self.events["preempt"] += report.num_preempted
        self.events["fork"] += self.core.stats().copied_blocks - copied
        self.events["end"] += sum(token.finish_reason is not None for token in report.emitted)
        self.check()

    def add(self) -> None:
        length = self.draw.randint(1, 40 // len(self.config.windows))
        prompt = (*tokens(length // 2), *tokens(length - length // 2, self.draw.randint(0, 20)))
        self.num_added += 1
        asks = {"max_tokens": self.draw.randint(1, 12), "namespace": self.draw.choice("ab")}
        name, count = f"r{self.num_added}", self.draw.choice([1, 1, 2, 4])
        self.core.add(*samples(name, count, prompt, **asks))

    def any_id(self) -> str:
        return self.draw.choice(list(self.live))

    def pin_or_erase(self) -> None:
        wanted = self.live[self.any_id()]
        try:
            if self.draw.random() < 0.5:
                self.core.pin(wanted.namespace, wanted.prompt_token_ids)
            else:
                self.core.erase(wanted.namespace)
        except (PinLimit, NamespaceInUse):
            pass  # refused, and so without effect: the check follows

    def check(self) -> None:
        """Free + cached + held = total, each reference counted, nothing writable in two tables."""
        self.core.check_integrity()
        stats = self.core.stats()
        assert stats.free_blocks + stats.cached_blocks + stats.held_blocks == stats.total_blocks


@pytest.mark.parametrize(("seed", "windows"), [(1, (None,)), (2, (None, 6))])
def test_10_000_random_events_keep_every_block_accounted_for(seed, windows):
    walk = Walk(seed, windows)
    while sum(walk.events.values()) < EVENTS:
        walk.turn()
    assert min(walk.events.values()) > 400
    while walk.core.has_work():
        walk.core.step()
    walk.check()
    assert walk.core.stats().held_blocks == 0
