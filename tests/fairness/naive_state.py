"""What the dispatcher's twin keeps, and every figure of the contract taken anew from it.

Counters are fractions. Nothing that can be derived is stored: no sum, no order, no count.
"""

from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from math import ceil, floor

from fairness import events
from fairness.types import PoolConfig, TenantTerms

WAITING = "(waiting)"
PINNED = "(pinned)"
LOCALITY_WINDOW = 16
KNOWN_PREFIXES = 4096


@dataclass
class Work:
    """One request; `where` is WAITING, PINNED (then `hold` is the replica held) or a replica.

    `lane` is set while it runs on the urgent budget: what was taken, and its bill until then.
    """

    spec: events.Enqueued
    order: int
    prompt: int
    where: str = WAITING
    hold: str = ""
    lost: bool = False
    paid: int | None = None
    known: bool = False
    out: int = 0
    passes: int = 0
    overtakes: int = 0
    deadline: float | None = None
    left: float | None = None
    missed: bool = False
    lane: tuple[int, int] | None = None

    @property
    def cap(self) -> int:
        return self.spec.sequences * self.spec.max_output_tokens

    @property
    def open(self) -> int:
        """How much of its charge may still come back."""
        return 0 if self.paid is None or (self.known and self.out) else self.paid

    @property
    def place_in_line(self) -> tuple[bool, int]:
        return self.paid is None, self.order

    def blocks(self, size: int) -> int:
        n = self.spec.sequences
        return n * ceil(Fraction(self.prompt + ceil(Fraction(self.out, n)) + 1, size))


@dataclass
class Books:
    """One tenant; `state` is what it was when last looked at."""

    terms: TenantTerms
    c: Fraction
    service: int = 0
    state: str = "idle"
    extra: int = 0
    mean: int | None = None

    @property
    def phi(self) -> Fraction:
        return Fraction(self.terms.weight_milli, 1000)

    @property
    def counter(self) -> int:
        return floor(self.c)

    def norm(self, milli: int) -> int:
        return ceil(milli / self.phi)


