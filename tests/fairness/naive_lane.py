"""Time in the dispatcher's twin: its rate, deadlines, the urgent lane, misses, waits ahead."""

from fractions import Fraction
from math import ceil, floor

from fairness import events
from fairness.types import MissReason, PoolConfig
from tests.fairness.naive_state import Books, NaiveState, Work

SAMPLES = 64
ENOUGH_SAMPLES = 8
WINDOW_S = 1.0


class NaiveLane(NaiveState):
    """`level` is the urgent budget in thousandths of a milli-unit."""

    def __init__(self, config: PoolConfig, *, fair: bool = True) -> None:
        super().__init__(config, fair=fair)
        self.forgotten_service = 0
        self.window: tuple[float, int] | None = None
        self.samples: list[int] = []
        self.level = 0
        self.urgent_grants = 0
        self.urgent_ended = 0
        self.missed: list[MissReason] = []

    # --- charges ---

    def bill(self, w: Work) -> int:
        """What it has been charged, net."""
        return (w.paid or 0) + self.config.prices.output * w.out

    def book(self, books: Books, milli: int) -> None:
        books.c += milli / books.phi
        books.service += milli
        self.level += milli * self.config.urgent_share_milli

    def refund(self, w: Work) -> None:
        self.book(self.books[w.spec.tenant], -(w.paid or 0))
        w.paid = 0

    def service(self) -> int:
        return self.forgotten_service + sum(b.service for b in self.books.values())

    # --- the rate ---

    def read_meter(self) -> None:
        """Before anything else happens at `now`: close a window that lasted long enough."""
        if not self.contenders():
            self.window = None
        elif self.window is None:
            self.window = (self.now, self.service())
        elif self.now - self.window[0] >= WINDOW_S:
            done = self.service() - self.window[1]
            self.samples.append(int(done / (self.now - self.window[0])))
            self.window = (self.now, self.service())

    def recent(self) -> list[int]:
        """The samples that count, smallest first; none while they are too few."""
        recent = sorted(self.samples[-SAMPLES:])
        return recent if len(recent) >= ENOUGH_SAMPLES else []

    def low_rate(self) -> int:
        recent = self.recent()
        return max(0, recent[len(recent) // 10]) if recent else 0

    def usual_rate(self) -> int:
        recent = self.recent()
        return max(0, floor(Fraction(sum(recent), len(recent)))) if recent else 0

    # --- deadlines ---

    def give_deadline(self, w: Work) -> None:
        if w.left is not None:
            w.deadline, w.left = self.now + w.left, None
            work = rate = 0
        else:
            work, rate = self.work_before(w.spec.tenant), self.low_rate()
            wait = self.config.t_max_s
            if rate:
                wait = min(wait, max(self.config.t_min_s, work / rate))
            w.deadline = self.now + wait
        self.out.append(
            events.Headed(self.now, w.spec.request, w.spec.tenant, w.deadline, work, rate)
        )

    def work_before(self, tenant) -> int:
        others = [t for t in self.contenders() if t != tenant]
        weights = sum((self.books[t].phi for t in others), Fraction(0))
        gap = self.books[tenant].norm(self.stake(tenant)) + self.m()
        own = self.outputs(tenant) + self.abar(tenant)
        return own + ceil(weights * gap) + sum(self.stake(t) for t in others)

    def stop_clock(self, w: Work) -> None:
        if w.deadline is not None:
            w.left, w.deadline = max(0.0, w.deadline - self.now), None

    def overdue(self) -> list[Work]:
        late = [w for w in self.heads() if w.deadline is not None and w.deadline <= self.now]
        return sorted(late, key=lambda w: (w.deadline, w.order))

    def note_misses(self) -> None:
        for w in self.overdue():
            if not w.missed:
                w.missed = True
                reason = self.why_missed(w)
                self.missed.append(reason)
                self.out.append(events.Missed(self.now, w.spec.request, w.spec.tenant, reason))

    def why_missed(self, w: Work) -> MissReason:
        """What would keep it waiting even if there were room."""
        tenant, least = w.spec.tenant, self.least()
        if tenant != least and not self.within_slack(tenant, least):
            return MissReason.BEYOND_SLACK
        if tenant != least and not self.payable(w):
            return MissReason.BUDGET
        return MissReason.NO_FIT

    # --- the urgent lane ---

    def urgent_cost(self, w: Work) -> int:
        prices = self.config.prices
        prompt = prices.uncached * w.spec.prompt_tokens if w.paid is None else 0
        return prompt + prices.output * (w.cap - w.out)

    def depth(self) -> int:
        return max(self.largest(t) for t in self.books)

    def payable(self, w: Work) -> bool:
        return self.level >= 1000 * min(self.urgent_cost(w), self.depth())

    def urgent(self, least) -> tuple[Work, str] | None:
        """The head that may jump the turn of `least`, and where to."""
        for w in self.overdue():
            tenant, replica = w.spec.tenant, self.place(w)
            if tenant != least and self.within_slack(tenant, least) and replica is not None:
                self.level = min(self.level, 1000 * self.depth())
                return (w, replica) if self.payable(w) else None
        return None

    def enter_lane(self, w: Work) -> None:
        cost = self.urgent_cost(w)
        w.lane = cost, self.bill(w)
        self.level -= 1000 * cost
        self.urgent_grants += 1

    def charged_in_lane(self, w: Work) -> int:
        return self.bill(w) - w.lane[1] if w.lane else 0

    def leave_lane(self, w: Work) -> None:
        """It ends or waits again: what it did not use goes back, once."""
        if w.lane:
            used = self.charged_in_lane(w)
            self.level += 1000 * (w.lane[0] - used)
            self.urgent_ended += used
            w.lane = None

    def urgent_service(self) -> int:
        return self.urgent_ended + sum(self.charged_in_lane(w) for w in self.rows())

    # --- at arrival ---

    def predicted_wait(self, tenant) -> float:
        """Seconds until what the tenant itself has waiting is served, at its fair share."""
        if tenant not in self.books:
            return 0.0
        books, prices, queue = self.books[tenant], self.config.prices, self.waiting(tenant)
        ahead = sum(prices.uncached * w.spec.prompt_tokens for w in queue if w.paid is None)
        if books.mean is not None:
            most = sum(prices.output * w.cap for w in queue)
            number = sum(w.spec.sequences for w in queue)
            ahead += min(most, prices.output * books.mean * number // 1000)
        sharers = {*self.contenders(), tenant}
        weights = sum(self.books[t].terms.weight_milli for t in sharers)
        rate = self.usual_rate()
        return ahead * weights / (rate * books.terms.weight_milli) if rate else 0.0

    def note_length(self, w: Work) -> None:
        if w.out:
            books = self.books[w.spec.tenant]
            length = 1000 * w.out // w.spec.sequences
            books.mean = length if books.mean is None else (3 * books.mean + length) // 4
