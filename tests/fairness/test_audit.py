"""The audit passes on what a dispatcher did, and names the event where a log was tampered with.

Naive edits are found by numbers and digests. An edit that was sealed again is found by the replay.
A dispatcher that itself breaks a promise replays perfectly: only the audit's own book finds it.
"""

from collections import Counter
from dataclasses import replace

import pytest

from fairness import grants, pool, starvation
from fairness.audit_report import merged
from fairness.checkpoint import dump, load
from fairness.codec import is_input
from fairness.counters import Account
from fairness.events import (
    Corrected,
    DegradedOff,
    DegradedOn,
    Emitted,
    Enqueued,
    Expired,
    Finished,
    Forgotten,
    Granted,
    Missed,
    Pinned,
    Refused,
    ReplicaUp,
    Requeued,
    Restarted,
    Ticked,
)
from fairness.policy import FcfsPolicy, Policy, VtcPolicy
from fairness.replay import POLICIES
from fairness.types import PoolConfig, ReplicaCapacity, TenantTerms
from tests.fairness.recorded import (
    WALL_AHEAD,
    RandomRun,
    Recorder,
    audited,
    opened,
    random_log,
    sealed,
)

ROOMY = ReplicaCapacity(4, 1 << 20)


@pytest.fixture(scope="module")
def recorder():
    return random_log(11, steps=1400, per_segment=300)


@pytest.fixture
def segments(recorder):
    return [list(lines) for lines in recorder.segments]


@pytest.fixture
def contents(recorder):
    return opened(recorder.segments)


def checks(report):
    return {breach.check for breach in report.breaches}


def index_of(events, wanted, after=0):
    return next(i for i, event in enumerate(events) if i >= after and wanted(event))


# --- what is right passes ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_dispatcher_does_passes(seed):
    report = audited(random_log(seed, steps=900).segments)
    assert report.breaches == []
    assert report.kept
    assert report.events > 1000


def test_the_random_runs_do_everything():
    kinds = Counter()
    for seed in range(3):
        for _, events in opened(random_log(seed, steps=1800).segments):
            kinds.update(type(event).__name__ for event in events)
    rare = {"Pinned", "Dispatched", "Unpinned", "Missed", "Passed", "Restarted", "Lifted"}
    assert rare <= kinds.keys()


def test_sealing_again_what_was_not_edited_changes_nothing(recorder, contents):
    assert sealed(contents) == recorder.segments


def test_service_and_grants_are_what_the_dispatcher_counted(recorder, contents):
    total = merged(audited(recorder.segments, window_s=30.0).windows)
    service = Counter()
    for _, events in contents:
        for event in events:
            if isinstance(event, Forgotten):
                service[event.tenant] += event.service_milli
    snapshot = recorder.dispatcher.snapshot()
    for tenant in snapshot.tenants:
        service[tenant.tenant] += tenant.service_milli
    assert {name: tally.service for name, tally in total.tenants.items()} == service
    granted = sum(isinstance(e, Granted | Pinned) for _, events in contents for e in events)
    assert sum(tally.grants for tally in total.tenants.values()) == granted
    missed = sum(isinstance(e, Missed) for _, events in contents for e in events)
    assert sum(sum(t.missed.values()) for t in total.tenants.values()) == missed
    assert total.urgent == snapshot.urgent_milli
    assert total.service == snapshot.service_milli


def test_windows_add_up_to_the_whole(recorder):
    (whole,) = audited(recorder.segments).windows
    parts = merged(audited(recorder.segments, window_s=10.0).windows)
    assert parts.service == whole.service
    assert parts.tenants.keys() == whole.tenants.keys()
    for name, tally in whole.tenants.items():
        assert parts.tenants[name].backlogged_s == pytest.approx(tally.backlogged_s)
        assert parts.tenants[name].worst_gap == tally.worst_gap


def test_a_span_chooses_the_figures(recorder):
    windows = audited(recorder.segments, window_s=10.0).windows
    begin, end = windows[2].start, windows[4].end
    chosen = audited(recorder.segments, window_s=10.0, span=(begin, end)).windows
    assert [window.service for window in chosen] == [window.service for window in windows[2:5]]