class NaiveState:
    def __init__(self, config: PoolConfig, *, fair: bool = True) -> None:
        self.config = config
        self.fair = fair
        self.work: dict[str, Work] = {}
        self.books: dict[str, Books] = {}
        self.replicas: dict[str, list] = {}
        self.prefixes: list[int] = []
        self.credit = 0
        self.floor = 0
        self.out: list = []
        self.now = 0.0

    # --- who is where ---

    def rows(self, tenant=None) -> list[Work]:
        return [w for w in self.work.values() if tenant in {None, w.spec.tenant}]

    def waiting(self, tenant=None) -> list[Work]:
        """By place in line, which means something within one tenant only."""
        rows = [w for w in self.rows(tenant) if w.where == WAITING]
        return sorted(rows, key=lambda w: w.place_in_line)

    def flying(self, tenant=None) -> list[Work]:
        return [w for w in self.rows(tenant) if w.where != WAITING]

    def pinned(self) -> Work | None:
        return next((w for w in self.rows() if w.where == PINNED), None)

    def in_flight(self, tenant) -> int:
        return sequences(self.flying(tenant))

    def may_run(self, w: Work) -> bool:
        terms = self.books[w.spec.tenant].terms
        return self.in_flight(w.spec.tenant) + w.spec.sequences <= terms.concurrency

    def state(self, tenant) -> str:
        queue = self.waiting(tenant)
        if not queue:
            return "idle"
        return "backlogged" if self.may_run(queue[0]) else "blocked"

    def contenders(self) -> list[str]:
        return sorted(t for t in self.books if self.state(t) == "backlogged")

    def heads(self) -> list[Work]:
        return [self.waiting(t)[0] for t in self.contenders()]

    # --- order ---

    def unsettled(self, tenant) -> int:
        return sum(w.open for w in self.rows(tenant))

    def settled(self, tenant) -> Fraction:
        books = self.books[tenant]
        return books.c - self.unsettled(tenant) / books.phi

    def rank(self, tenant) -> int:
        return self.books[tenant].counter if self.fair else self.waiting(tenant)[0].order

    def least(self) -> str | None:
        return min(self.contenders(), key=lambda t: (self.rank(t), t), default=None)

    def slack(self, tenant) -> int:
        return self.z(tenant) if self.fair else 0

    def within_slack(self, tenant, least) -> bool:
        return self.rank(tenant) <= self.rank(least) + self.slack(tenant)

    # --- the letters of the contract, in milli-units ---

    def n(self, tenant) -> int:
        return min(self.credit, self.books[tenant].terms.concurrency)

    def largest(self, tenant) -> int:
        terms, prices = self.books[tenant].terms, self.config.prices
        return prices.uncached * terms.max_prompt_tokens + prices.output * terms.max_output_tokens

    def r(self, tenant) -> int:
        return floor(Fraction(self.config.slack_milli * self.largest(tenant), 1000))

    def z(self, tenant) -> int:
        return self.books[tenant].norm(self.r(tenant))

    def abar(self, tenant) -> int:
        prices, terms = self.config.prices, self.books[tenant].terms
        return prices.uncached * self.n(tenant) * terms.max_prompt_tokens

    def outputs(self, tenant) -> int:
        terms = self.books[tenant].terms
        return self.config.prices.output * self.n(tenant) * terms.max_output_tokens

    def u(self, tenant) -> int:
        terms = self.books[tenant].terms
        return self.config.prices.uncached * terms.max_prompt_tokens + self.outputs(tenant)

    def m(self) -> int:
        refunds = {t: max(self.abar(t), self.unsettled(t)) for t in self.books}
        return max((self.books[t].norm(refunds[t]) for t in self.books), default=0)

    def stake(self, tenant) -> int:
        return self.r(tenant) + self.u(tenant) + self.abar(tenant)

    # --- room ---

    def accepting(self) -> list[str]:
        return [r for r, (_, accepting) in self.replicas.items() if accepting]

    def on(self, replica) -> list[Work]:
        return [w for w in self.flying() if w.where == replica and not w.lost]

    def load(self, replica) -> int:
        return sequences(self.on(replica))

    def has_slots(self, replica, w: Work, held: int) -> bool:
        slots = self.replicas[replica][0].slots + self.config.lookahead
        return held + w.spec.sequences <= slots

    def spare_blocks(self, replica, w: Work, beside: list[Work]) -> int:
        """Blocks left over with `w` among these; below 0 it does not fit."""
        capacity = self.replicas[replica][0]
        used = sum(x.blocks(capacity.block_size) for x in [*beside, w])
        return capacity.kv_tokens // capacity.block_size - used

    def room(self, replica, w: Work, *, empty: bool = False) -> bool:
        beside = [] if empty else self.on(replica)
        held = sequences(beside)
        growth = self.config.growth_blocks * (held + w.spec.sequences) if beside else 0
        return self.has_slots(replica, w, held) and self.spare_blocks(replica, w, beside) >= growth

    def homes(self, w: Work) -> list[str]:
        """The accepting replicas that could hold it when empty."""
        return [r for r in self.accepting() if self.room(r, w, empty=True)]

    def homeless(self, w: Work) -> bool:
        return bool(self.accepting()) and not self.homes(w)

    def free(self) -> list[str]:
        """The accepting replicas that are not held for a pinned request."""
        pinned = self.pinned()
        return [r for r in self.accepting() if pinned is None or r != pinned.hold]

    def place(self, w: Work) -> str | None:
        fitting = [r for r in self.free() if self.room(r, w)]
        if not fitting:
            return None
        up = self.accepting()
        if w.spec.affinity:
            mean = Fraction(sum(self.load(r) for r in up), len(up))
            liked = max(up, key=lambda r: _hash(w.spec.affinity, r))
            limit = ceil(mean * Fraction(self.config.load_factor_milli, 1000))
            if liked in fitting and self.load(liked) <= limit:
                return liked
        return min(fitting, key=lambda r: (self.load(r), r))

    # --- which of a tenant's own ---

    def touch(self, w: Work) -> None:
        fresh = set(w.spec.prefix)
        old = [mark for mark in self.prefixes if mark not in fresh]
        self.prefixes = [*old, *w.spec.prefix][-KNOWN_PREFIXES:]

    def known_prefix(self, w: Work) -> int:
        known = set(self.prefixes)
        unknown = (i for i, mark in enumerate(w.spec.prefix) if mark not in known)
        return next(unknown, len(w.spec.prefix))

    def choose(self, tenant) -> tuple[Work, str | None]:
        queue = self.waiting(tenant)
        head = queue[0]
        if head.paid is None and head.overtakes < self.config.max_passes:
            rivals = [w for w in queue[:LOCALITY_WINDOW] if self.may_run(w)]
            best = max(rivals, key=lambda w: (self.known_prefix(w), -w.order))
            replica = self.place(best)
            if self.known_prefix(best) > self.known_prefix(head) and replica is not None:
                return best, replica
        return head, self.place(head)


def sequences(rows: list[Work]) -> int:
    return sum(w.spec.sequences for w in rows)


def _hash(affinity: int, replica: str) -> tuple:
    return blake2b(f"{affinity}/{replica}".encode(), digest_size=8).digest(), replica
