"""Rules broken one at a time, by patching the dispatcher's own modules."""

from dataclasses import replace

from fairness import dispatcher, events, snapshot
from fairness.caps import normalised
from fairness.counters import Account, Ticket
from fairness.credits import Replica
from fairness.dispatcher import Dispatcher
from fairness.grants import Granter
from fairness.ledger import Ledger
from fairness.policy import FcfsPolicy, VtcPolicy
from fairness.pool import Pool
from fairness.starvation import Deadlines, UrgentLane
from fairness.types import MissReason

FAR = 10**15

# --- charges and counters ---


def no_lift(patch) -> None:
    patch.setattr(Account, "lift", lambda account, floor: False)


def estimate_never_settled(patch) -> None:
    patch.setattr(Dispatcher, "_correct", lambda dispatcher, event: None)


def output_charged_at_the_end(patch) -> None:
    take = Dispatcher._take

    def ends_only(dispatcher, event) -> None:
        if not isinstance(event, events.Emitted):
            take(dispatcher, event)

    patch.setattr(Dispatcher, "_take", ends_only)


def high_water_mark_forgotten(patch) -> None:
    """Tokens that were emitted before are charged again."""
    emit = Dispatcher._emit

    def emit_again(dispatcher, request, output_tokens) -> None:
        ticket = dispatcher._in_flight(request)
        known = ticket.output_tokens if ticket is not None else 0
        emit(dispatcher, request, output_tokens)
        if ticket is not None and 0 < output_tokens <= known:
            account = dispatcher.pool.account(ticket)
            dispatcher.pool.charge(account, ticket, 2_000 * output_tokens)

    patch.setattr(Dispatcher, "_emit", emit_again)


def prompt_charged_twice(patch) -> None:
    take = Pool.take

    def take_twice(pool, account, ticket, lead) -> int:
        prompt = take(pool, account, ticket, lead)
        pool.charge(account, ticket, prompt)
        return prompt

    patch.setattr(Pool, "take", take_twice)


def retry_charged_again(patch) -> None:
    wait = Pool.wait

    def forget_charge(pool, account, ticket) -> None:
        if ticket.charged is not None:
            account.unsettled -= ticket.refundable
            ticket.charged = None
        wait(pool, account, ticket)

    patch.setattr(Pool, "wait", forget_charge)


def cancel_keeps_the_charge(patch) -> None:
    withdraw = Pool.withdraw

    def keep(pool, ticket) -> None:
        charged = ticket.charged or 0
        withdraw(pool, ticket)
        pool.charge(pool.ledger.accounts[ticket.tenant], ticket, charged)

    patch.setattr(Pool, "withdraw", keep)


def restart_refunds_twice(patch) -> None:
    restart = Dispatcher._restart

    def twice(dispatcher) -> None:
        pool = dispatcher.pool
        for ticket in pool.tickets.values():
            if not ticket.output_tokens:
                pool.charge(pool.account(ticket), ticket, -(ticket.charged or 0))
        restart(dispatcher)

    patch.setattr(Dispatcher, "_restart", twice)


def debts_forgotten(patch) -> None:
    forget = Ledger.forget

    def forget_all(ledger) -> list[Account]:
        for account in ledger.accounts.values():
            if account.quiet:
                account.raw = min(account.raw, ledger.floor * account.terms.weight_milli)
                ledger.rest(account)
        return forget(ledger)

    patch.setattr(Ledger, "forget", forget_all)


def weight_change_keeps_the_counter(patch) -> None:
    def set_terms(account, terms, floor) -> None:
        account.raw = account.counter * terms.weight_milli
        account.terms = terms

    patch.setattr(Account, "set_terms", set_terms)


def output_of_one_sequence_only(patch) -> None:
    ticket_of = dispatcher._ticket

    def narrow(*args) -> Ticket:
        ticket = ticket_of(*args)
        ticket.output_limit = ticket.max_output_tokens
        return ticket

    patch.setattr(dispatcher, "_ticket", narrow)


def sequences_counted_as_one(patch) -> None:
    """A request of many sequences takes one place of its tenant and of its replica."""
    enqueue = Dispatcher._enqueue
    patch.setattr(
        Dispatcher,
        "_enqueue",
        lambda dispatcher, event: enqueue(dispatcher, replace(event, sequences=1)),
    )


# --- the floor and the bound ---


def floor_ignores_refunds(patch) -> None:
    patch.setattr(Account, "settled", property(lambda account: account.counter))


def _bound_of(patch, terms) -> None:
    """The bound that the pool shows is made anew from its terms and the backlogged accounts."""
    right = snapshot.bound_terms
    patch.setattr(
        snapshot, "bound_terms", lambda accounts, lag: terms(right(accounts, lag), accounts)
    )


def bound_forgets_older_limits(patch) -> None:
    _bound_of(patch, lambda bound, accounts: replace(bound, held_over=0))


def bound_without_slack(patch) -> None:
    _bound_of(patch, lambda bound, accounts: replace(bound, slack=0, held_over=0))


