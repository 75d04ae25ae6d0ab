"""Random lives of a pool: each a seed, its settings, tenants and replicas, and what befalls them.

A life draws its next event from what waits and is in flight, so that queues stay full, replicas
change, clients leave and every rule has its occasion. `shrunk` turns a life that broke a promise
into a history of few events that still breaks it.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from fairness import events
from fairness.policy import FcfsPolicy, Policy, VtcPolicy
from fairness.types import PoolConfig, ReplicaCapacity, TenantTerms
from tests.fairness.checker import BrokenPromiseError, Watch

NAMES = "abcdef"
BLOCK = 16
PATIENCE = 200_000
FAIR = ("grant", "pair", "interval", "spread")
"""Ratios of what the policy promises about tenants; others hold for any policy."""


def settings(random: Random) -> PoolConfig:
    """Mostly the defaults of the promise, with deadlines short enough to be missed."""
    return PoolConfig(
        lookahead=random.choice([1, 1, 0, 2]),
        growth_blocks=random.choice([1, 1, 0]),
        ttl_s=random.choice([30.0, 120.0, 120.0]),
        max_passes=random.choice([8, 8, 2, 1]),
        slack_milli=random.choice([1_000, 1_000, 1_000, 200, 1_500]),
        urgent_share_milli=random.choice([50, 50, 200]),
        t_min_s=random.choice([0.2, 2.0]),
        t_max_s=random.choice([1.0, 5.0, 20.0]),
    )


def terms(random: Random) -> TenantTerms:
    """One tenant's limits; weights and lengths differ widely."""
    return TenantTerms(
        weight_milli=random.choice([1_000, 1_000, 1_000, 333, 2_500, 50]),
        concurrency=random.choice([2, 4, 9, 9, 16]),
        max_prompt_tokens=random.choice([8, 60, 60, 300, 600]),
        max_output_tokens=random.choice([1, 8, 32, 64]),
    )


def replica(random: Random) -> ReplicaCapacity:
    """One replica, sometimes short of slots and sometimes of KV."""
    return ReplicaCapacity(random.choice([1, 3, 4, 8]), BLOCK * random.choice([20, 40, 80, 400]))


