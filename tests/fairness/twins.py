"""A watched dispatcher beside its twin: one event to both, the same effects, the same books."""

import json
from collections import Counter
from dataclasses import dataclass

from fairness import checkpoint, events
from fairness.policy import FcfsPolicy, VtcPolicy
from fairness.types import MissReason, PoolConfig, TenantId
from tests.fairness.checker import Watch
from tests.fairness.naive import NaivePool
from tests.fairness.naive_lane import SAMPLES
from tests.fairness.naive_state import PINNED, WAITING, Work


def crowded(now: float, tenant: TenantId) -> float | None:
    """A rate limit that one tenant runs into for one second of every five."""
    return 2.5 if tenant == "d" and int(now) % 5 == 4 else None


class LimitedVtc(VtcPolicy):
    def refuses(self, now: float, tenant: TenantId) -> float | None:
        return crowded(now, tenant)


@dataclass
class Twins:
    """`seen` counts effects by kind and reason, and inputs by kind and what they were about."""

    config: PoolConfig
    fair: bool = True

    def __post_init__(self) -> None:
        self.policy = LimitedVtc if self.fair else FcfsPolicy
        self.watch = Watch(self.config, self.policy(), promises_bound=self.fair)
        refusing = {"refuses": crowded} if self.fair else {}
        self.twin = NaivePool(self.config, fair=self.fair, **refusing)
        self.seen: Counter = Counter()

    def send(self, event: events.Input) -> None:
        self.note_input(event)
        pinned = {w.spec.request for w in self.requests(PINNED)}
        expected = self.twin.apply(event)
        assert self.watch.apply(event) == expected
        self.note_effects(event, expected, pinned)

    def note_input(self, event) -> None:
        w = self.twin.work.get(getattr(event, "request", ""))
        about = "" if w is None else w.where if w.where in {WAITING, PINNED} else "(sent)"
        self.seen[type(event).__name__ + about] += 1

    def note_effects(self, event, effects, pinned) -> None:
        for effect in effects:
            kind = type(effect).__name__
            if getattr(effect, "request", "") in pinned:
                self.seen[f"{kind} {PINNED}"] += 1
            self.seen[f"{kind} {getattr(effect, 'reason', '')}".strip()] += 1
            if kind == "Headed":
                self.seen["Headed by rate" if effect.rate_milli else "Headed without"] += 1
                self.seen["Headed again"] += not effect.work_milli
            if kind == "Headed" and effect.rate_milli:
                wait = effect.deadline - event.now
                self.seen["Headed between"] += self.config.t_min_s < wait < self.config.t_max_s

    def reload(self) -> None:
        """The dispatcher goes on from its checkpoint, as JSON keeps it."""
        before = self.watch.dispatcher
        state = json.loads(json.dumps(checkpoint.dump(before)))
        after = checkpoint.load(self.config, self.policy(), state)
        assert after.snapshot() == before.snapshot()
        assert checkpoint.dump(after) == state
        self.watch.dispatcher = after
        self.agree_about_what_is_kept(state)

    # --- what there is to speak of ---

    def requests(self, *places: str) -> list[Work]:
        """Those in these places; `"sent"` are those at a replica or lost with it."""
        where = {w.spec.request: w.where for w in self.twin.rows()}
        where = {n: p if p in {WAITING, PINNED} else "sent" for n, p in where.items()}
        return [self.twin.work[name] for name in sorted(where) if where[name] in places]

    def agree(self) -> None:
        """Every figure that the dispatcher shows and the twin can derive."""
        snapshot, twin = self.watch.snapshot, self.twin
        pinned = twin.pinned()
        assert snapshot.floor == twin.floor
        assert snapshot.stopped_at == twin.stopped_at
        assert snapshot.misfits == twin.misfits
        assert snapshot.pinned == (pinned and pinned.spec.request)
        assert snapshot.overtakes_max == twin.overtakes_max
        assert snapshot.urgent_grants == twin.urgent_grants
        assert snapshot.urgent_milli == twin.urgent_service()
        assert snapshot.service_milli == twin.service()
        assert snapshot.rate_milli == twin.usual_rate()
        for reason in MissReason:
            assert snapshot.missed.get(reason, 0) == twin.missed.count(reason)
        self.agree_about_tenants()
        self.agree_about_replicas()

    def agree_about_what_is_kept(self, state) -> None:
        """What shows only in later decisions."""
        twin = self.twin
        assert state["lane"]["level"] == twin.level
        assert state["rates"]["samples"] == twin.samples[-SAMPLES:]
        assert state["prefixes"] == twin.prefixes
        means = {name: books.mean for name, books in twin.books.items()}
        assert {a["tenant"]: a["mean_output"] for a in state["accounts"]} == means
        for ticket in state["tickets"]:
            w = twin.work[ticket["request"]]
            assert (ticket["passes"], ticket["overtakes"]) == (w.passes, w.overtakes)
            assert (ticket["deadline"], ticket["missed"]) == (w.deadline, w.missed)

    def agree_about_tenants(self) -> None:
        twin = self.twin
        assert {t.tenant for t in self.watch.snapshot.tenants} == set(twin.books)
        for tenant in self.watch.snapshot.tenants:
            name, books = tenant.tenant, twin.books[tenant.tenant]
            queue = twin.waiting(name)
            assert tenant.counter == books.counter
            assert tenant.service_milli == books.service
            assert tenant.unsettled_milli == twin.unsettled(name)
            assert tenant.queued == len(queue)
            assert tenant.in_flight == twin.in_flight(name)
            assert tenant.backlogged == (twin.state(name) == "backlogged")
            assert tenant.blocked == (twin.state(name) == "blocked")
            assert tenant.head_deadline == (queue[0].deadline if queue else None)
            assert tenant.head_enqueued_at == (queue[0].spec.now if queue else None)
            assert tenant.largest_milli == twin.largest(name)
            assert tenant.slack == twin.z(name) or not self.fair
            assert tenant.uncharged_tokens == books.extra

    def agree_about_replicas(self) -> None:
        assert {r.replica for r in self.watch.snapshot.replicas} == set(self.twin.replicas)
        for replica in self.watch.snapshot.replicas:
            held = self.twin.on(replica.replica)
            capacity, accepting = self.twin.replicas[replica.replica]
            assert replica.accepting == accepting
            assert replica.in_flight == self.twin.load(replica.replica)
            assert replica.num_blocks == sum(w.blocks(capacity.block_size) for w in held)