def bound_of_present_refunds(patch) -> None:
    """A as its value now, not as its cap."""

    def present(bound, accounts):
        open_now = [normalised(a.unsettled, a.terms.weight_milli) for a in accounts] or [0]
        return replace(bound, refund=max(open_now), floor_lag=max(open_now), held_over=0)

    _bound_of(patch, present)


def bound_without_look_ahead(patch) -> None:
    def slots_only(bound, accounts):
        pool = max(a.in_flight for a in accounts) - 1 if accounts else 0
        jumps = [
            2_000 * min(pool, a.terms.concurrency) * a.terms.max_output_tokens
            + 1_000 * a.terms.max_prompt_tokens
            for a in accounts
        ]
        return replace(bound, slack=0, jump=max(jumps, default=0), held_over=0)

    _bound_of(patch, slots_only)


def look_ahead_not_counted(patch) -> None:
    set_credit = Ledger.set_credit
    patch.setattr(Ledger, "set_credit", lambda self, credit: set_credit(self, credit - 1))


# --- who goes next ---


def largest_counter_first(patch) -> None:
    patch.setattr(VtcPolicy, "rank", lambda policy, account, head: -account.counter)


def first_come_first_served(patch) -> None:
    patch.setattr(VtcPolicy, "rank", FcfsPolicy.rank)


def blocked_is_not_idle(patch) -> None:
    """A tenant at its limit keeps its claim: it is not lifted when it may go on."""
    lift, backlogged, claims = Account.lift, Pool._became_backlogged, set()

    def keep_claim(pool, account, head) -> None:
        if account.blocked:
            claims.add(account)
        backlogged(pool, account, head)
        claims.discard(account)

    patch.setattr(Pool, "_became_backlogged", keep_claim)
    patch.setattr(
        Account, "lift", lambda account, floor: account not in claims and lift(account, floor)
    )


def concurrency_not_enforced(patch) -> None:
    changed = Pool.changed

    def without_limits(pool, account) -> None:
        in_flight, account.in_flight = account.in_flight, -FAR
        changed(pool, account)
        account.in_flight = in_flight

    patch.setattr(Pool, "changed", without_limits)


def locality_reorders_tenants(patch) -> None:
    """The turn is that of whoever has the longest cached prefix."""
    pools = []
    init = Granter.__init__

    def remember(granter, pool) -> None:
        init(granter, pool)
        pools.append(pool)

    def warmest(ledger) -> Account | None:
        pool = next(pool for pool in pools if pool.ledger is ledger)
        waiting = sorted(ledger.backlogged(), key=lambda account: (account.counter, account.tenant))
        return max(waiting, key=lambda account: warmth(pool, account), default=None)

    def warmth(pool, account) -> int:
        return max(pool.prefixes.length(one) for one in pool.first_waiting(account, 16))

    patch.setattr(Granter, "__init__", remember)
    patch.setattr(Ledger, "next", warmest)


def youngest_of_a_tenant_first(patch) -> None:
    patch.setattr(Granter, "_longest_prefix", lambda granter, account, head: _last(account))
    patch.setattr(Granter, "_choose", _choose_always(Granter._choose))


def _last(account) -> Ticket:
    return max((entry[3] for entry in account.waiting if entry[3].stamp == entry[2]), key=_arrival)


def _arrival(ticket) -> int:
    return ticket.arrival


def _choose_always(choose):
    def chosen(granter, account):
        account.waiting_prefixed, many = 1, account.waiting_prefixed
        try:
            return choose(granter, account)
        finally:
            account.waiting_prefixed = many

    return chosen


def kv_not_counted(patch) -> None:
    patch.setattr(Replica, "lacks", lambda replica, ticket: -FAR)


# --- passes and pins ---


def passes_unbounded(patch) -> None:
    init = Granter.__init__

    def endless(granter, pool) -> None:
        init(granter, pool)
        granter._most_passes = FAR

    patch.setattr(Granter, "__init__", endless)


def overtaking_unbounded(patch) -> None:
    longest = Granter._longest_prefix

    def again(granter, account, head) -> Ticket:
        overtakes, head.overtakes = head.overtakes, 0
        try:
            return longest(granter, account, head)
        finally:
            head.overtakes = overtakes

    patch.setattr(Granter, "_longest_prefix", again)


def nobody_passes(patch) -> None:
    """K = 0 without a pin: a misfit stops everyone."""
    patch.setattr(Granter, "_passer", lambda granter, turn: None)


def slack_unbounded(patch) -> None:
    patch.setattr(Granter, "_slack", lambda granter, account: FAR)


def passes_not_told(patch) -> None:
    def count(granter, ticket, by, reason) -> None:
        ticket.passes += 1

    patch.setattr(Granter, "_pass", count)


def pin_charged_twice(patch) -> None:
    dispatch = Granter._dispatch_pinned

    def charge_again(granter, ticket) -> None:
        dispatch(granter, ticket)
        pool = granter._pool
        if pool.pinned is None:
            pool.charge(pool.account(ticket), ticket, ticket.charged)

    patch.setattr(Granter, "_dispatch_pinned", charge_again)


