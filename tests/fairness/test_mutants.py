"""Breaks one rule at a time; the watch must notice, without knowing which rule it was."""

from dataclasses import replace
from itertools import product

import pytest

from fairness import bound, ledger
from fairness.counters import Account, Ticket
from fairness.dispatcher import Dispatcher
from fairness.ledger import Ledger
from fairness.policy import FcfsPolicy, VtcPolicy
from tests.fairness.checker import BrokenPromiseError, Watch
from tests.fairness.histories import HISTORIES


def no_lift(patch) -> None:
    patch.setattr(Account, "lift", lambda account, floor: False)


def estimate_never_settled(patch) -> None:
    patch.setattr(Dispatcher, "_correct", lambda dispatcher, event: None)


def output_never_charged(patch) -> None:
    patch.setattr(Dispatcher, "_emit", lambda dispatcher, request, output_tokens: None)


def floor_ignores_refunds(patch) -> None:
    patch.setattr(Account, "settled", property(lambda account: account.counter))


def refunds_at_their_present_value(patch) -> None:
    present = lambda account, credit, prices: account.normalised(account.unsettled)  # noqa: E731
    patch.setattr(bound, "refund_cap", present)
    patch.setattr(ledger, "refund_cap", present)
    written_formula_only(patch)


def look_ahead_not_counted(patch) -> None:
    set_credit = Ledger.set_credit
    patch.setattr(Ledger, "set_credit", lambda self, credit: set_credit(self, credit - 1))
    written_formula_only(patch)


def written_formula_only(patch) -> None:
    """The bound forgets what older weights and limits still allow."""
    patch.setattr(Account, "reach", property(lambda account: 0))
    patch.setattr(Account, "dip", property(lambda account: 0))


def weight_change_keeps_the_counter(patch) -> None:
    def set_terms(account, terms, floor) -> None:
        account.raw = account.counter * terms.weight_milli
        account.terms = terms

    patch.setattr(Account, "set_terms", set_terms)


def retry_is_charged_again(patch) -> None:
    requeue = Dispatcher._requeue

    def charged_again(dispatcher, request) -> None:
        requeue(dispatcher, request)
        dispatcher._tickets[request].charged = None

    patch.setattr(Dispatcher, "_requeue", charged_again)


def prompt_charged_twice(patch) -> None:
    charge = Account.charge
    patch.setattr(
        Account, "charge", lambda account, milli: charge(account, milli + (milli == 300_000))
    )


def largest_counter_first(patch) -> None:
    patch.setattr(VtcPolicy, "rank", lambda policy, account, head: -account.counter)


def first_come_first_served(patch) -> None:
    patch.setattr(VtcPolicy, "rank", FcfsPolicy.rank)


def blocked_is_not_idle(patch) -> None:
    """A tenant at its limit keeps its claim: it is not lifted when it may go on."""
    lift = Account.lift
    patch.setattr(
        Account, "lift", lambda account, floor: account.in_flight == 0 and lift(account, floor)
    )


def concurrency_not_enforced(patch) -> None:
    apply = Dispatcher.apply

    def without_limits(dispatcher, event):
        for account in dispatcher._ledger.accounts.values():
            account.in_flight = min(account.in_flight, 0)
        return apply(dispatcher, event)

    patch.setattr(Dispatcher, "apply", without_limits)


def output_of_one_sequence_only(patch) -> None:
    patch.setattr(Ticket, "output_limit", property(lambda ticket: ticket.max_output_tokens))


def sequences_counted_as_one(patch) -> None:
    """A request of many sequences takes one place of its tenant and of its replica."""
    enqueue = Dispatcher._enqueue
    patch.setattr(
        Dispatcher,
        "_enqueue",
        lambda dispatcher, event: enqueue(dispatcher, replace(event, sequences=1)),
    )


def misfits_are_passed(patch) -> None:
    """Stopping at a misfit is what keeps Z at 0; a pool that skips it must be seen."""
    stop_at = Dispatcher._stop_at

    def skip(dispatcher, ticket) -> None:
        stop_at(dispatcher, ticket)
        account = dispatcher._account(ticket)
        others = [a for a in dispatcher._ledger.backlogged() if a is not account]
        for other, replica in product(others, dispatcher._replicas.values()):
            head = dispatcher._head(other)
            if head and replica.fits(head, dispatcher._config):
                dispatcher._grant(other, head, replica)

    patch.setattr(Dispatcher, "_stop_at", skip)


MUTANTS = (
    no_lift,
    estimate_never_settled,
    output_never_charged,
    floor_ignores_refunds,
    refunds_at_their_present_value,
    look_ahead_not_counted,
    written_formula_only,
    weight_change_keeps_the_counter,
    retry_is_charged_again,
    prompt_charged_twice,
    largest_counter_first,
    first_come_first_served,
    blocked_is_not_idle,
    concurrency_not_enforced,
    output_of_one_sequence_only,
    sequences_counted_as_one,
    misfits_are_passed,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_rule_is_noticed(mutant, monkeypatch) -> None:
    mutant(monkeypatch)
    noticed = {}
    for history in HISTORIES:
        try:
            history(Watch())
        except BrokenPromiseError as broken:
            noticed[history.__name__] = broken.args[0]
        except (AssertionError, IndexError, KeyError):
            continue  # the history's own script went astray; that is not the watch noticing
    assert noticed
