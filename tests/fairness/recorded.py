"""Event logs for tests: a seeded random run of a pool, recorded by line, and edits of such logs."""

import json
import random

from fairness import checkpoint
from fairness.audit import Auditor
from fairness.codec import decode_event
from fairness.dispatcher import Dispatcher
from fairness.events import (
    Cancelled,
    Corrected,
    Dispatched,
    Emitted,
    Enqueued,
    Expired,
    Finished,
    Granted,
    NotStarted,
    Refused,
    ReplicaDrained,
    ReplicaLost,
    ReplicaUp,
    Requeued,
    Restarted,
    TenantChanged,
    Ticked,
)
from fairness.journal import Header, Sealer, read_header
from fairness.policy import VtcPolicy
from fairness.types import PoolConfig, ReplicaCapacity, TenantTerms

CONFIG = PoolConfig(ttl_s=30.0, t_min_s=0.2, t_max_s=5.0, max_passes=3)
WALL_AHEAD = 5.0


class Recorder:
    """A pool whose every event is recorded; `segments` are lists of lines."""

    def __init__(self, policy=None, config=CONFIG, per_segment=400):
        self.policy = policy or VtcPolicy()
        self.config = config
        self.dispatcher = Dispatcher(config, self.policy)
        self.segments = []
        self.epoch = 1
        self.now = 1000.0
        self.waiting = set()
        self.flying = {}
        self.output = {}
        self._sealer = Sealer()
        self._per_segment = per_segment
        self.begin()

    def begin(self):
        header = Header(
            pool="pool",
            segment=len(self.segments) + 1,
            incarnation=f"i{self.epoch}",
            epoch=self.epoch,
            sequence=self._sealer.sequence,
            previous=self._sealer.digest,
            wall=self.now + WALL_AHEAD,
            now=self.now,
            policy=self.policy.name,
            config=self.config,
            state=checkpoint.dump(self.dispatcher),
        )
        self.segments.append([self._sealer.header(header)])

    def apply(self, event):
        if len(self.segments[-1]) > self._per_segment:
            self.begin()
        effects = self.dispatcher.apply(event)
        self.segments[-1] += [self._sealer.event(one) for one in (event, *effects)]
        for effect in effects:
            match effect:
                case Granted() | Dispatched():
                    self.waiting.discard(effect.request)
                    self.flying[effect.request] = effect.replica
                    self.output.setdefault(effect.request, 0)
                case Expired() | Refused():
                    self.waiting.discard(effect.request)
        return effects

    def restart(self):
        self.epoch += 1
        self.apply(Restarted(self.now, self.epoch))
        self.flying.clear()
        self.waiting.clear()
        self.begin()


