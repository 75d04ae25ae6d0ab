"""Who may be granted: the smallest counter, a passer within slack, an urgent head, a pinned misfit.

Looks at each grant before it enters the books, and at the moment when the pool stops.
"""

from dataclasses import dataclass

from fairness import events
from fairness.types import GrantReason, PassReason
from tests.fairness.books import Books
from tests.fairness.outside import BACKLOGGED, Account, Room, Seen, demand

WINDOW = 16


@dataclass(slots=True)
class Turn:
    """Whose turn it is, what it would send, and whether that fits anywhere now."""

    least: Account
    chosen: Seen
    fits: bool
    must_wait: bool
    must_pin: bool


class Turns:
    """`passed` collects what is said to have been passed until the grant that did it."""

    def __init__(self, books: Books, ratios: dict[str, float]) -> None:
        self.books = books
        self.config = books.config
        self.ratios = ratios
        self.passed: list[events.Passed] = []
        self.must_wait = False
        self.stopped_at: str | None = None
        self.misfits = 0
        self.grants = 0
        self.urgent_grants = 0
        self.most_passes = 0

    # --- effects, in their order ---

    def see_pass(self, effect: events.Passed) -> None:
        most = self.config.max_passes
        demand(effect.passes <= most, "a request is passed at most K times", effect)
        self.passed.append(effect)

    def see_grant(self, effect: events.Granted) -> None:
        books = self.books
        turn = self._next_turn(effect)
        seen, account = self._granted(effect)
        self._see_credit(effect, seen, account)
        demand(not turn.must_pin, "a misfit passed K times is pinned before others go", effect)
        demand(not turn.must_wait, "a misfit passed K times is passed by nobody", effect)
        urgent = self._urgent(turn)
        if effect.reason is GrantReason.URGENT:
            late = seen.deadline is not None and seen.deadline <= books.now
            demand(late, "an urgent request is late", effect)
            demand(urgent is not None, "an urgent grant is within its budget", effect)
        if urgent is not None:
            demand(effect.reason is GrantReason.URGENT, "an urgent head goes next", effect, urgent)
            demand(seen is urgent, "the oldest deadline goes first", effect, urgent)
        elif turn.fits:
            demand(account is turn.least, "the smallest counter goes first", effect, turn)
            demand(effect.reason is GrantReason.TURN, "a grant gives its reason", effect)
            demand(seen is turn.chosen, "the longest prefix goes, or the oldest", effect, turn)
        else:
            demand(effect.reason is GrantReason.PASS, "a grant gives its reason", effect, turn)
            demand(account is not turn.least, "a misfit is not granted", effect)
            demand(seen is self._choose(account)[0], "the longest prefix goes", effect)
        told = effect.counter, effect.least
        demand(told == (account.counter, turn.least.counter), "a grant tells the counters", effect)
        self._see_passes(seen, account, None if turn.fits else turn.chosen)
        cost = None
        if urgent is not None:
            cost = self._cost(seen)
            self.urgent_grants += 1
        fee = books.grant(seen, effect.replica, cost=cost)
        demand(effect.charge_milli == fee, "the prompt is charged once, at grant", effect, fee)
        self.grants += 1

    def see_pin(self, effect: events.Pinned) -> None:
        books = self.books
        turn = self._next_turn(effect)
        seen, account = self._granted(effect)
        demand(books.pinned is None, "one request is pinned at a time", effect)
        demand(seen is turn.chosen and account is turn.least, "the misfit is pinned", effect)
        demand(not turn.fits, "what fits is not pinned", effect)
        demand(seen.passes >= self.config.max_passes, "a pin follows K passes", effect, seen.passes)
        told = effect.counter, effect.least
        demand(told == (account.counter, account.counter), "a pin tells the counters", effect)
        room = books.replicas.get(effect.replica)
        demand(room is not None and self._holdable(room, seen), "a pin has its slots", effect)
        held = account.in_flight + seen.spec.sequences
        demand(held <= account.terms.concurrency, "concurrency holds", effect, held)
        self._see_passes(seen, account, None)
        fee = books.pin(seen, effect.replica)
        demand(effect.charge_milli == fee, "the prompt is charged once, at the pin", effect, fee)
        self.grants += 1

    def see_dispatch(self, effect: events.Dispatched) -> None:
        books = self.books
        seen = books.pinned
        demand(
            seen is not None
            and (seen.spec.request, seen.pinned) == (effect.request, effect.replica),
            "what was pinned is dispatched, where it was pinned",
            effect,
        )
        fits = books.fits(books.replicas[effect.replica], seen)
        demand(fits, "a pinned request is dispatched when it fits", effect)
        books.dispatch(seen)

    def see_stop(self) -> None:
        """The pool grants nothing more: nobody was left who could go."""
        books = self.books
        demand(not self.passed, "a pass is by a grant", self.passed)
        pinned = books.pinned
        if pinned is not None:
            fits = books.fits(books.replicas[pinned.pinned], pinned)
            demand(not fits, "a pinned request that fits is dispatched", pinned.spec)
        self.must_wait = False
        turn = self._turn()
        self._note_stop(turn)
        if turn is None:
            return
        demand(not turn.fits, "the pool idles only when the next fits nowhere", turn)
        demand(not turn.must_pin, "a misfit passed K times is pinned", turn)
        self.must_wait = turn.must_wait
        if not turn.must_wait:
            demand(self._urgent(turn) is None, "an urgent head goes next", turn)
            passer = self._passer(turn)
            demand(passer is None, "the pool idles only when none within slack fits", turn, passer)

    def _note_stop(self, turn: Turn | None) -> None:
        """A stop is for want of KV when some replica has the slots for the one whose turn it is."""
        before, self.stopped_at = self.stopped_at, None
        held = None if self.books.pinned is None else self.books.pinned.pinned
        if turn is not None:
            wanted = turn.chosen.spec.sequences
            for room in self.books.replicas.values():
                free = room.capacity.slots + self.config.lookahead - room.in_flight
                if room.accepting and room.name != held and wanted <= free:
                    self.stopped_at = turn.chosen.spec.request
        self.misfits += self.stopped_at not in {None, before}

    # --- parts ---

    def _granted(self, effect) -> tuple[Seen, Account]:
        """The request and account of a grant or pin, which must stand within the slack."""
        books = self.books
        seen = books.live.get(effect.request)
        demand(seen is not None and seen.waits, "a request is granted once at a time", effect)
        demand(seen.spec.tenant == effect.tenant, "a request is its tenant's", effect)
        account = books.accounts[effect.tenant]
        demand(account.state == BACKLOGGED, "only a backlogged tenant is granted", effect)
        smallest = min(a.counter for a in books.accounts.values() if a.state == BACKLOGGED)
        excess = account.counter - smallest
        if books.fair:
            demand(excess <= account.norm_slack, "a grant is within min + Z", effect, excess)
        self._note("grant", excess, account.norm_slack)
        return seen, account

    def _see_passes(self, seen: Seen, account: Account, misfit: Seen | None) -> None:
        """The passes told are those that this grant makes, each counted and within K."""
        due = []
        if misfit is not None:
            due.append((misfit, PassReason.MISFIT))
        if seen is not account.head:
            due.append((account.head, PassReason.LOCALITY))
        told = [(self.books.live.get(p.request), p.reason) for p in self.passed]
        demand(told == due, "a pass is told when it is made", self.passed, due)
        for effect, (passed, reason) in zip(self.passed, due, strict=True):
            demand(effect.by == seen.spec.request, "a pass is by the grant that follows", effect)
            if reason is PassReason.MISFIT:
                passed.passes += 1
                count = passed.passes
            else:
                passed.overtakes += 1
                count = passed.overtakes
                longer = self.books.known_prefix(seen) > self.books.known_prefix(passed)
                demand(longer, "a longer prefix passes, no other", effect)
            demand(effect.passes == count, "passes are counted", effect, count)
            self.most_passes = max(self.most_passes, count)
            self._note(f"{reason.value}_passes", count, self.config.max_passes)
        self.passed = []

    def _see_credit(self, effect: events.Granted, seen: Seen, account: Account) -> None:
        books = self.books
        held = account.in_flight + seen.spec.sequences
        demand(held <= account.terms.concurrency, "concurrency holds", effect, held)
        pinned = books.pinned
        demand(
            pinned is None or pinned.pinned != effect.replica,
            "a held replica takes nobody else",
            effect,
        )
        room = books.replicas.get(effect.replica)
        demand(room is not None and room.accepting, "a grant names a replica that accepts", effect)
        demand(books.fits(room, seen), "a grant finds credit", effect)

    def _next_turn(self, effect) -> Turn:
        turn = self._turn()
        demand(turn is not None, "a grant goes to a tenant that waits", effect)
        return turn

    def _turn(self) -> Turn | None:
        books = self.books
        books.advance_floor()
        waiting = [a for a in books.accounts.values() if a.state == BACKLOGGED]
        if not waiting:
            return None
        least = min(waiting, key=self.rank)
        chosen, fits = self._choose(least)
        full = not fits and chosen.passes >= self.config.max_passes
        pinnable = (
            full
            and books.pinned is None
            and any(self._holdable(room, chosen) for room in books.replicas.values())
        )
        return Turn(least, chosen, fits, full and not pinnable, pinnable)

    def rank(self, account: Account) -> tuple[int, str]:
        """Counters, or for first come, first served the arrival of the head."""
        rank = account.counter if self.books.fair else account.head.arrival
        return rank, account.tenant

    def within_slack(self, account: Account, least: Account) -> bool:
        slack = account.norm_slack if self.books.fair else 0
        return self.rank(account)[0] <= self.rank(least)[0] + slack

    def _holdable(self, room: Room, seen: Seen) -> bool:
        """Whether a replica may be held for it: all it lacks there is KV, and not for ever."""
        free = room.capacity.slots + self.config.lookahead - room.in_flight
        return room.accepting and seen.spec.sequences <= free and self.books.could_hold(room, seen)

    def _choose(self, account: Account) -> tuple[Seen, bool]:
        """What a tenant sends next, and whether it fits: its longest known prefix, or its head."""
        books, head = self.books, account.head
        if not head.granted and head.overtakes < self.config.max_passes:
            best, longest = head, books.known_prefix(head)
            for _, _, seen in account.waiting[:WINDOW]:
                held = account.in_flight + seen.spec.sequences
                if held <= account.terms.concurrency and books.known_prefix(seen) > longest:
                    best, longest = seen, books.known_prefix(seen)
            if best is not head and books.fits_somewhere(best):
                return best, True
        return head, books.fits_somewhere(head)

    def _passer(self, turn: Turn) -> Seen | None:
        for account in self.books.accounts.values():
            if account.state == BACKLOGGED and account is not turn.least:
                chosen, fits = self._choose(account)
                if fits and self.within_slack(account, turn.least):
                    return chosen
        return None

    # --- the urgent lane ---

    def _lane_head(self, least: Account) -> Seen | None:
        """The overdue head with the oldest deadline that is within slack and fits somewhere."""
        books = self.books
        overdue = []
        for account in books.accounts.values():
            if account.state == BACKLOGGED:
                head = account.head
                if head.deadline <= books.now and account is not least:
                    overdue.append((head.deadline, head.arrival, head, account))
        for _, _, head, account in sorted(overdue, key=lambda entry: entry[:2]):
            if self.within_slack(account, least) and books.fits_somewhere(head):
                return head
        return None

    def _urgent(self, turn: Turn) -> Seen | None:
        """The head that the urgent lane sends now: the first in it, if its budget allows."""
        head = self._lane_head(turn.least)
        if head is None:
            return None
        self.books.level = min(self.books.level, 1000 * self._depth())
        return head if self.affordable(head) else None

    def affordable(self, head: Seen) -> bool:
        """Whether the lane could pay for it; a full bucket pays for anything."""
        return self.books.level >= 1000 * min(self._cost(head), self._depth())

    def _depth(self) -> int:
        return max(account.largest for account in self.books.accounts.values())

    def _cost(self, seen: Seen) -> int:
        prices = self.books.prices
        prompt = 0 if seen.granted else prices.uncached * seen.spec.prompt_tokens
        return prompt + prices.output * (seen.output_limit - seen.out)

    def _note(self, what: str, observed: int, bound: int) -> None:
        if observed > 0 and bound > 0:
            self.ratios[what] = max(self.ratios[what], observed / bound)
