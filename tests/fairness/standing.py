"""Who stands where: queues, states, the floor and the deadlines, as the outside works them out."""

from collections import defaultdict, deque

from fairness import events
from fairness.types import PoolConfig, TenantTerms
from tests.fairness.outside import (
    BACKLOGGED,
    BLOCKED,
    IDLE,
    Account,
    Room,
    Seen,
    ceil,
    demand,
)

CAUSES = {
    events.Lifted: "on becoming backlogged c is at least V",
    events.Headed: "a head has a deadline",
    events.Blocked: "a block is told",
    events.Unblocked: "the end of a block is told",
    events.Unpinned: "what a lost replica was held for waits again",
    events.Missed: "a missed deadline is told",
}


class Standing:
    """`told` are the effects of the event in hand that no cause was found for yet."""

    def __init__(self, config: PoolConfig, *, fair: bool) -> None:
        self.config = config
        self.prices = config.prices
        self.fair = fair
        self.live: dict[str, Seen] = {}
        self.accounts: dict[str, Account] = {}
        self.terms: dict[str, TenantTerms] = {}
        self.replicas: dict[str, Room] = {}
        self.pinned: Seen | None = None
        self.prefixes: dict[int, None] = {}
        self.altered: set[str] = set()
        self.told: dict[tuple[type, str], deque] = defaultdict(deque)
        self.refused: list[events.Refused] = []
        self.now = 0.0
        self.floor = self.credit = self.arrivals = 0
        self.service = self.most_service = 0
        self.level = self.urgent = self.largest_urgent = 0

    # --- one event ---

    def begin(self, now: float, effects) -> None:
        """Sort what is told to follow from the event, so that each cause can find it."""
        self.now = now
        self.refused = [e for e in effects if type(e) is events.Refused]
        self.told.clear()
        for effect in effects:
            if type(effect) in CAUSES:
                of = effect.request if hasattr(effect, "request") else effect.tenant
                self.told[type(effect), of].append(effect)

    def expect(self, kind: type, of: str):
        """The effect that must have been told now, once."""
        waiting = self.told.get((kind, of))
        demand(waiting, CAUSES[kind], of, self.now)
        return waiting.popleft()

    def finish(self) -> None:
        """Everything told had its cause."""
        left = [effect for told in self.told.values() for effect in told]
        left += [effect for effect in self.refused if effect.request in self.live]
        demand(not left, "nothing is told without cause", left)

    # --- states, floor and deadlines ---

    def look(self, account: Account) -> None:
        """Something of the tenant changed: what its new state brings must have been told."""
        head, was = account.head, account.state
        if head is None:
            account.state = IDLE
            return
        fits = account.in_flight + head.spec.sequences <= account.terms.concurrency
        account.state = BACKLOGGED if fits else BLOCKED
        if not fits:
            if was != BLOCKED:
                self.expect(events.Blocked, account.tenant)
                self._stop_clock(head)
            return
        if was == BLOCKED:
            self.expect(events.Unblocked, account.tenant)
        if was != BACKLOGGED:
            self._join(account)
        if head.deadline is None:
            self._start_clock(account, head)

    def _join(self, account: Account) -> None:
        account.dip_raw = 1000 * account.unsettled
        level = self.floor * account.terms.weight_milli
        if account.raw < level:
            lifted = self.expect(events.Lifted, account.tenant)
            demand(lifted.counter == self.floor, "a lift is to the floor", lifted, self.floor)
            account.raw = level

    def _stop_clock(self, head: Seen) -> None:
        if head.deadline is not None:
            head.left = max(0.0, head.deadline - self.now)
            head.deadline = None

    def _start_clock(self, account: Account, head: Seen) -> None:
        """A deadline once given stands; after a block what was left of it."""
        told = self.expect(events.Headed, head.spec.request)
        config = self.config
        if head.left is not None:
            left, work = head.left, 0
            demand(told.rate_milli == 0, "the clock stands while blocked", told)
        else:
            work = self._work_before(account)
            left = config.t_max_s
            if told.rate_milli:
                left = min(left, max(config.t_min_s, work / told.rate_milli))
        demand(told.work_milli == work, "a deadline is made of its terms", told, work)
        demand(
            abs(told.deadline - self.now - left) < 1e-6, "a deadline is what is left", told, left
        )
        head.deadline, head.left = told.deadline, None

    def _work_before(self, account: Account) -> int:
        """The most that the pool may do before this head's turn has come."""
        others = [a for a in self.accounts.values() if a.state == BACKLOGGED and a is not account]
        weights = sum(a.terms.weight_milli for a in others)
        apart = account.norm(account.stake) + self.floor_lag()
        own = account.output + account.refund
        return own + ceil(weights * apart, 1000) + sum(a.stake for a in others)

    def floor_lag(self) -> int:
        """M."""
        return max(a.norm(max(a.refund, a.unsettled)) for a in self.accounts.values())

    def advance_floor(self) -> None:
        """V is the largest value that the smallest settled counter has had."""
        settled = [a.settled for a in self.accounts.values() if a.state == BACKLOGGED]
        if settled:
            self.floor = max(self.floor, min(settled))

    # --- what fits ---

    def could_hold(self, room: Room, seen: Seen) -> bool:
        """Whether it would fit if nothing else were there."""
        capacity = room.capacity
        return (
            seen.spec.sequences <= capacity.slots + self.config.lookahead
            and seen.blocks(capacity.block_size) <= capacity.kv_tokens // capacity.block_size
        )

    def homeless(self, seen: Seen) -> bool:
        """Replicas accept, and none of them could ever hold it."""
        up = [room for room in self.replicas.values() if room.accepting]
        return bool(up) and not any(self.could_hold(room, seen) for room in up)

    def fits(self, room: Room, seen: Seen) -> bool:
        """Whether the replica has credit for it now; one held for a pin has it for no other."""
        if not room.accepting or (
            self.pinned is not None and self.pinned.pinned == room.name and seen is not self.pinned
        ):
            return False
        if not room.in_flight:
            return self.could_hold(room, seen)
        capacity = room.capacity
        sequences = room.in_flight + seen.spec.sequences
        blocks = room.blocks + seen.blocks(capacity.block_size)
        blocks += self.config.growth_blocks * sequences
        return (
            sequences <= capacity.slots + self.config.lookahead
            and blocks <= capacity.kv_tokens // capacity.block_size
        )

    def fits_somewhere(self, seen: Seen) -> bool:
        return any(self.fits(room, seen) for room in self.replicas.values())

    def known_prefix(self, seen: Seen) -> int:
        """How many of its leading blocks some earlier grant had too."""
        known = 0
        for block in seen.spec.prefix:
            if block not in self.prefixes:
                break
            known += 1
        return known
