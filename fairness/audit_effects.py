"""Checks every effect of a log against the audit's book: grants, passes, misses, what must follow.

A grant must be of a waiting request of a backlogged tenant, charged what its prompt costs, within
the tenant's slack of the smallest counter, in its order or past others as often as allowed, on a
replica with a slot. An urgent one must be within the lane's budget.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from fairness.audit_accounts import UNIT, Request, Tenant
from fairness.audit_book import Book
from fairness.events import (
    Dispatched,
    Effect,
    Forgotten,
    Granted,
    Missed,
    Passed,
    Pinned,
)
from fairness.types import GrantReason, PassReason

Complain = Callable[[str, str], None]


class Effects:
    """Takes the effects of one input after the other; `complain` is told the check and why.

    `fair` says whether the pool's policy promises that the smallest counter goes first.
    """

    def __init__(self, book: Book, complain: Complain, *, fair: bool) -> None:
        self._book = book
        self._complain = complain
        self._fair = fair
        self._passed: list[Passed] = []
        self._running: list[tuple[float, int, Request]] = []
        self._late: dict[str, Request] = {}

    def take(self, effect: Effect) -> None:
        """The next effect in the log."""
        match effect:
            case Granted() | Pinned():
                self._decided()
                self._granted(effect)
            case Passed():
                self._decided()
                self._pass(effect)
            case Dispatched():
                self._decided()
                self._dispatched(effect)
            case Missed():
                self._decided()
                self._missed(effect)
            case Forgotten():
                self._decided()
                self._forgotten(effect)
            case _:
                self._follows(effect)

    def finish(self) -> None:
        """The input's effects are over: nothing may be left to say."""
        self._decided()
        if self._passed:
            self._complain("passes", f"{self._passed[0].by} passed and was not granted")
            self._passed.clear()
        self._book.advance_floor()
        self._look_for_misses()

    # --- what must follow ---------------------------------------------------------------------

    def _decided(self) -> None:
        """Before a decision all that must follow from the change before it has to be there."""
        expected = self._book.expected
        if expected:
            missing = expected[0]
            self._complain("transitions", f"{_short(missing)} should be here and is missing")
            expected.clear()

    def _follows(self, effect: Effect) -> None:
        expected = self._book.expected
        if not expected:
            self._complain("transitions", f"nothing leads to {_short(effect)}")
            return
        wanted = expected.popleft()
        if effect != wanted:
            expected.clear()
            self._complain("transitions", f"{_short(wanted)} should be here: {wanted}")

    # --- grants -------------------------------------------------------------------------------

    def _granted(self, effect: Granted | Pinned) -> None:
        book = self._book
        book.advance_floor()
        request = book.requests.get(effect.request)
        if request is None or not request.queued or request.tenant != effect.tenant:
            self._complain("grants", "the request does not wait in this tenant's queue")
            self._passed.clear()
            return
        tenant = book.tenants[request.tenant]
        reason = effect.reason if isinstance(effect, Granted) else GrantReason.TURN
        self._check_order(effect, tenant, reason)
        self._check_passes(request, tenant)
        self._check_charge(effect, request, tenant)
        if reason is GrantReason.URGENT:
            self._lend(request)
        excess = min(max(0, effect.counter - effect.least), tenant.limits.slack_norm)
        book.take(tenant, request, excess)
        if isinstance(effect, Granted):
            self._hold(request, effect.replica)
        else:
            book.pinned, book.pinned_to = request, effect.replica
        book.look(tenant)

    def _check_order(self, effect: Granted | Pinned, tenant: Tenant, reason: GrantReason) -> None:
        if not tenant.backlogged:
            self._complain("grants", "its tenant is blocked by a limit of its own")
        if effect.counter != tenant.counter:
            self._complain(
                "counters", f"the tenant's counter is {tenant.counter}, not {effect.counter}"
            )
        least = self._book.least()
        if not self._fair or least is None:
            return
        if effect.least != least.counter:
            self._complain(
                "order", f"the smallest counter is {least.counter}, of {least.tenant}: not this"
            )
        if reason is GrantReason.TURN and tenant is not least:
            self._complain("order", f"it is the turn of {least.tenant}")
        beyond = tenant.counter - least.counter - tenant.limits.slack_norm
        if beyond > 0:
            self._complain("order", f"the tenant is {beyond} beyond the smallest counter and Z")

    def _check_passes(self, request: Request, tenant: Tenant) -> None:
        head = self._book.head(tenant)
        behind = head if head is not request else None
        for passed in self._passed:
            if passed.by != request.request:
                self._complain("passes", f"{passed.by} was to be granted next")
            if behind is not None and passed.request == behind.request:
                behind = None
        if behind is not None:
            self._complain("passes", f"it is granted before {behind.request} without a pass")
        self._passed.clear()

    def _check_charge(self, effect: Granted | Pinned, request: Request, tenant: Tenant) -> None:
        cost = 0
        if request.charged is None:
            cost = self._book.config.prices.uncached * request.prompt_tokens
        if effect.charge_milli != cost:
            self._complain("charges", f"its prompt costs {cost}, not {effect.charge_milli}")
        if tenant.in_flight + request.sequences > tenant.terms.concurrency:
            self._complain("grants", "its tenant's concurrency is exceeded")

    def _lend(self, request: Request) -> None:
        book = self._book
        prompt = book.config.prices.uncached * request.prompt_tokens
        cost = book.open_output(request) + (prompt if request.charged is None else 0)
        depth = book.largest.value
        book.room = min(book.room, UNIT * depth)
        if book.room < UNIT * min(cost, depth):
            self._complain(
                "urgent", f"the urgent lane may spend {book.room // UNIT}, this costs {cost}"
            )
        book.room -= UNIT * cost
        request.lent, request.spent = cost, 0

    def _hold(self, request: Request, name: str) -> None:
        book = self._book
        replica = book.replicas.get(name)
        request.replica = name
        if replica is None or not replica.accepting:
            self._complain("credit", f"replica {name} takes no requests")
            return
        if name == book.pinned_to:
            self._complain("credit", f"replica {name} is held for another request")
        most = replica.capacity.slots + book.config.lookahead
        if replica.in_flight + request.sequences > most:
            self._complain("credit", f"replica {name} has no slot for it")
        replica.held[request.request] = request

    def _dispatched(self, effect: Dispatched) -> None:
        book = self._book
        request = book.pinned
        if request is None or request.request != effect.request:
            self._complain("grants", "the request is not pinned")
            return
        if book.pinned_to != effect.replica:
            self._complain("grants", f"it is pinned to {book.pinned_to}")
        book.pinned = book.pinned_to = None
        self._hold(request, effect.replica)

    def _pass(self, effect: Passed) -> None:
        request = self._book.requests.get(effect.request)
        if request is None or not request.queued:
            self._complain("passes", "the request that is passed does not wait")
            return
        if effect.reason is PassReason.MISFIT:
            passes = request.passes = request.passes + 1
        else:
            passes = request.overtakes = request.overtakes + 1
        if passes != effect.passes:
            self._complain("passes", f"it is passed for the {passes}. time")
        if passes > self._book.config.max_passes:
            self._complain("passes", f"more than K = {self._book.config.max_passes} passes")
        self._passed.append(effect)

    # --- misses and ends ----------------------------------------------------------------------

    def _missed(self, effect: Missed) -> None:
        request = self._book.requests.get(effect.request)
        due = request is not None and request.deadline is not None
        if request is None or not due or not self._is_late_head(request):
            self._complain("deadlines", "no deadline passed that is not logged yet")
            return
        request.missed = True
        self._late.pop(request.request, None)

    def _look_for_misses(self) -> None:
        now, clocks = self._book.now, self._book.clocks
        while clocks:
            request = clocks.pop()
            if request.deadline is not None:
                heappush(self._running, (request.deadline, request.arrival, request))
        while self._running and self._running[0][0] <= now:
            deadline, _, request = heappop(self._running)
            if request.queued and request.deadline == deadline and not request.missed:
                self._late[request.request] = request
        for name, request in tuple(self._late.items()):
            if not request.queued or request.missed:
                del self._late[name]
            elif self._is_late_head(request):
                self._complain("deadlines", f"{name} missed its deadline and no reason is logged")
                request.missed = True
                del self._late[name]

    def _is_late_head(self, request: Request) -> bool:
        """Whether a miss of it is to be logged now."""
        tenant = self._book.tenants[request.tenant]
        late = request.deadline is not None and request.deadline <= self._book.now
        heads = tenant.backlogged and self._book.head(tenant) is request
        return late and heads and not request.missed

    def _forgotten(self, effect: Forgotten) -> None:
        book = self._book
        book.advance_floor()
        tenant = book.tenants.get(effect.tenant)
        if tenant is None or tenant.num_queued or tenant.in_flight:
            self._complain("counters", "the tenant is not quiet")
            return
        if tenant.counter > book.floor:
            self._complain("counters", f"its counter {tenant.counter} is above the floor")
        if tenant.service != effect.service_milli:
            self._complain("charges", f"it was charged {tenant.service}")
        book.forget(tenant)


def _short(effect: Effect) -> str:
    about = getattr(effect, "request", None) or getattr(effect, "tenant", "")
    return f"{type(effect).__name__} {about}"