def pin_charged_at_its_dispatch(patch) -> None:
    """While it is held for, the tenant stays the smallest, and others go beyond min + Z."""
    pin, dispatch = Granter._pin, Granter._dispatch_pinned

    def pin_free(granter, choice) -> bool:
        pinned = pin(granter, choice)
        if pinned:
            _charge(granter, choice.ticket, -choice.ticket.charged)
        return pinned

    def dispatch_charged(granter, ticket) -> None:
        dispatch(granter, ticket)
        if granter._pool.pinned is None:
            _charge(granter, ticket, ticket.charged)

    patch.setattr(Granter, "_pin", pin_free)
    patch.setattr(Granter, "_dispatch_pinned", dispatch_charged)


def _charge(granter, ticket, milli: int) -> None:
    pool = granter._pool
    pool.charge(pool.account(ticket), ticket, milli)
    pool.ledger.moved(pool.account(ticket))


def second_pin_allowed(patch) -> None:
    pin = Granter._pin

    def one_more(granter, choice) -> bool:
        granter._pool.pinned, before = None, granter._pool.pinned
        done = pin(granter, choice)
        if not done:
            granter._pool.pinned = before
        return done

    patch.setattr(Granter, "_pin", one_more)


def hold_ignored(patch) -> None:
    def pin(pool, ticket, replica) -> None:
        pool.pinned, ticket.pinned_to = ticket, replica.id

    patch.setattr(Pool, "pin", pin)


def pinned_never_sent(patch) -> None:
    patch.setattr(Granter, "_dispatch_pinned", lambda granter, ticket: None)


def pin_outlives_a_drain(patch) -> None:
    require = Dispatcher._require_pin

    def unless_drained(dispatcher) -> None:
        pinned = dispatcher.pool.pinned
        if pinned is not None and pinned.pinned_to not in dispatcher.pool.replicas:
            require(dispatcher)

    patch.setattr(Dispatcher, "_require_pin", unless_drained)


# --- deadlines and the urgent lane ---


def urgent_budget_removed(patch) -> None:
    """Every late head within its slack goes next: with Z wide enough, the age decides alone."""
    urgent = Granter._urgent

    def at_any_price(granter, turn):
        lane = granter._pool.lane
        lane.level = max(0, lane.level)
        granter._affordable = lambda ticket: True
        try:
            return urgent(granter, turn)
        finally:
            del granter._affordable

    patch.setattr(Granter, "_urgent", at_any_price)


def urgent_grants_not_paid_for(patch) -> None:
    lend = UrgentLane.lend

    def for_nothing(lane, ticket, cost) -> None:
        lend(lane, ticket, cost)
        lane.level += 1_000 * cost

    patch.setattr(UrgentLane, "lend", for_nothing)


def urgent_lane_keeps_what_is_unused(patch) -> None:
    def settle(lane, ticket) -> None:
        ticket.urgent_cost = None

    patch.setattr(UrgentLane, "settle", settle)


def urgent_beyond_slack(patch) -> None:
    urgent = Granter._urgent

    def at_any_lag(granter, turn):
        granter._slack = lambda account: FAR
        try:
            return urgent(granter, turn)
        finally:
            del granter._slack

    patch.setattr(Granter, "_urgent", at_any_lag)


def no_urgent_lane(patch) -> None:
    patch.setattr(Granter, "_urgent", lambda granter, turn: None)


def youngest_deadline_first(patch) -> None:
    overdue = Deadlines.overdue
    patch.setattr(
        Deadlines, "overdue", lambda deadlines, *now: iter([*overdue(deadlines, *now)][::-1])
    )


def misses_not_logged(patch) -> None:
    patch.setattr(Granter, "report_misses", lambda granter: None)


def misses_logged_again(patch) -> None:
    report = Granter.report_misses

    def again(granter) -> None:
        report(granter)
        pool = granter._pool
        for ticket in pool.tickets.values():
            if ticket.missed and ticket.stamp:
                miss = events.Missed(pool.now, ticket.request, ticket.tenant, MissReason.NO_FIT)
                pool.effects.append(miss)

    patch.setattr(Granter, "report_misses", again)


def misses_blamed_on_the_fit(patch) -> None:
    patch.setattr(Granter, "_why_missed", lambda granter, *about: MissReason.NO_FIT)


def clock_runs_while_blocked(patch) -> None:
    blocked = Pool._became_blocked

    def go_on(pool, account, head) -> None:
        deadline = head.deadline
        blocked(pool, account, head)
        head.deadline, head.left_s = deadline, None

    patch.setattr(Pool, "_became_blocked", go_on)


def deadline_set_anew(patch) -> None:
    wait = Pool.wait

    def fresh(pool, account, ticket) -> None:
        ticket.deadline = None
        wait(pool, account, ticket)

    patch.setattr(Pool, "wait", fresh)


def deadline_of_nobody_else(patch) -> None:
    """A deadline that leaves out what the others may be served before."""
    patch.setattr(Ledger, "work_before", lambda ledger, account: account.caps.work)


def queue_without_ttl(patch) -> None:
    patch.setattr(Pool, "due", lambda pool: iter(()))