def test_an_audit_may_begin_and_end_with_any_segment(recorder):
    pairs = list(enumerate(recorder.segments, 1))
    for at in (1, len(pairs) // 2, len(pairs) - 1):
        assert audited(pairs[at:]).breaches == []
        assert audited(pairs[:at]).breaches == []


def brute_force_gap(steps):
    """The largest gap of two tenants over all intervals in which both stayed backlogged.

    A step is since when both have been backlogged, if they are, and how far they are apart then.
    """
    worst, run = 0, []
    for since, apart in steps:
        if since is None or (run and run[-1][0] != since):
            run = []
        if since is not None:
            run.append((since, apart))
            worst = max(worst, *(abs(apart - before) for _, before in run))
    return worst


def test_the_gap_is_that_of_the_worst_interval(monkeypatch):
    recorder = Recorder(config=PoolConfig())
    steps, original = [], pool.Pool.changed

    def watched(of_pool, account):
        original(of_pool, account)
        both = [of_pool.ledger.accounts.get(name) for name in "fg"]
        since = tuple(one and one.backlogged_since for one in both)
        apart = [one.service * 1000 / one.terms.weight_milli if one else 0 for one in both]
        steps.append((None if None in since else since, apart[0] - apart[1]))

    monkeypatch.setattr(pool.Pool, "changed", watched)
    terms = {"f": TenantTerms(1000, 9, 40, 20), "g": TenantTerms(2000, 9, 60, 30)}
    recorder.apply(ReplicaUp(recorder.now, "r", ROOMY))
    for i in range(400):
        recorder.now += 0.1
        name = "fgg"[i % 3]
        if i % 4 != 3:
            prompt, output = terms[name].max_prompt_tokens - i % 7, terms[name].max_output_tokens
            recorder.apply(Enqueued(recorder.now, f"q{i}", name, terms[name], prompt, output))
        elif recorder.flying:
            first = next(iter(recorder.flying))
            del recorder.flying[first]
            recorder.apply(Finished(recorder.now, first, 1 + i % 20))
    monkeypatch.undo()
    report = audited(recorder.segments)
    assert report.kept
    found = merged(report.windows).tenants["f"].worst_gap
    assert found.other == "g"
    wanted = brute_force_gap(steps)
    assert wanted > 0
    assert wanted - 2 <= found.gap_norm <= wanted
    # Z + (U + cap on A)/weight of both, and M, by hand.
    f_part = 80 + (40 + 5 * 40) + 5 * 40
    g_part = (60 + 2 * 30 + (60 + 5 * 2 * 30) + 5 * 60) / 2
    assert found.bound_norm == 1000 * (f_part + g_part + max(5 * 40, 5 * 60 / 2))


def test_times_in_which_something_was_missing_are_told():
    recorder = Recorder()
    recorder.apply(DegradedOn(1010.0, "event_log"))
    recorder.apply(DegradedOff(1020.0, "event_log"))
    recorder.apply(DegradedOn(1030.0, "event_log"))
    recorder.now = 1040.0
    recorder.restart()
    recorder.apply(DegradedOn(1050.0, "clock"))
    report = audited(recorder.segments)
    assert [(one.start - WALL_AHEAD, one.reason) for one in report.degraded] == [
        (1010.0, "event_log"),
        (1030.0, "event_log"),
        (1040.0, "restart, epoch 2"),
        (1050.0, "clock"),
    ]
    assert [one.end and one.end - WALL_AHEAD for one in report.degraded] == [
        *(1020.0, 1040.0, 1040.0, None)
    ]
    assert report.kept


def test_a_log_may_end_within_the_effects_of_its_last_input(segments):
    last = segments[-1]
    granted = max(index for index, line in enumerate(last) if b'"Granted"' in line)
    del last[granted + 1 :]
    torn = [*segments[:-1], last[:-1]]
    assert audited(torn).breaches == []
    assert audited(torn).open_end
    half = [*segments[:-1], [*last[:-1], last[-1][:-9]]]
    assert audited(half).breaches == []
    assert audited(half).open_end


# --- naive edits: numbers and digests ------------------------------------------------------------


def test_one_grant_swapped(segments):
    lines = segments[1]
    index = index_of(lines, lambda line: b'"Granted"' in line)
    lines[index] = lines[index].replace(b'"r1"', b'"rX"').replace(b'"r2"', b'"r1"')
    lines[index] = lines[index].replace(b'"rX"', b'"r2"')
    report = audited(segments)
    assert "digests" in checks(report)
    place = report.breaches[0].place
    assert (place.segment, place.line) == (2, index + 1)
    assert "Granted" in str(place)


def test_one_charge_dropped(segments):
    index = index_of(segments[1], lambda line: b'"Emitted"' in line)
    number = int(segments[1].pop(index)[1:].split(b",")[0])
    report = audited(segments)
    assert {"digests", "numbering"} <= checks(report)
    numbering = next(breach for breach in report.breaches if breach.check == "numbering")
    assert numbering.problem == f"event {number} should be here"
    assert (numbering.place.segment, numbering.place.sequence) == (2, number + 1)


def test_one_event_reordered(segments):
    lines = segments[1]
    lines[20], lines[21] = lines[21], lines[20]
    report = audited(segments)
    assert {"digests", "numbering"} <= checks(report)
    assert report.breaches[0].place.line == 21


def test_one_segment_truncated(segments):
    whole = len(segments[1])
    del segments[1][-5:]
    report = audited(segments)
    breach = next(one for one in report.breaches if one.check == "numbering")
    assert (breach.place.segment, breach.place.line) == (2, whole - 4)
    assert "events are missing" in breach.problem
    assert any("missing" in one.reason for one in report.degraded)


def test_one_segment_that_ends_in_half_a_line(segments):
    segments[1][-1] = segments[1][-1][:-7]
    report = audited(segments)
    breach = report.breaches[0]
    assert (breach.check, breach.place.segment) == ("damage", 2)
    assert breach.place.line == len(segments[1])


def test_one_segment_deleted(segments):
    pairs = [pair for pair in enumerate(segments, 1) if pair[0] != 2]
    report = audited(pairs)
    assert report.breaches[0].check == "segments"
    assert report.breaches[0].place.segment == 3
    assert report.num_breaches == 1  # and what is left is sound
    assert any("missing" in one.reason for one in report.degraded)


def test_a_counter_in_a_checkpoint_changed(segments):
    head = segments[1][0]
    at = head.index(b'"raw":') + 6
    segments[1][0] = head[:at] + b"1" + head[at:]
    report = audited(segments)
    assert (report.breaches[0].check, report.breaches[0].place.line) == ("damage", 1)
    assert "digest" in report.breaches[0].problem


@pytest.mark.parametrize("junk", [b"\n", b"[]\n", b"{}\n", b"\xff\n", b'[1,["Ticked",1.0],"x"]\n'])
def test_a_line_that_is_none(segments, junk):
    segments[1][7] = junk
    report = audited(segments)
    assert report.breaches[0].check == "damage"
    assert (report.breaches[0].place.segment, report.breaches[0].place.line) == (2, 8)


def test_something_that_is_no_log():
    assert checks(audited([[b"hello\n"]])) == {"damage"}
    assert checks(audited([[]])) == {"damage"}


# --- edits that were sealed again: the replay ----------------------------------------------------


def assert_found(contents, check, segment, event=""):
    report = audited(sealed(contents))
    found = [one for one in report.breaches if one.check == check]
    assert found, report.breaches
    assert found[0].place.segment == segment
    assert event in str(found[0].place)
    assert found[0].place.sequence is not None
    return found[0]


def test_one_grant_swapped_and_sealed(contents):
    events = contents[1][1]
    index = index_of(events, lambda e: isinstance(e, Granted))
    events[index] = replace(events[index], request="q1", tenant="t3")
    assert_found(contents, "replay", 2, "Granted request q1")


def test_a_grants_charge_dropped_and_sealed(contents):
    events = contents[1][1]
    index = index_of(events, lambda e: isinstance(e, Granted) and e.charge_milli)
    events[index] = replace(events[index], charge_milli=0)
    breach = assert_found(contents, "charges", 2, f"Granted request {events[index].request}")
    assert "its prompt costs" in breach.problem


def test_one_charge_dropped_and_sealed(contents):
    """A request's output is not charged at all: the next grant of its tenant tells."""
    events = contents[1][1]
    granted = {event.request for event in events if isinstance(event, Granted)}
    index = index_of(
        events, lambda e: isinstance(e, Finished) and e.request in granted and e.output_tokens > 8
    )
    name = events[index].request
    events[index] = replace(events[index], output_tokens=0)
    contents[1][1] = [e for e in events if not (isinstance(e, Emitted) and e.request == name)]
    assert_found(contents, "replay", 2)


def test_one_event_reordered_and_sealed(contents):
    events = contents[1][1]
    one = index_of(events, lambda e: isinstance(e, Enqueued))
    other = index_of(events, lambda e: isinstance(e, Finished), one)
    events[one], events[other] = events[other], events[one]
    assert_found(contents, "replay", 2)


def test_one_segment_truncated_and_sealed(contents):
    events = contents[1][1]
    del events[index_of(events, is_input, len(events) - 40) :]
    assert_found(contents, "checkpoints", 3, "checkpoint")


def test_one_segment_deleted_and_sealed(contents):
    del contents[1]
    assert_found(contents, "checkpoints", 2, "checkpoint")


def test_a_counter_in_a_checkpoint_changed_and_sealed(contents):
    contents[1][0].state["accounts"][0]["raw"] += 1
    breach = assert_found(contents, "checkpoints", 2)
    assert breach.problem.startswith("replayed, accounts[0].raw is ")


def test_a_counter_in_the_first_checkpoint_changed_and_sealed(contents):
    """Nothing is before it, but every later grant of the tenant says what its counter was."""
    contents = contents[1:]
    contents[0][0].state["accounts"][0]["raw"] += 1_000_000
    assert_found(contents, "replay", 1)


@pytest.mark.parametrize("restarted", [False, True])
def test_settings_change_only_with_a_restart(restarted):
    """A history made up under wider settings for a while replays, and follows its own rules."""
    recorder = Recorder()
    run = RandomRun(recorder, seed=5)
    run.steps(60)
    if restarted:
        recorder.epoch += 1
        recorder.apply(Restarted(recorder.now, recorder.epoch))
        recorder.flying.clear()
    wider = replace(recorder.config, slack_milli=10_000, urgent_share_milli=1_000)
    recorder.dispatcher = load(wider, VtcPolicy(), dump(recorder.dispatcher))
    recorder.config = wider
    recorder.begin()
    first = len(recorder.segments)
    run.steps(60)
    report = audited(recorder.segments)
    if restarted:
        assert report.kept
    else:
        (breach,) = report.breaches
        assert (breach.check, breach.place.segment) == ("segments", first)
        assert "settings changed" in breach.problem


def test_time_set_back_and_sealed(contents):
    events = contents[1][1]
    index = index_of(events, lambda e: isinstance(e, Emitted))
    events[index] = replace(events[index], now=1.0)
    assert_found(contents, "replay", 2, "Emitted")


def test_a_tail_of_the_log_that_was_cut_and_sealed_cannot_be_seen(contents):
    """Said in docs/operations.md: there is nothing after it that could disagree."""
    events = contents[-1][1]
    del events[index_of(events, is_input, len(events) - 40) :]
    assert audited(sealed(contents)).kept


# --- a dispatcher that breaks a promise: the book -------------------------------------------------


class FirstComeInDisguise(Policy):
    """Says it is the fair policy, and grants in order of arrival."""

    name = VtcPolicy.name

    def rank(self, account, head):
        return head.arrival

    def slack(self, largest):
        return largest


def overload(policy, config=None):
    """One tenant has a long queue, another sends little by little; both stay backlogged."""
    recorder = Recorder(policy, config or PoolConfig(ttl_s=500.0))
    heavy, light = TenantTerms(1000, 9, 20, 20), TenantTerms(1000, 9, 20, 20)
    recorder.apply(ReplicaUp(recorder.now, "r", ROOMY))
    for i in range(150):
        recorder.apply(Enqueued(recorder.now, f"h{i}", "heavy", heavy, 20, 20))
    for i in range(140):
        recorder.now += 0.1
        recorder.apply(Enqueued(recorder.now, f"l{i}", "light", light, 20, 20))
        first = next(iter(recorder.flying))
        del recorder.flying[first]
        recorder.apply(Finished(recorder.now, first, 20))
    return recorder


def test_first_come_first_served_exceeds_the_bound():
    assert audited(overload(VtcPolicy()).segments).kept
    report = audited(overload(FcfsPolicy()).segments)
    assert checks(report) == {"gap"}
    assert {report.breaches[0].problem.split(":")[0]} == {"heavy and light"}
    assert merged(report.windows).tenants["heavy"].worst_gap.ratio > 1


def test_another_order_than_the_promised(monkeypatch):
    monkeypatch.setitem(POLICIES, VtcPolicy.name, FirstComeInDisguise)
    found = checks(audited(overload(FirstComeInDisguise()).segments))
    assert {"order", "gap", "bound"} <= found
    assert "replay" not in found


CHARGE = Account.charge


def only_more(account, milli):
    CHARGE(account, max(0, milli))


MUTANTS = {
    "no lift": (Account, "lift", lambda _self, _floor: False, "transitions"),
    "no misses": (grants.Granter, "report_misses", lambda _self: None, "deadlines"),
    "no budget": (starvation.UrgentLane, "affords", lambda *_: True, "urgent"),
    "no refunds": (Account, "charge", only_more, "counters"),
    "no expiry": (pool.Pool, "due", lambda _self: iter(()), "transitions"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_dispatcher_replays_and_is_found(mutant, monkeypatch):
    owner, name, broken, check = MUTANTS[mutant]
    monkeypatch.setattr(owner, name, broken)
    config = PoolConfig(ttl_s=6.0, t_min_s=0.1, t_max_s=0.3, max_passes=3)
    found = set()
    for seed in range(3):
        report = audited(random_log(seed, steps=900, config=config).segments)
        found |= checks(report)
        assert not found & {"replay", "digests", "numbering"}
        if check in found:
            return
    pytest.fail(f"only {found} are found broken")


def test_passes_beyond_k(monkeypatch):
    """A granter that was made with a larger K than its settings say."""
    original = grants.Granter.__init__

    def unbounded(self, of_pool):
        original(self, of_pool)
        self._most_passes = 1000

    monkeypatch.setattr(grants.Granter, "__init__", unbounded)
    assert any(
        "passes" in checks(audited(random_log(seed, steps=900).segments)) for seed in range(3)
    )


def test_a_request_older_than_its_time_to_live_is_told_by_its_expiry():
    recorder = Recorder()
    recorder.apply(Enqueued(recorder.now, "old", "t", TenantTerms(1000, 1, 9, 9), 5, 5))
    recorder.now += 31.0
    recorder.apply(Ticked(recorder.now))
    contents = opened(recorder.segments)
    tally = merged(audited(recorder.segments).windows).tenants["t"]
    assert tally.expired == 1
    expiry = index_of(contents[0][1], lambda e: isinstance(e, Expired))
    del contents[0][1][expiry]
    contents[0][1].append(Ticked(recorder.now))
    report = audited(sealed(contents))
    assert "transitions" in checks(report)
    assert "Expired old should be here and is missing" in {one.problem for one in report.breaches}


def test_a_request_that_was_sent_back_and_fits_nowhere_any_more():
    recorder = Recorder()
    recorder.apply(ReplicaUp(recorder.now, "r", ReplicaCapacity(4, 64)))
    terms = TenantTerms(1000, 1, 50, 9)
    recorder.apply(Enqueued(recorder.now, "estimated", "t", terms, 5, 5))
    recorder.apply(Corrected(recorder.now, "estimated", 500, 0))
    (refused,) = recorder.apply(Requeued(recorder.now, "estimated"))[-2:-1]
    assert isinstance(refused, Refused)
    assert audited(recorder.segments).breaches == []


def test_a_long_run_with_many_tenants_watches_some_pairs_and_bounds_all():
    recorder = Recorder(config=PoolConfig(ttl_s=500.0))
    RandomRun(recorder, 5, tenants=60).steps(900)
    assert audited(recorder.segments).breaches == []