class RandomRun:
    """Random inputs to a recorder: everything that can happen, races included."""

    def __init__(self, recorder, seed, tenants=4):
        self.to = recorder
        self.draw = random.Random(seed)
        self.tenants = {f"t{i}": self.terms() for i in range(tenants)}
        self.count = 0
        for replica in ("r1", "r2"):
            self.to.apply(ReplicaUp(self.to.now, replica, self.capacity()))

    def terms(self):
        draw = self.draw
        return TenantTerms(
            draw.choice([500, 1000, 3000]),
            draw.randint(1, 6),
            draw.choice([50, 200, 400]),
            draw.choice([10, 60, 100]),
        )

    def capacity(self):
        return ReplicaCapacity(self.draw.randint(2, 5), self.draw.choice([320, 640, 960]))

    def steps(self, number):
        for _ in range(number):
            self.step()

    def step(self):
        self.to.now += self.draw.choice([0.0, 0.001, 0.05, 0.2])
        kinds = {
            self.enqueue: 36,
            self.emit: 25,
            self.correct: 8,
            self.finish: 20,
            self.not_started: 3,
            self.requeue: 2,
            self.cancel: 2,
            self.change_tenant: 1,
            self.replicas: 3,
            self.restart: 0.15,
            self.tick: 2,
        }
        self.draw.choices(list(kinds), list(kinds.values()))[0](self.to.now)

    def enqueue(self, now):
        tenant = self.draw.choice(list(self.tenants)) if self.draw.random() < 0.6 else "t0"
        terms, self.count = self.tenants[tenant], self.count + 1
        name = f"q{self.count}"
        self.to.waiting.add(name)
        prefix = tuple(range(self.draw.randint(0, 3))) if self.draw.random() < 0.3 else ()
        self.to.apply(
            Enqueued(
                now,
                name,
                tenant,
                terms,
                self.draw.randint(1, terms.max_prompt_tokens),
                self.draw.randint(0, terms.max_output_tokens),
                self.draw.choice([1, 1, 1, 2]),
                self.draw.randint(0, 5),
                prefix,
            )
        )

    def flying(self):
        return self.draw.choice(list(self.to.flying)) if self.to.flying else "nobody"

    def emit(self, now):
        name = self.flying()
        self.to.output[name] = self.to.output.get(name, 0) + self.draw.randint(1, 15)
        self.to.apply(Emitted(now, name, self.to.output[name]))

    def correct(self, now):
        prompt, cached = self.draw.randint(1, 50), self.draw.randint(0, 50)
        self.to.apply(Corrected(now, self.flying(), prompt, cached))

    def finish(self, now):
        name = self.flying()
        self.to.flying.pop(name, None)
        self.to.apply(Finished(now, name, self.to.output.get(name, 0) + self.draw.randint(0, 5)))

    def not_started(self, now):
        name = self.flying()
        self.to.flying.pop(name, None)
        self.to.apply(NotStarted(now, name))

    def requeue(self, now):
        name = self.flying()
        self.to.flying.pop(name, None)
        self.to.waiting.add(name)
        self.to.apply(Requeued(now, name))

    def cancel(self, now):
        name = self.draw.choice(sorted(self.to.waiting)) if self.to.waiting else "nobody"
        self.to.waiting.discard(name)
        self.to.apply(Cancelled(now, name))

    def change_tenant(self, now):
        tenant = self.draw.choice(list(self.tenants))
        self.tenants[tenant] = self.terms()
        self.to.apply(TenantChanged(now, tenant, self.tenants[tenant]))

    def replicas(self, now):
        name = self.draw.choice(["r1", "r2"])
        kind = self.draw.choice([ReplicaUp] * 6 + [ReplicaDrained, ReplicaLost])
        self.to.apply(
            ReplicaUp(now, name, self.capacity()) if kind is ReplicaUp else kind(now, name)
        )

    def restart(self, now):
        self.to.restart()
        self.to.apply(ReplicaUp(now, "r1", self.capacity()))

    def tick(self, now):
        self.to.apply(Ticked(now))


def random_log(seed, steps=1200, **options):
    recorder = Recorder(**options)
    RandomRun(recorder, seed).steps(steps)
    return recorder


def audited(segments, **options):
    """The report on segments, given as lists of lines or, with their numbers, as pairs."""
    auditor = Auditor(**options)
    numbered = [one if isinstance(one, tuple) else (i, one) for i, one in enumerate(segments, 1)]
    for number, lines in numbered:
        auditor.segment(number, lines, last=number == numbered[-1][0])
    return auditor.finish()


def opened(segments):
    """Segments as pairs of header and events, to be edited."""
    return [
        [read_header(lines[0])[0], [decode_event(json.loads(line)[1]) for line in lines[1:]]]
        for lines in segments
    ]


def sealed(contents):
    """Edited segments as lines again: numbered and digested as if nothing had been done."""
    sealer, segments = Sealer(), []
    for number, (header, events) in enumerate(contents, 1):
        again = {name: getattr(header, name) for name in Header.__dataclass_fields__}
        again |= {"segment": number, "sequence": sealer.sequence, "previous": sealer.digest}
        lines = [sealer.header(Header(**again))]
        segments.append(lines + [sealer.event(event) for event in events])
    return segments
