"""An engine that preempts: it takes more requests than its memory holds, and computes some twice.

What it computes again is its own overhead. A tenant whose long requests are preempted is charged
for what it received, once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from numpy.random import Generator

from engine.sim.counting import CountingReplica, Work
from engine.sim.result import Cell, Result, Table
from engine.sim.scenario import Scenario
from engine.sim.scenarios.fair.broken import ChargesRepeats
from engine.sim.scenarios.fair.compare import (
    A10G,
    FAIR,
    FCFS,
    TERMS,
    Client,
    Play,
    Setting,
    play,
    result,
    traffic,
)
from engine.sim.workload import Fixed, JobKind, Lengths, Uniform
from fairness.policy import FcfsPolicy, Policy, VtcPolicy
from fairness.types import PoolConfig

SECONDS, SLOTS = 90.0, 32
PROMPTS = {"long": Fixed(64), "short": Fixed(384)}
ANSWERS: Mapping[str, Lengths] = {"long": Uniform(384, 512), "short": Fixed(4)}
RATES = {"long": 3.0, "short": 12.0}
REPEATS = "repeats charged"


def setting(rng: Generator, seconds: float = SECONDS) -> Setting:
    """32 slots on memory for about twenty long requests, and nothing kept free for growth."""
    clients = [
        Client(JobKind(PROMPTS[name], answers, tenant=name, max_tokens=512), RATES[name])
        for name, answers in ANSWERS.items()
    ]
    terms = dict.fromkeys(ANSWERS, replace(TERMS, concurrency=SLOTS, max_output_tokens=512))
    sent = traffic(rng, clients, seconds)
    pool = PoolConfig(ttl_s=10 * seconds, growth_blocks=0)
    return Setting(terms, sent, seconds, since=seconds / 6, pool=pool)


def counted(of: Setting, work: Work) -> Setting:
    """The same on a replica that writes its work down."""
    config = replace(
        A10G.config(max_num_seqs=SLOTS, max_num_batched_tokens=512), reserve=0.0, max_reserve=0.0
    )

    def replicas() -> Sequence[CountingReplica]:
        return [CountingReplica("replica", config, A10G.step_time, work)]

    return replace(of, replicas=replicas)


def plays(of: Setting) -> tuple[dict[str, Play], dict[str, Work]]:
    """The two queues, and one that charges for what was computed again."""
    works = {name: Work() for name in (FAIR, FCFS, REPEATS)}
    policies: dict[str, Policy] = {
        FAIR: VtcPolicy(),
        FCFS: FcfsPolicy(),
        REPEATS: ChargesRepeats(works[REPEATS].repeated),
    }
    found = {name: play(counted(of, works[name]), policy) for name, policy in policies.items()}
    return found, works


def work_table(found: dict[str, Play], works: dict[str, Work]) -> Table:
    """What each tenant was charged, beside what it received and what was computed for it."""
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            tenant,
            run.gateway.samples[-1].service[tenant] / 1_000,
            run.delivered[tenant].between(0.0, run.setting.seconds),
            works[name].computed[tenant],
            works[name].repeated[tenant],
        )
        for name, run in found.items()
        for tenant in ANSWERS
    ]
    columns = (
        "queue",
        "tenant",
        "charged (units)",
        "received (units)",
        "computed (tokens)",
        "computed again (tokens)",
    )
    return Table("repeats are nobody's service", columns, tuple(rows))


def _run(rng: Generator) -> Result:
    found, works = plays(setting(rng))
    return result("an engine that preempts", found, work_table(found, works))


SCENARIOS = (
    Scenario("fairness/preemption", "an engine that preempts and computes again", _run, plots=True),
)
