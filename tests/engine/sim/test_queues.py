"""The dispatcher before simulated replicas: told what the gateway would tell it, and obeyed."""

from engine.core.config import CoreConfig
from engine.sim.job import Job, Span, Streams
from engine.sim.queues import Fair
from engine.sim.replica import MODEL_DIGEST, Replica
from engine.sim.report import report
from engine.sim.simulation import Simulation
from engine.sim.step_time import EverySame
from engine.sim.workload import Arrival, OpenLoop
from fairness.dispatcher import Dispatcher
from fairness.policy import VtcPolicy
from fairness.types import PoolConfig, TenantTerms

TERMS = TenantTerms(1_000, concurrency=12, max_prompt_tokens=64, max_output_tokens=32)
STREAMS = Streams()


def replica(name, slots):
    return Replica(name, CoreConfig(64, 1024, MODEL_DIGEST, max_num_seqs=slots), EverySame())


def job(name, *, tenant="t", prompt=16, answer=4, stream=None):
    span = Span(stream or STREAMS.new(), prompt)
    return Job(name, (span,), Span(STREAMS.new(), answer), tenant=tenant)


def run(jobs, *replicas, tenants=("t",)):
    queue = Fair(Dispatcher(PoolConfig(), VtcPolicy()), dict.fromkeys(tenants, TERMS))
    for one in replicas:
        queue.connect(one)
    return queue, Simulation(replicas, OpenLoop([Arrival(0.0, j) for j in jobs]), queue).run()


def test_a_job_waits_for_credit_and_every_job_ends():
    _, trace = run([job(str(number)) for number in range(5)], replica("r", slots=1))
    granted = [one.granted for one in trace.jobs.values()]
    assert granted == [0.0, 0.0, 4.0, 8.0, 12.0]  # one slot and a look-ahead of one
    assert report(trace).finished == 5


def test_charges_are_the_tokens_of_prompt_and_answer_and_hits_are_cheaper():
    queue, _ = run([job("cold", stream=7, prompt=48, answer=1)], replica("r", slots=2))
    assert queue.samples[-1].service == {"t": 50_000}
    engine = replica("r", slots=1)
    twins = [job(name, stream=7, prompt=48, answer=1) for name in ("cold", "warm")]
    queue, trace = run(twins, engine)
    assert trace.jobs["warm"].num_cached_tokens == 32
    assert queue.samples[-1].service == {"t": 50_000 + 16_000 + 3_200 + 2_000}


def test_load_spreads_over_replicas():
    jobs = [job(str(number)) for number in range(12)]
    _, trace = run(jobs, replica("a", slots=4), replica("b", slots=4))
    computed = [one.stats.computed_tokens for one in trace.replicas.values()]
    assert sum(computed) == 12 * 19
    assert min(computed) >= 4 * 19


def test_what_no_replica_could_hold_is_refused_and_reported():
    queue, trace = run([job("long", prompt=65), job("fits")], replica("r", slots=1))
    assert queue.refused == ["long"]
    assert trace.refused == {"long"}
    assert report(trace).refused == 1
    assert report(trace).finished == 1


def test_tenants_take_turns():
    jobs = [job(f"a{n}", tenant="a") for n in range(3)] + [job("b0", tenant="b")]
    _, trace = run(jobs, replica("r", slots=1), tenants=("a", "b"))
    order = sorted(trace.jobs.values(), key=lambda one: one.finished)
    assert [one.job.job_id for one in order] == ["a0", "a1", "b0", "a2"]
