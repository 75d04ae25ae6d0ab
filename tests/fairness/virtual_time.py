"""Virtual time: a heap of events, arrivals, and replicas that step the real engine core.

Nothing here reads a clock. A replica steps while it has work; what a step did reaches the
dispatcher when the step ends, as the gateway would report it.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count

from engine.core.batch import RunnerOutput, ScheduledBatch
from engine.core.config import CoreConfig
from engine.core.engine_core import CoreStats, EngineCore
from engine.core.request import Request, SamplingParams
from engine.runner.fake import FakeRunner
from fairness import events
from fairness.types import ReplicaCapacity, TenantTerms

STEP_S = 0.05


class VirtualTime:
    """Runs callables in the order of their time, ties in the order they were added."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when, next(self._order), action))

    def run(self, until: float) -> None:
        while self._heap and self._heap[0][0] <= until:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = until


class _Witness:
    """The runner, noting the core's state at the moment between scheduling and computing."""

    def __init__(self, runner: FakeRunner) -> None:
        self._runner = runner
        self.core: EngineCore
        self.scheduled: CoreStats | None = None

    def execute(self, batch: ScheduledBatch) -> RunnerOutput:
        self.scheduled = self.core.stats()
        return self._runner.execute(batch)


@dataclass
class EngineReplica:
    """One engine core on the fake runner; checks at every step what the engine promises."""

    name: str
    slots: int
    kv_tokens: int
    block_size: int = 16
    steps: int = 0
    most_running: int = 0
    lens: dict[str, int] = field(default_factory=dict)
    _open: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # The reserve comes on top, so that `kv_tokens` is the window that may be granted.
        blocks = self.kv_tokens // self.block_size
        self._witness = _Witness(FakeRunner(blocks + 1, self.block_size))
        self.core = self._witness.core = EngineCore(
            CoreConfig(
                num_blocks=blocks + 1,
                max_model_len=self.kv_tokens,
                model_digest=bytes(32),
                block_size=self.block_size,
                max_num_seqs=self.slots,
                max_num_batched_tokens=64,
                reserve=1 / (2 * (blocks + 1)),
            ),
            self._witness,
        )
        assert self.core.stats().kv_tokens == self.kv_tokens

    @property
    def capacity(self) -> ReplicaCapacity:
        return ReplicaCapacity(self.slots, self.kv_tokens, self.block_size)

    def submit(self, spec: events.Enqueued) -> None:
        """All sequences of one request, over one prompt."""
        seed = sum(map(ord, spec.request)) * 31
        tokens = tuple((seed + 7 * i) % 997 for i in range(spec.prompt_tokens))
        output = SamplingParams(spec.max_output_tokens, temperature=0)
        names = [f"{spec.request}/{index}" for index in range(spec.sequences)]
        self.core.add(*(Request(name, tokens, output, spec.tenant) for name in names))
        self._open[spec.request] = len(names)

    def step(self) -> list[tuple[str, str, int]]:
        """One step; `(kind, request, amount)` for each admission, token and end, in order.

        A request is admitted with its first sequence and has ended with its last; amounts of
        output are totals over its sequences.
        """
        report = self.core.step()
        self.steps += 1
        scheduled = self._witness.scheduled
        assert scheduled is not None
        self.most_running = max(self.most_running, scheduled.running)
        assert scheduled.running <= self.slots
        if report.admitted and scheduled.running > 1:
            idle = scheduled.free_blocks + scheduled.cached_blocks
            assert idle >= scheduled.reserve_blocks
        told = [
            ("admitted", a.request_id.removesuffix("/0"), a.num_cached_tokens)
            for a in report.admitted
            if a.request_id.endswith("/0")
        ]
        for token in report.emitted:
            request = token.request_id.partition("/")[0]
            self.lens[request] = self.lens.get(request, 0) + 1
            self._open[request] -= token.finish_reason is not None
            kind = "emitted" if self._open[request] else "finished"
            told.append((kind, request, self.lens[request]))
        return told


@dataclass(frozen=True)
class Load:
    """One tenant's offered load: a request every `every_s`, lengths and choices taken in turn."""

    tenant: str
    terms: TenantTerms
    every_s: float
    prompts: tuple[int, ...]
    outputs: tuple[int, ...]
    sequences: tuple[int, ...] = (1,)


class Pool:
    """A dispatcher (or a `Watch` around one), its replicas and its tenants, in virtual time."""

    def __init__(self, apply, replicas: Iterable[EngineReplica]) -> None:
        self.time = VirtualTime()
        self.replicas = {replica.name: replica for replica in replicas}
        self._apply = apply
        self._specs: dict[str, events.Enqueued] = {}
        self._stepping: set[str] = set()
        self.observers: list[Callable[[], None]] = []
        for replica in self.replicas.values():
            self.tell(events.ReplicaUp(0.0, replica.name, replica.capacity))

    def offer(self, load: Load, until: float) -> None:
        """Schedule a tenant's arrivals."""
        number = 0
        while number * load.every_s < until:
            spec = events.Enqueued(
                number * load.every_s,
                f"{load.tenant}-{number}",
                load.tenant,
                load.terms,
                load.prompts[number % len(load.prompts)],
                load.outputs[number % len(load.outputs)],
                load.sequences[number % len(load.sequences)],
            )
            self.time.at(spec.now, lambda spec=spec: self._arrive(spec))
            number += 1

    def tell(self, event: events.Input) -> None:
        """Apply an event and act on the grants."""
        for effect in self._apply(event):
            if isinstance(effect, events.Granted):
                replica = self.replicas[effect.replica]
                replica.submit(self._specs[effect.request])
                self._wake(replica)
        for observe in self.observers:
            observe()

    def _arrive(self, spec: events.Enqueued) -> None:
        self._specs[spec.request] = spec
        self.tell(spec)

    def _wake(self, replica: EngineReplica) -> None:
        if replica.name not in self._stepping:
            self._stepping.add(replica.name)
            self.time.at(self.time.now + STEP_S, lambda: self._step(replica))

    def _step(self, replica: EngineReplica) -> None:
        self._stepping.discard(replica.name)
        now = self.time.now
        for kind, request, amount in replica.step():
            if kind == "admitted":
                prompt = self._specs[request].prompt_tokens
                self.tell(events.Corrected(now, request, prompt, amount))
            elif kind == "emitted":
                self.tell(events.Emitted(now, request, amount))
            else:
                self.tell(events.Finished(now, request, amount))
        if replica.core.has_work():
            self._wake(replica)
