"""The state of one pool and its transitions: every change of an account or a ticket is made here.

`Dispatcher` decides what an input means and `Granter` who goes next; both act through this. After
each change of an account `changed` looks at it again: who becomes backlogged is lifted, who becomes
a head gets its deadline, and a limit of the tenant's own stops that clock.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from fairness import events
from fairness.changes import Changes
from fairness.counters import Account, Ticket
from fairness.credits import Replica
from fairness.ledger import Ledger
from fairness.ordering import SPARE
from fairness.policy import Policy
from fairness.prefixes import PrefixIndex
from fairness.starvation import Deadlines, RateMeter, UrgentLane
from fairness.types import PoolConfig, ReplicaId, RequestId


class Pool:
    """One pool. `effects` are what has followed from the event in hand, in order.

    `service` is the net charge of all requests so far; `pinned` waits for its own replica, charged
    and counted as in flight; `num_owed` waiting misfits were passed as often as may be. `changes`
    are told of all that could let somebody pass a misfit who could not before, but for the turn's
    own counter: credit or an amount that came back, a queue that changed, a prefix now known.
    """

    def __init__(self, config: PoolConfig, policy: Policy) -> None:
        self.config = config
        self.policy = policy
        self.ledger = Ledger(policy, config)
        self.tickets: dict[RequestId, Ticket] = {}
        self.replicas: dict[ReplicaId, Replica] = {}
        self.prefixes = PrefixIndex()
        self.lane = UrgentLane(config.urgent_share_milli)
        self.rates = RateMeter()
        self.deadlines = Deadlines()
        self.pinned: Ticket | None = None
        self.num_owed = 0
        self.changes = Changes()
        self.service = 0
        self.num_arrivals = 0
        self.now = 0.0
        self.effects: list[events.Effect] = []
        self._output_price = config.prices.output
        self._stamps = count(1)
        self._expiries: list[tuple[float, int, Ticket]] = []

    def begin(self, now: float) -> None:
        """Time has come to `now`, before the event that says so is looked at."""
        self.rates.advance(now, self.service, backlogged=self.ledger.num_backlogged > 0)
        self.now = now
        self.effects = []

    # --- queues --------------------------------------------------------------------------------

    def head(self, account: Account) -> Ticket | None:
        """The tenant's first waiting request; entries of requests that left are dropped here."""
        waiting = account.waiting
        while waiting:
            _, _, stamp, ticket = waiting[0]
            if ticket.stamp == stamp:
                return ticket
            heappop(waiting)
        return None

    def first_waiting(self, account: Account, most: int) -> list[Ticket]:
        """The first requests of the tenant's queue, at most so many, in order.

        It goes down the heap from its top, so a long queue costs no more than a short one.
        """
        waiting, found = account.waiting, list[Ticket]()
        frontier = [(waiting[0], 0)] if waiting else []
        while frontier and len(found) < most:
            (_, _, stamp, ticket), index = heappop(frontier)
            if ticket.stamp == stamp:
                found.append(ticket)
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(waiting):
                    heappush(frontier, (waiting[child], child))
        return found

    def wait(self, account: Account, ticket: Ticket) -> None:
        """Queue a request; one that was granted before goes to the front."""
        ticket.stamp = next(self._stamps)
        self.changes.note(account)
        again = ticket.charged is not None
        heappush(account.waiting, (0 if again else 1, ticket.arrival, ticket.stamp, ticket))
        self.watch_expiry(ticket)
        if ticket.deadline is not None:
            self.deadlines.start(ticket)
        self._tally(account, ticket, 1)

    def leave_queue(self, account: Account, ticket: Ticket) -> None:
        """The request waits no longer."""
        ticket.stamp = 0
        self.changes.note(account)
        self._tally(account, ticket, -1)
        if len(account.waiting) > 2 * account.num_waiting + SPARE:
            account.waiting = [entry for entry in account.waiting if entry[3].stamp == entry[2]]
            heapify(account.waiting)

    def watch_expiry(self, ticket: Ticket) -> None:
        """The request is to end when its TTL is over, unless it is in flight then."""
        expiry = ticket.enqueued_at + self.config.ttl_s
        heappush(self._expiries, (expiry, ticket.arrival, ticket))

    def due(self) -> Iterator[Ticket]:
        """The requests that have waited, or been pinned, for their whole TTL."""
        while self._expiries and self._expiries[0][0] <= self.now:
            ticket = heappop(self._expiries)[2]
            known = self.tickets.get(ticket.request) is ticket
            if known and (ticket.stamp or ticket is self.pinned):
                yield ticket

    # --- charges -------------------------------------------------------------------------------

    def charge(self, account: Account, ticket: Ticket, milli: int) -> None:
        """Charge a request to its tenant; a negative amount is a correction or a refund."""
        account.charge(milli)
        self.service += milli
        if milli < 0:
            self.changes.note(account)
        self.lane.filled(ticket, milli)
        self.policy.charged(account, milli)

    def open_output(self, ticket: Ticket) -> int:
        """What the request can still be charged for output."""
        return self._output_price * (ticket.output_limit - ticket.output_tokens)

    def account(self, ticket: Ticket) -> Account:
        """The account of a request's tenant."""
        return self.ledger.accounts[ticket.tenant]

    # --- transitions ---------------------------------------------------------------------------

    def take(self, account: Account, ticket: Ticket, lead: int) -> int:
        """Grant a waiting request: it counts as in flight and is charged its prompt, once.

        `lead`: how far above the floor its tenant may have stood. Returns the charge.
        """
        first_time = ticket.charged is None
        prompt = ticket.prompt_milli if first_time else 0
        self.leave_queue(account, ticket)
        account.in_flight += ticket.sequences
        account.open_output += self.open_output(ticket)
        account.note_grant(lead, prompt)
        if first_time:
            ticket.charged = prompt
            account.unsettled += prompt
            self.charge(account, ticket, prompt)
        self.ledger.granted(account)
        if ticket.prefix:
            self.prefixes.touch(ticket)
            self.changes.note_all()
        self.policy.granted(account, ticket)
        return prompt

    def land(self, account: Account, ticket: Ticket) -> None:
        """The request is in flight, or pinned, no longer: its credit returns."""
        replica = self.holder(ticket)
        if replica is not None:
            replica.release(ticket)
        if ticket is self.pinned:
            self.unpin()
        ticket.replica = None
        account.in_flight -= ticket.sequences
        account.open_output -= self.open_output(ticket)
        self.lane.settle(ticket)
        self.policy.ended(account, ticket)
        self.changes.note_all()

    def land_and_wait(self, ticket: Ticket) -> None:
        """An unstarted request waits again, under its charge."""
        account = self.account(ticket)
        self.land(account, ticket)
        self.wait(account, ticket)
        self.changed(account)

    def end(self, account: Account, ticket: Ticket) -> None:
        """Forget a request that neither waits nor is in flight."""
        account.unsettled -= ticket.refundable
        del self.tickets[ticket.request]
        self.changed(account)

    def withdraw(self, ticket: Ticket) -> None:
        """End a request that waits or is pinned; it gets back what it was charged."""
        account = self.account(ticket)
        self.charge(account, ticket, -(ticket.charged or 0))
        if ticket is self.pinned:
            self.land(account, ticket)
        else:
            self.leave_queue(account, ticket)
        self.end(account, ticket)

    def pin(self, ticket: Ticket, replica: Replica) -> None:
        """Hold a replica for a request that was taken."""
        self.pinned, ticket.pinned_to = ticket, replica.id
        replica.reserved_for = ticket

    def unpin(self) -> None:
        """Nothing is pinned any more."""
        ticket, self.pinned = self.pinned, None
        if ticket is None or ticket.pinned_to is None:
            raise AssertionError("nothing is pinned")
        replica = self.replicas.get(ticket.pinned_to)
        if replica is not None:
            replica.reserved_for = None
        ticket.pinned_to = None
        self.changes.note_all()

    def resize(self, ticket: Ticket, prompt_tokens: int, output_tokens: int) -> None:
        """Change a ticket's lengths together with the blocks its replica counts for it."""
        shorter = prompt_tokens < ticket.kv_prompt_tokens
        replica = self.holder(ticket)
        if replica is not None:
            replica.num_blocks -= ticket.num_blocks(replica.capacity.block_size)
        ticket.kv_prompt_tokens = prompt_tokens
        ticket.output_tokens = output_tokens
        if replica is not None:
            replica.num_blocks += ticket.num_blocks(replica.capacity.block_size)
        if shorter:
            self.changes.note_all()

    def holder(self, ticket: Ticket) -> Replica | None:
        """The replica that counts the ticket as in flight; None once that replica was lost."""
        replica = self.replicas.get(ticket.replica or "")
        return replica if replica is not None and ticket.request in replica.held else None

    # --- what a tenant has become --------------------------------------------------------------

    def changed(self, account: Account) -> None:
        """Look at an account again after any change of it or of its queue."""
        head = self.head(account)
        if head is not account.first:
            account.first = head
            self.changes.note(account)
        if head is None:
            self._became_idle(account)
        elif account.in_flight + head.sequences > account.terms.concurrency:
            self._became_blocked(account, head)
        else:
            self._became_backlogged(account, head)

    def _became_idle(self, account: Account) -> None:
        if account.backlogged_since is not None:
            self.ledger.leave(account)
        account.blocked = False
        if account.in_flight == 0:
            self.ledger.rest(account)

    def _became_blocked(self, account: Account, head: Ticket) -> None:
        if account.backlogged_since is not None:
            self.ledger.leave(account)
        if account.blocked:
            return
        account.blocked = True
        self.effects.append(events.Blocked(self.now, account.tenant))
        if head.deadline is not None:
            head.left_s = max(0.0, head.deadline - self.now)
            head.deadline = None

    def _became_backlogged(self, account: Account, head: Ticket) -> None:
        if account.backlogged_since is not None:
            self.ledger.moved(account)
        else:
            if account.blocked:
                account.blocked = False
                self.effects.append(events.Unblocked(self.now, account.tenant))
            self.changes.note(account)
            if self.ledger.join(account, self.now):
                self.effects.append(events.Lifted(self.now, account.tenant, account.counter))
        if head.deadline is None:
            self._start_clock(account, head)

    def _start_clock(self, account: Account, head: Ticket) -> None:
        """The head gets its deadline, or what was left of it when its tenant was blocked."""
        work, rate = 0, 0
        if head.left_s is not None:
            head.deadline = self.now + head.left_s
        else:
            work, rate = self.ledger.work_before(account), self.rates.low
            head.deadline = self.now + self._time_for(work, rate)
        self.deadlines.start(head)
        self.effects.append(
            events.Headed(self.now, head.request, head.tenant, head.deadline, work, rate)
        )

    def _time_for(self, work: int, rate: int) -> float:
        config = self.config
        if rate == 0:
            return config.t_max_s
        return min(config.t_max_s, max(config.t_min_s, work / rate))

    def _tally(self, account: Account, ticket: Ticket, sign: int) -> None:
        account.num_waiting += sign
        if ticket.passes >= self.config.max_passes:
            self.num_owed += sign
        account.waiting_sequences += sign * ticket.sequences
        account.waiting_output += sign * ticket.output_limit
        account.waiting_prefixed += sign * bool(ticket.prefix)
        if ticket.charged is None:
            account.waiting_prompts += sign * ticket.prompt_milli
