"""Runs small enough to be followed by hand; a step takes one second unless said otherwise."""

import pytest
from numpy.random import default_rng

from engine.core.config import CoreConfig
from engine.sim.job import Job, Span, Streams
from engine.sim.queues import Straight
from engine.sim.replica import MODEL_DIGEST, Replica
from engine.sim.report import Quantiles, Slo, report
from engine.sim.simulation import Simulation, SimulationStuck, simulate
from engine.sim.step_time import EverySame
from engine.sim.workload import (
    Arrival,
    Chat,
    ClosedLoop,
    Conversation,
    Conversations,
    Exponential,
    Fixed,
    JobKind,
    OpenLoop,
    poisson,
)


def replica(*, slots=4, blocks=64, budget=64, step_s=1.0, **changes):
    config = CoreConfig(
        num_blocks=blocks,
        max_model_len=blocks * 16,
        model_digest=MODEL_DIGEST,
        max_num_seqs=slots,
        max_num_batched_tokens=budget,
        **changes,
    )
    return Replica("replica", config, EverySame(step_s))


def job(name, prompt=1, answer=1, stream=None):
    streams = Streams()
    start = stream or hash(name) % 1_000_000
    return Job(name, (Span(start, prompt),), Span(streams.new(), answer))


def times(trace):
    return {name: list(job.token_times) for name, job in trace.jobs.items()}


def test_a_token_reaches_its_client_when_the_step_ends():
    trace = simulate(replica(), OpenLoop([Arrival(0.5, job("a", answer=3))]))
    assert times(trace) == {"a": [1.5, 2.5, 3.5]}
    assert trace.jobs["a"].finished == trace.ended == 3.5


def test_who_arrives_during_a_step_waits_for_the_next():
    work = OpenLoop([Arrival(0.0, job("a", answer=2)), Arrival(0.25, job("b"))])
    assert times(simulate(replica(), work)) == {"a": [1.0, 2.0], "b": [2.0]}


def test_who_arrives_as_a_step_ends_is_in_the_next():
    work = OpenLoop([Arrival(0.0, job("a", answer=2)), Arrival(1.0, job("b"))])
    assert times(simulate(replica(), work)) == {"a": [1.0, 2.0], "b": [2.0]}


def test_a_free_slot_is_refilled_at_the_next_step():
    work = OpenLoop([Arrival(0.0, job(name, answer=n)) for name, n in (("a", 1), ("b", 2))])
    trace = simulate(replica(slots=1), work)
    assert times(trace) == {"a": [1.0], "b": [2.0, 3.0]}


def test_a_long_prompt_takes_a_step_per_chunk():
    trace = simulate(replica(budget=16), OpenLoop([Arrival(0.0, job("a", prompt=40))]))
    assert times(trace) == {"a": [3.0]}


def test_a_closed_loop_keeps_its_number_in_flight():
    jobs = JobKind(Fixed(4), Fixed(5)).jobs(default_rng(0), Streams(), 6)
    trace = simulate(replica(), ClosedLoop(jobs, in_flight=2))
    assert [job.arrived for job in trace.jobs.values()] == [0.0, 0.0, 5.0, 5.0, 10.0, 10.0]
    assert trace.ended == 15.0


def test_a_later_turn_finds_what_was_said_before():
    chat = Chat("chat", Streams())
    chat.turn(100, 30)
    chat.turn(20, 1)
    talk = Conversations([Conversation(0.0, tuple(chat.turns), think_s=2.0)])
    trace = simulate(replica(budget=256), talk)
    first, second = trace.jobs.values()
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 128)  # 129 of 130 computed
    assert second.arrived == first.finished + 2.0
    assert report(trace).hit_rate == pytest.approx(128 / 250)


def test_one_seed_is_one_run():
    def run(seed):
        rng = default_rng(seed)
        jobs = JobKind(Exponential(30), Exponential(20)).jobs(rng, Streams(), 30)
        work = OpenLoop([Arrival(*pair) for pair in zip(poisson(rng, 1.0, 30), jobs, strict=True)])
        return report(simulate(replica(blocks=16), work))

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_answers_do_not_depend_on_preemption_and_every_token_arrives():
    jobs = JobKind(Fixed(24), Fixed(60)).jobs(default_rng(0), Streams(), 8)
    trace = simulate(replica(blocks=12, reserve=0.0, max_reserve=0.0), ClosedLoop(jobs, 4))
    found = report(trace)
    assert found.preemptions > 0
    assert 0 < found.recompute_share < 1
    assert [len(job.token_times) for job in trace.jobs.values()] == [60] * 8


def test_a_full_queue_refuses_and_the_report_says_so():
    jobs = [Arrival(0.0, job(str(number), answer=2)) for number in range(5)]
    trace = simulate(replica(max_waiting_requests=3), OpenLoop(jobs))
    assert trace.refused == {"3", "4"}
    assert report(trace).refused == 2
    assert report(trace).finished == 3


def test_a_run_may_be_cut_short():
    trace = simulate(replica(), OpenLoop([Arrival(0.0, job("a", answer=30))]), until=10.0)
    assert len(trace.jobs["a"].token_times) == 10
    assert trace.jobs["a"].finished is None
    assert trace.ended == 10.0


def test_an_engine_that_never_computes_is_reported(monkeypatch):
    stuck = replica()
    monkeypatch.setattr(stuck._core._scheduler, "_admit", lambda *_: None)
    with pytest.raises(SimulationStuck, match="nothing in 1000 steps"):
        Simulation([stuck], OpenLoop([Arrival(0.0, job("a"))]), Straight("replica")).run()


def test_the_report_of_a_run_followed_by_hand():
    work = OpenLoop([Arrival(0.0, job("a", answer=4)), Arrival(2.0, job("b", answer=2))])
    found = report(simulate(replica(slots=2), work), Slo(ttft_s=1.0, tpot_s=1.0))
    assert (found.requests, found.finished, found.refused, found.steps) == (2, 2, 0, 4)
    assert found.seconds == 4.0
    assert found.output_tokens_per_s == 6 / 4
    assert found.prompt_tokens_per_s == 2 / 4
    assert found.goodput_per_s == 2 / 4
    assert found.ttft == Quantiles(1.0, 1.0, 1.0, 1.0, 1.0)
    assert found.itl == found.tpot == Quantiles(1.0, 1.0, 1.0, 1.0, 1.0)
    assert found.latency.max == 4.0
    assert found.slot_utilisation == 6 / 8
    assert found.preemptions == found.recompute_share == found.hit_rate == 0


def test_goodput_counts_only_what_meets_both_targets():
    work = OpenLoop([Arrival(0.0, job(name, answer=4)) for name in "ab"])
    trace = simulate(replica(slots=1), work)  # b waits four steps for its first token
    assert report(trace, Slo(ttft_s=4.0, tpot_s=1.0)).goodput_per_s == 1 / 8
    assert report(trace, Slo(ttft_s=5.0, tpot_s=0.5)).goodput_per_s == 0
    assert report(trace).goodput_per_s == report(trace).requests_per_s == 2 / 8


def test_a_run_without_jobs_has_a_report():
    found = report(simulate(replica(), OpenLoop([])))
    assert (found.requests, found.output_tokens_per_s, found.ttft) == (0, 0.0, Quantiles())
