"""Who goes next: the tenant whose turn it is, a late head within its budget, or whoever may pass.

The turn is the smallest counter's. When that tenant's request fits nowhere it is a misfit: others
within their slack may pass it, K times in all; then it is charged and a replica is held for it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from fairness import events
from fairness.counters import Account, Ticket
from fairness.credits import Replica
from fairness.placement import place
from fairness.pool import Pool
from fairness.types import GrantReason, MissReason, PassReason, RequestId

LOCALITY_WINDOW = 16
"""Requests of one queue that are compared for their cached prefix."""


@dataclass(slots=True)
class Choice:
    """One tenant's request, and where it fits now; None when nowhere."""

    account: Account
    ticket: Ticket
    replica: Replica | None


@dataclass(slots=True)
class Tallies:
    """What the pool counts of its grants, since its start."""

    misfits: int = 0
    overtakes_max: int = 0
    missed: dict[MissReason, int] = field(default_factory=lambda: dict.fromkeys(MissReason, 0))


class Granter:
    """Grants from a pool; `stopped_at` is the request that has a slot but not the KV it needs."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._most_passes = pool.config.max_passes
        self._nobody_passes: tuple[Account, int] | None = None
        self.stopped_at: RequestId | None = None
        self.tallies = Tallies()

    def grant_all(self) -> None:
        """Grant until nobody may go."""
        pool, ledger = self._pool, self._pool.ledger
        while True:
            if pool.pinned is not None:
                self._dispatch_pinned(pool.pinned)
            ledger.advance_floor()
            if not self._has_slot() and not pool.num_owed:
                self.stopped_at = None
                return
            turn = ledger.next()
            if turn is None:
                self.stopped_at = None
                return
            choice = self._choose(turn)
            if choice.replica is None and choice.ticket.passes >= self._most_passes:
                if not self._pin(choice):
                    self._stop_at(choice.ticket)
                    return
            elif not self._grant_one(choice):
                self._stop_at(choice.ticket)
                return

    def report_misses(self) -> None:
        """Log every head that is late now, once, with the reason."""
        pool = self._pool
        if not (late := pool.deadlines.unreported(pool.now)):
            return
        turn = pool.ledger.next()
        for ticket in late:
            account = pool.account(ticket)
            if turn is None or ticket.missed:
                continue
            if account.backlogged and account.first is ticket:
                reason = self._why_missed(turn, account, ticket)
                ticket.missed = True
                self.tallies.missed[reason] += 1
                pool.effects.append(events.Missed(pool.now, ticket.request, ticket.tenant, reason))

    # --- one step ------------------------------------------------------------------------------

    def _grant_one(self, choice: Choice) -> bool:
        """Grant a late head, the turn's choice, or who may pass it; false if nobody can go."""
        if choice.replica is None and not self._has_room():
            return False
        if (urgent := self._urgent(choice.account)) is not None:
            if choice.replica is None:
                self._pass(choice.ticket, urgent.ticket, PassReason.MISFIT)
            self._grant(urgent, GrantReason.URGENT, choice.account)
        elif choice.replica is not None:
            self._grant(choice, GrantReason.TURN, choice.account)
        elif (passer := self._passer(choice.account)) is not None:
            self._pass(choice.ticket, passer.ticket, PassReason.MISFIT)
            self._grant(passer, GrantReason.PASS, choice.account)
        else:
            return False
        return True

    def _choose(self, account: Account) -> Choice:
        """The tenant's head, or a younger sibling with a longer cached prefix that fits."""
        head = account.first
        if head is None:
            raise AssertionError(f"backlogged tenant {account.tenant} has nothing waiting")
        if account.waiting_prefixed and account.num_waiting > 1:
            best = self._longest_prefix(account, head)
            if best is not head and (replica := self._place(best)) is not None:
                return Choice(account, best, replica)
        return Choice(account, head, self._place(head))

    def _longest_prefix(self, account: Account, head: Ticket) -> Ticket:
        if head.charged is not None or head.overtakes >= self._most_passes:
            return head
        prefixes, best = self._pool.prefixes, head
        longest = prefixes.length(head)
        free = account.terms.concurrency - account.in_flight
        for ticket in self._pool.first_waiting(account, LOCALITY_WINDOW):
            if ticket.sequences <= free and prefixes.length(ticket) > longest:
                best, longest = ticket, prefixes.length(ticket)
        return best

    def _grant(self, choice: Choice, reason: GrantReason, turn: Account) -> None:
        pool, account, ticket, replica = self._pool, choice.account, choice.ticket, choice.replica
        if replica is None:
            raise AssertionError(f"request {ticket.request} fits nowhere")
        counter, least = account.counter, turn.counter
        if (head := account.first) is not None and head is not ticket:
            self._pass(head, ticket, PassReason.LOCALITY)
        if reason is GrantReason.URGENT:
            pool.lane.lend(ticket, self._worst_cost(ticket))
        charge = pool.take(account, ticket, self._lead(account, counter - least))
        replica.hold(ticket)
        pool.effects.append(
            events.Granted(
                pool.now,
                ticket.request,
                ticket.tenant,
                replica.id,
                charge,
                reason,
                counter,
                least,
            )
        )
        pool.changed(account)

    def _lead(self, account: Account, excess: int) -> int:
        """How far above the floor a tenant may stand that is granted `excess` above the turn."""
        lag = self._pool.ledger.floor_lag()
        return lag if excess <= 0 else lag + min(excess, self._slack(account))

    def _stop_at(self, ticket: Ticket) -> None:
        config = self._pool.config
        starved = any(
            replica.accepting
            and replica.reserved_for is None
            and replica.has_slots(ticket.sequences, config)
            for replica in self._pool.replicas.values()
        )
        stopped_at = ticket.request if starved else None
        self.tallies.misfits += stopped_at is not None and stopped_at != self.stopped_at
        self.stopped_at = stopped_at

    # --- misfits -------------------------------------------------------------------------------

    def _passer(self, turn: Account) -> Choice | None:
        """The first tenant in order, other than the turn's, within its slack and with room.

        When nobody could pass the same before, only those are looked at of whom something changed.
        """
        ledger, changes = self._pool.ledger, self._pool.changes
        first = ledger.rank(turn)
        looked_at: Iterable[Account] = ledger.accounts.values()
        if not changes.anything and self._nobody_passes == (turn, first):
            known = (ledger.accounts.get(tenant) for tenant in changes.tenants)
            looked_at = (account for account in known if account is not None)
        ranked = sorted(
            (rank, account.tenant)
            for account in looked_at
            if account.backlogged
            and account is not turn
            and (rank := ledger.rank(account)) <= first + self._slack(account)
        )
        for _, tenant in ranked:
            choice = self._choose(ledger.accounts[tenant])
            if choice.replica is not None:
                return choice
        self._nobody_passes = (turn, first)
        changes.seen()
        return None

    def _pass(self, ticket: Ticket, by: Ticket, reason: PassReason) -> None:
        if reason is PassReason.MISFIT:
            passes = ticket.passes = ticket.passes + 1
            self._pool.num_owed += passes == self._most_passes
        else:
            passes = ticket.overtakes = ticket.overtakes + 1
        self.tallies.overtakes_max = max(self.tallies.overtakes_max, passes)
        pool = self._pool
        pool.effects.append(
            events.Passed(pool.now, ticket.request, ticket.tenant, by.request, passes, reason)
        )

    def _pin(self, choice: Choice) -> bool:
        """Charge the misfit and hold a replica for it; false while that cannot be.

        The replica has the slots and lacks only KV: held for one more than its slots, its tenant
        could have more in flight than N says.
        """
        pool, account, ticket = self._pool, choice.account, choice.ticket
        able = [
            replica
            for replica in pool.replicas.values()
            if replica.accepting
            and replica.could_hold(ticket, pool.config)
            and replica.has_slots(ticket.sequences, pool.config)
        ]
        if pool.pinned is not None or not able:
            return False
        replica = min(able, key=lambda one: (one.lacks(ticket), one.in_flight, one.id))
        counter = account.counter
        charge = pool.take(account, ticket, self._lead(account, 0))
        pool.pin(ticket, replica)
        pool.effects.append(
            events.Pinned(
                pool.now, ticket.request, ticket.tenant, replica.id, charge, counter, counter
            )
        )
        pool.changed(account)
        return True

    def _dispatch_pinned(self, ticket: Ticket) -> None:
        pool = self._pool
        replica = pool.replicas[ticket.pinned_to or ""]
        if replica.fits(ticket, pool.config):
            pool.unpin()
            replica.hold(ticket)
            pool.effects.append(
                events.Dispatched(pool.now, ticket.request, ticket.tenant, replica.id)
            )

    # --- late heads ----------------------------------------------------------------------------

    def _urgent(self, turn: Account) -> Choice | None:
        """The oldest late head that fits and is within its slack, if the lane can afford it."""
        pool = self._pool
        if pool.lane.level < 0:
            return None
        first: int | None = None
        for ticket in pool.deadlines.overdue(pool.now):
            account = pool.account(ticket)
            if account is turn or not account.backlogged or account.first is not ticket:
                continue
            first = pool.ledger.rank(turn) if first is None else first
            if pool.ledger.rank(account) > first + self._slack(account):
                continue
            if (replica := self._place(ticket)) is None:
                continue
            pool.lane.cap(pool.ledger.largest_request())
            if self._affordable(ticket):
                return Choice(account, ticket, replica)
            return None
        return None

    def _affordable(self, ticket: Ticket) -> bool:
        depth = self._pool.ledger.largest_request()
        return self._pool.lane.affords(self._worst_cost(ticket), depth)

    def _worst_cost(self, ticket: Ticket) -> int:
        """The most the request can be charged from now on."""
        prompt = ticket.prompt_milli if ticket.charged is None else 0
        return self._pool.open_output(ticket) + prompt

    def _why_missed(self, turn: Account, account: Account, ticket: Ticket) -> MissReason:
        """What would keep it waiting even if there were room for it, or else that there is none."""
        ledger = self._pool.ledger
        if account is turn:
            return MissReason.NO_FIT
        if ledger.rank(account) > ledger.rank(turn) + self._slack(account):
            return MissReason.BEYOND_SLACK
        return MissReason.NO_FIT if self._affordable(ticket) else MissReason.BUDGET

    # --- shared --------------------------------------------------------------------------------

    def _slack(self, account: Account) -> int:
        return self._pool.policy.slack(account.caps.slack_norm)

    def _place(self, ticket: Ticket) -> Replica | None:
        return place(self._pool.replicas.values(), ticket, self._pool.config)

    def _has_slot(self) -> bool:
        """Whether some replica has a slot, without which nothing fits."""
        config = self._pool.config
        for replica in self._pool.replicas.values():
            most = replica.capacity.slots + config.lookahead
            if replica.accepting and replica.reserved_for is None and replica.in_flight < most:
                return True
        return False

    def _has_room(self) -> bool:
        """Whether the smallest of all requests would fit somewhere."""
        config = self._pool.config
        return any(replica.has_room(config) for replica in self._pool.replicas.values())