class Life:
    """One pool under a watch; `history` are the events so far."""

    def __init__(self, seed: int, policy: type[Policy] = VtcPolicy, *, every: int = 1) -> None:
        self.random = random = Random(seed)
        self.config = settings(random)
        self.policy = policy
        self.watch = fresh(self.config, policy, every)
        self.terms = {name: terms(random) for name in NAMES[: random.randint(2, len(NAMES))]}
        self.depths = {name: random.choice([1, 3, 3, 8]) for name in self.terms}
        self.replicas = {name: replica(random) for name in "rst"[: random.randint(1, 3)]}
        self.trouble = random.choice([0.0, 0.002, 0.02])
        self.pace = random.choice([0.01, 0.05, 0.2])
        self.hot = [tuple(range(i, i + 4)) for i in (10, 20, 30)]
        self.history: list[events.Input] = []
        self.flying: list[str] = []
        self.occasions: Counter[str] = Counter()
        self.now, self.made, self.epoch = 0.0, 0, 1
        for name, capacity in self.replicas.items():
            self.send(events.ReplicaUp(0.0, name, capacity))

    @property
    def grants(self) -> int:
        return self.watch.grants

    def send(self, event: events.Input) -> None:
        self.history.append(event)
        self.occasions[type(event).__name__] += 1
        for effect in self.watch.apply(event):
            self.occasions[type(effect).__name__] += 1
            if type(effect) in {events.Granted, events.Dispatched}:
                self.flying.append(effect.request)

    def step(self) -> None:
        """Time passes, queues fill up, and something in flight goes on, or else is disturbed."""
        random = self.random
        self.now += random.random() * self.pace
        accounts = self.watch.books.accounts
        for tenant, depth in self.depths.items():
            account = accounts.get(tenant)
            if (account is None or len(account.waiting) < depth) and random.random() < 0.5:
                self.enqueue(tenant)
        name = self.any_flying()
        if name is None or random.random() < self.trouble:
            self.disturb()
        else:
            self.advance(name)

    def any_flying(self) -> str | None:
        """Something in flight; names of what is so no longer are dropped on the way."""
        live, flying = self.watch.live, self.flying
        while flying:
            index = self.random.randrange(len(flying))
            seen = live.get(flying[index])
            if seen is not None and seen.replica is not None:
                return flying[index]
            flying[index] = flying[-1]
            flying.pop()
        return None

    def enqueue(self, tenant: str) -> None:
        random, limits = self.random, self.terms[tenant]
        self.made += 1
        longest = limits.max_prompt_tokens
        prompt = random.choice([1, longest // 2 or 1, longest, random.randint(1, longest)])
        sequences = random.choice([1, 1, 1, 1, 1, 2, 3])
        prefix = random.choice([(), (), *self.hot])
        self.send(
            events.Enqueued(
                self.now,
                f"q{self.made}",
                tenant,
                limits,
                prompt,
                random.choice([limits.max_output_tokens, random.randint(0, 8)])
                if limits.max_output_tokens > 8
                else limits.max_output_tokens,
                sequences,
                random.randrange(3),
                prefix[: random.randint(1, 4)],
            )
        )

    def advance(self, name: str) -> None:
        """Hits are reported, tokens come in strides, the request ends; some fail on the way."""
        random, seen = self.random, self.watch.live[name]
        draw = random.random()
        if not seen.known and draw < 0.6:
            length = seen.spec.prompt_tokens
            true = length if draw < 0.5 else random.randint(1, 2 * length)
            hits = random.choice([0, true // 2, true - 1])
            self.send(events.Corrected(self.now, name, true, hits))
        elif draw < 0.02:
            kind = random.choice([events.NotStarted, events.Requeued])
            self.send(kind(self.now, name))
        else:
            out = seen.out + random.choice([1, 8, 40, 200])
            over = out >= seen.output_limit
            self.send((events.Finished if over else events.Emitted)(self.now, name, out))

    def disturb(self) -> None:
        random = self.random
        draw = random.randrange(12)
        name = random.choice(sorted(self.replicas))
        waiting = [seen for seen in self.watch.live.values() if seen.replica is None]
        if draw == 0:
            self.now += random.choice([1.0, 10.0, 40.0])
            self.send(events.Ticked(self.now))
        elif draw == 1:
            tenant = random.choice(sorted(self.terms))
            self.terms[tenant] = terms(random)
            self.send(events.TenantChanged(self.now, tenant, self.terms[tenant]))
        elif draw == 2:
            self.send(events.ReplicaLost(self.now, name))
        elif draw == 3:
            self.send(events.ReplicaDrained(self.now, name))
        elif draw == 4 and random.random() < 0.3:
            self.restart()
        elif draw <= 6 and waiting:
            self.send(events.Cancelled(self.now, random.choice(waiting).spec.request))
        else:
            capacity = self.replicas[name] if random.random() < 0.8 else replica(random)
            self.send(events.ReplicaUp(self.now, name, capacity))

    def restart(self) -> None:
        self.epoch += 1
        self.send(events.Restarted(self.now, self.epoch))
        for name, capacity in self.replicas.items():
            self.send(events.ReplicaUp(self.now, name, capacity))


def fresh(config: PoolConfig, policy: type[Policy], every: int) -> Watch:
    """A watch over a new pool."""
    return Watch(config, policy(), promises_bound=policy is not FcfsPolicy, every=every)


def live(seed: int, grants: int, policy: type[Policy] = VtcPolicy, *, every: int = 1) -> Life:
    """A life of so many grants; a broken promise is raised with the history shrunk."""
    life = Life(seed, policy, every=every)
    try:
        while life.grants < grants:
            life.step()
        life.watch.look()
    except BrokenPromiseError as broken:
        few = shrunk(life.config, policy, life.history, broken.args[0])
        told = "\n".join(map(repr, few))
        broken.add_note(f"seed {seed}, {life.config}, shrunk from {len(life.history)} to:\n{told}")
        raise
    return life


@dataclass
class Lives:
    """What came of many lives: the nearest to each bound, and how often each rule had its turn."""

    grants: int = 0
    ratios: dict[str, float] = field(default_factory=dict)
    occasions: Counter[str] = field(default_factory=Counter)

    def add(self, seed: int, grants: int, policy: type[Policy] = VtcPolicy, *, every: int = 1):
        """Live one more life."""
        life = live(seed, grants, policy, every=every)
        self.grants += life.grants
        self.occasions.update(life.occasions)
        self.occasions["Urgent"] += life.watch.turns.urgent_grants
        self.note(life.watch.ratios)

    def note(self, ratios: dict[str, float]) -> None:
        for what, ratio in ratios.items():
            self.ratios[what] = max(self.ratios.get(what, 0.0), ratio)


def many(
    seeds: Iterable[int], grants: int, policy: type[Policy] = VtcPolicy, *, every: int = 1
) -> Lives:
    """The lives of these seeds, each of so many grants."""
    lives = Lives()
    for seed in seeds:
        lives.add(seed, grants, policy, every=every)
    return lives


def broken_by(config: PoolConfig, policy: type[Policy], history) -> str | None:
    """The promise that a history breaks, looked at after every event."""
    watch = fresh(config, policy, 1)
    try:
        for event in history:
            watch.apply(event)
    except BrokenPromiseError as broken:
        return broken.args[0]
    return None


def shrunk(config: PoolConfig, policy: type[Policy], history: list, claim: str) -> list:
    """A shorter history that still breaks a promise: pieces are left out, ever smaller ones.

    `claim` is kept if it is what the whole history breaks when looked at after every event. Only so
    many events are played again: what is left by then is told.
    """
    claim = broken_by(config, policy, history) or claim
    size, patience = max(1, len(history) // 2), PATIENCE
    while size and patience > 0:
        start = 0
        while start < len(history) and patience > 0:
            shorter = history[:start] + history[start + size :]
            patience -= len(shorter)
            if broken_by(config, policy, shorter) == claim:
                history = shorter
            else:
                start += size
        size //= 2
    return history
