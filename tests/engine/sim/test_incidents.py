"""Disturbed runs small enough to be followed by hand; a step takes one second."""

from dataclasses import replace

from engine.core.config import CoreConfig
from engine.sim.counting import CountingReplica, Work
from engine.sim.gateway import SimGateway
from engine.sim.incidents import Change, DisturbedSimulation, Join, Lose, Patience
from engine.sim.job import Job, Span, Streams
from engine.sim.replica import MODEL_DIGEST, Replica
from engine.sim.simulation import simulate
from engine.sim.step_time import EverySame
from engine.sim.workload import Arrival, ClosedLoop, OpenLoop
from fairness import events
from fairness.dispatcher import Dispatcher
from fairness.policy import VtcPolicy
from fairness.types import PoolConfig, TenantTerms

TERMS = TenantTerms(1_000, concurrency=12, max_prompt_tokens=64, max_output_tokens=32)
STREAMS = Streams()


def config(slots, **changes):
    return CoreConfig(64, 1024, MODEL_DIGEST, max_num_seqs=slots, **changes)


def replica(name, slots):
    return Replica(name, config(slots), EverySame())


def job(name, *, prompt=16, answer=4):
    return Job(name, (Span(STREAMS.new(), prompt),), Span(STREAMS.new(), answer), tenant="t")


def run(jobs, replicas, incidents=(), patience=None, terms=TERMS):
    gateway = SimGateway(Dispatcher(PoolConfig(), VtcPolicy()), {"t": terms})
    for one in replicas:
        gateway.connect(one)
    work = OpenLoop([Arrival(0.0, each) for each in jobs])
    simulation = DisturbedSimulation(replicas, work, gateway, incidents, patience)
    return gateway, simulation, simulation.run(20.0)


def charged(gateway):
    [tenant] = gateway.dispatcher.snapshot().tenants
    return tenant.service_milli


def test_who_leaves_pays_for_what_it_got_and_its_slot_is_free_at_once():
    jobs = [job("leaves", answer=20), job("stays", answer=2), job("waits", answer=2)]
    gateway, simulation, trace = run(
        jobs, [replica("r", slots=1)], patience={"leaves": Patience(tokens=3)}
    )
    assert simulation.ends.left == {"leaves"}
    assert list(trace.jobs["leaves"].token_times) == [1.0, 2.0, 3.0]
    assert list(trace.jobs["stays"].token_times) == [4.0, 5.0]
    assert charged(gateway) == 3 * 16_000 + 2_000 * (3 + 2 + 2)


def test_who_gives_up_while_waiting_pays_nothing():
    jobs = [job("first", answer=8), job("second"), job("impatient")]
    gateway, simulation, trace = run(
        jobs, [replica("r", slots=1)], patience={"impatient": Patience(seconds=5.5)}
    )
    assert simulation.ends.left == {"impatient"}
    assert trace.jobs["impatient"].granted is None
    assert charged(gateway) == 2 * 16_000 + 2_000 * (8 + 4)


def test_who_gives_up_in_the_engine_pays_for_the_prompt():
    jobs = [job("first", answer=8), job("impatient")]  # the second waits in the engine
    gateway, simulation, trace = run(
        jobs, [replica("r", slots=1)], patience={"impatient": Patience(seconds=5.5)}
    )
    assert simulation.ends.left == {"impatient"}
    assert not trace.jobs["impatient"].token_times
    assert charged(gateway) == 2 * 16_000 + 2_000 * 8


def test_a_crash_cuts_what_had_begun_and_the_rest_goes_elsewhere_for_the_same_charge():
    jobs = [job("begun", answer=20), job("sent")]
    incidents = [Lose(2.5, "r"), Join(5.0, replica("late", slots=1))]
    gateway, simulation, trace = run(jobs, [replica("r", slots=1)], incidents)
    assert simulation.ends.cut == {"begun"}
    assert list(trace.jobs["begun"].token_times) == [1.0, 2.0]
    assert trace.jobs["begun"].finished is None
    assert list(trace.jobs["sent"].token_times) == [6.0, 7.0, 8.0, 9.0]
    assert charged(gateway) == 2 * 16_000 + 2_000 * (2 + 4)
    grants = [effect for effect in gateway.effects if isinstance(effect, events.Granted)]
    assert [grant.charge_milli for grant in grants] == [16_000, 16_000, 0]


def test_changed_terms_reach_the_dispatcher():
    jobs = [job("one", answer=10), job("two", answer=2)]
    _, _, trace = run(
        jobs,
        [replica("r", slots=2)],
        [Change(4.0, "t", TERMS)],
        terms=replace(TERMS, concurrency=1),
    )
    assert trace.jobs["two"].granted == 4.0


def test_a_counting_replica_counts_what_the_core_does():
    work = Work()
    tight = replace(config(4), num_blocks=12, max_model_len=192, reserve=0.0, max_reserve=0.0)
    engine = CountingReplica("r", tight, EverySame(), work)
    simulate(engine, ClosedLoop([job(str(n), prompt=24, answer=60) for n in range(8)], 4))
    assert engine.stats().recomputed_tokens > 0
    assert work.computed == {"t": engine.stats().computed_tokens}
    assert work.repeated == {"t": engine.stats().recomputed_tokens}
