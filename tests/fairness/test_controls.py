"""The other policies behind the port: whom each prefers, and that its books are right."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairness import events
from fairness.controls import LcfPolicy, OracleVtcPolicy, PredictedVtcPolicy, RpmPolicy, noisy
from fairness.dispatcher import Dispatcher
from fairness.policy import FcfsPolicy, VtcPolicy
from fairness.types import (
    PoolConfig,
    Prices,
    RefusalReason,
    ReplicaCapacity,
    TenantTerms,
)

TERMS = TenantTerms(1_000, concurrency=100, max_prompt_tokens=1_000, max_output_tokens=1_000)
CONFIG = PoolConfig(lookahead=0, ttl_s=1e6, slack_milli=0, urgent_share_milli=0)


class Pool:
    """A dispatcher with one replica; remembers who was granted."""

    def __init__(self, policy, slots=1):
        self.dispatcher = Dispatcher(CONFIG, policy)
        self.granted = []
        self.refused = []
        self.now = 0.0
        self.tell(events.ReplicaUp, "r", ReplicaCapacity(slots, 1_000_000))

    def tell(self, kind, *values):
        for effect in self.dispatcher.apply(kind(self.now, *values)):
            if isinstance(effect, events.Granted):
                self.granted.append(effect.request)
            elif isinstance(effect, events.Refused):
                self.refused.append(effect)

    def ask(self, *requests, prompt=10, output=100, terms=TERMS):
        """Each request is named for its tenant and a number."""
        for request in requests:
            self.tell(events.Enqueued, request, request[0], terms, prompt, output)

    def finish(self, request, tokens):
        self.tell(events.Finished, request, tokens)

    def serve(self, tokens=100):
        """Let what runs finish, one after the other, until nobody waits."""
        done = 0
        while done < len(self.granted):
            self.finish(self.granted[done], tokens)
            done += 1
        return self.granted


def named(tenant, count):
    return [f"{tenant}{number}" for number in range(count)]


def after_time_alone(policy):
    """Who is served first when b comes back after a was served alone for long."""
    pool = Pool(policy)
    pool.ask("b0")
    pool.ask(*named("a", 5))
    pool.serve()
    before = len(pool.granted)
    pool.ask(*(f"a{number}" for number in range(10, 16)))
    pool.ask(*(f"b{number}" for number in range(10, 16)))
    while len(pool.granted) < before + 8:
        pool.finish(pool.granted[-1], 100)
    return "".join(request[0] for request in pool.granted[before:])


def test_least_counter_first_repays_time_away_and_lifted_counters_do_not():
    assert after_time_alone(LcfPolicy()) == "abbbbbab"
    assert after_time_alone(VtcPolicy()) == "abababab"


def test_least_counter_first_counts_by_weight():
    pool = Pool(LcfPolicy())
    heavy = TenantTerms(3_000, 100, 1_000, 1_000)
    pool.ask("z0")
    pool.ask(*named("a", 12))
    pool.ask(*named("b", 12), terms=heavy)
    for _ in range(9):
        pool.finish(pool.granted[-1], 100)
    counts = [sum(request[0] == name for request in pool.granted[1:]) for name in "ab"]
    assert counts == [3, 6]


def test_a_cap_per_minute_refuses_says_when_and_asks_for_each_tenant():
    pool = Pool(RpmPolicy(2), slots=9)
    pool.ask("a0", "a1", "a2", "b0")
    assert pool.granted == ["a0", "a1", "b0"]
    (refusal,) = pool.refused
    assert (refusal.request, refusal.reason) == ("a2", RefusalReason.RATE)
    assert 60 <= refusal.retry_after_s <= 60.5
    pool.now = refusal.retry_after_s
    pool.ask("a3", "a4", "a5")
    assert pool.granted[3:] == ["a3", "a4"]
    assert [one.request for one in pool.refused] == ["a2", "a5"]


def test_what_a_cap_refused_does_not_count():
    pool = Pool(RpmPolicy(1), slots=9)
    for second in range(0, 61, 10):
        pool.now = float(second)
        pool.ask(f"a{second}")
    pool.now = 61.0
    pool.ask("a61")
    assert pool.granted == ["a0", "a61"]


def test_under_a_cap_the_order_is_that_of_arrival():
    runs = []
    for policy in (RpmPolicy(100), FcfsPolicy()):
        pool = Pool(policy)
        pool.ask("a0", "b0", "a1", "a2", "b1")
        runs.append(pool.serve())
    assert runs[0] == runs[1] == ["a0", "b0", "a1", "a2", "b1"]


def test_a_cap_admits_somebody():
    with pytest.raises(ValueError, match="at least one"):
        RpmPolicy(0)


def filled(policy):
    """Six slots for two tenants, whose prompts are equal; a's answers are ten times as long."""
    pool = Pool(policy, slots=6)
    pool.tell(events.ReplicaDrained, "r")
    pool.ask(*named("a", 9), output=100)
    pool.ask(*named("b", 9), output=10)
    pool.tell(events.ReplicaUp, "r", ReplicaCapacity(6, 1_000_000))
    return "".join(request[0] for request in pool.granted)


def test_who_knows_the_lengths_does_not_wait_for_them():
    lengths = {"a": 100, "b": 10}
    assert filled(VtcPolicy()) == "ababab"
    assert filled(OracleVtcPolicy(lambda request: lengths[request[0]])) == "abbbbb"


def test_a_prediction_is_the_mean_of_five_answers():
    policy = PredictedVtcPolicy()
    pool = Pool(policy)
    for number, tokens in enumerate((90, 10, 20, 30, 40, 50)):
        pool.ask(f"a{number}")
        pool.finish(f"a{number}", tokens)
    pool.ask("a9", "a10", "b0", prompt=10)
    counter = rank(pool, policy, "a") - counter_of(pool, "a")
    assert counter == 2_000 * 30


def test_a_tenant_without_an_answer_is_expected_to_give_none():
    policy = PredictedVtcPolicy()
    pool = Pool(policy)
    pool.ask("a0", "a1")
    assert rank(pool, policy, "a") == counter_of(pool, "a") == 10_000


def test_the_rank_stays_while_what_is_expected_comes_then_rises_and_falls_at_the_end():
    policy = OracleVtcPolicy(lambda _: 20)
    pool = Pool(policy)
    pool.ask("a0", "a1")
    ranks = []
    for tokens in (5, 20, 30):
        pool.tell(events.Emitted, "a0", tokens)
        ranks.append(rank(pool, policy, "a"))
    assert ranks == [50_000, 50_000, 70_000]
    pool.finish("a0", 30)
    assert pool.granted == ["a0", "a1"]
    pool.ask("a2")
    pool.finish("a1", 5)  # less than expected: what did not come is not counted
    pool.ask("a3")
    assert rank(pool, policy, "a") == 70_000 + 20_000 + 10_000 + 40_000


def rank(pool, policy, tenant):
    ledger = pool.dispatcher.pool.ledger
    account = ledger.accounts[tenant]
    return policy.rank(account, account.first)


def counter_of(pool, tenant):
    return pool.dispatcher.pool.ledger.accounts[tenant].counter


LENGTHS = (0, 3, 10, 30)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("ask", "emit", "finish", "unstarted", "requeue", "lose", "restart")),
            st.integers(0, 7),
            st.integers(0, 40),
        ),
        max_size=40,
    )
)
@settings(max_examples=60, deadline=None)
def test_what_is_still_expected_is_the_sum_over_what_is_in_flight(steps):
    policy = OracleVtcPolicy(lambda request: LENGTHS[int(request[1:]) % 4])
    pool = Pool(policy, slots=3)
    for number, (step, which, tokens) in enumerate(steps):
        take(pool, step, number, which, tokens)
        pending = dict.fromkeys("abc", 0)
        for request, ticket in _in_flight(pool).items():
            expected = LENGTHS[int(request[1:]) % 4]
            pending[ticket.tenant] += max(0, expected - ticket.output_tokens)
        for tenant, account in pool.dispatcher.pool.ledger.accounts.items():
            if account.backlogged:
                above = account.raw + 1_000 * Prices().output * pending[tenant]
                assert rank(pool, policy, tenant) == above // account.terms.weight_milli


def take(pool, step, number, which, tokens):
    """One step of a random history."""
    flying = sorted(_in_flight(pool))
    chosen = flying[which % len(flying)] if flying else "none0"
    match step:
        case "ask":
            pool.ask(f"{'abc'[which % 3]}{number}", output=40)
        case "emit" | "finish":
            kind = events.Emitted if step == "emit" else events.Finished
            pool.tell(kind, chosen, tokens)
        case "unstarted" | "requeue":
            pool.tell(events.NotStarted if step == "unstarted" else events.Requeued, chosen)
        case _:
            kind, about = (
                (events.ReplicaLost, "r") if step == "lose" else (events.Restarted, number)
            )
            pool.tell(kind, about)
            pool.tell(events.ReplicaUp, "r", ReplicaCapacity(3, 1_000_000))


def _in_flight(pool):
    tickets = pool.dispatcher.pool.tickets
    return {name: ticket for name, ticket in tickets.items() if ticket.replica is not None}


def test_noise_is_within_its_share_the_same_every_time_and_right_on_average():
    guess = noisy(lambda _: 1_000, 0.5)
    guesses = [guess(f"r{number}") for number in range(2_000)]
    assert guesses == [guess(f"r{number}") for number in range(2_000)]
    assert 500 <= min(guesses) < 510
    assert 1_490 < max(guesses) <= 1_500
    assert sum(guesses) / len(guesses) == pytest.approx(1_000, rel=0.02)
    assert noisy(lambda _: 1_000, 0.5, seed=1)("r0") != guess("r0")
