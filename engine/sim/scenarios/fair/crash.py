"""One of two replicas crashes in the middle of its streams, and another takes its place.

Streams that had begun end with what they emitted, which stays charged. Requests that had not begun
wait again at the head of their queues under the charge they have.
"""

from collections.abc import Sequence
from dataclasses import replace

from numpy.random import Generator

from engine.sim.incidents import Incident, Join, Lose
from engine.sim.replica import Replica
from engine.sim.result import Cell, Result, Table
from engine.sim.scenario import Scenario
from engine.sim.scenarios.fair.broken import ForgetfulGateway
from engine.sim.scenarios.fair.compare import (
    A10G,
    SLOTS,
    TERMS,
    Play,
    Setting,
    play,
    plays,
    result,
    traffic,
    usual,
)
from fairness import events
from fairness.policy import VtcPolicy
from fairness.types import PoolConfig

SECONDS = 90.0
RATES = {"busy": 8.5, "calm": 5.5}
CHARGED_AGAIN = "requeued as new"


def setting(rng: Generator, seconds: float = SECONDS) -> Setting:
    """Both want more than half of two replicas; one is gone from a third to a half of the time."""
    clients = [usual(name, rate) for name, rate in RATES.items()]

    def incidents() -> Sequence[Incident]:
        return [Lose(seconds / 3, "first"), Join(seconds / 2, _replica("third"))]

    return Setting(
        dict.fromkeys(RATES, replace(TERMS, concurrency=4 * SLOTS)),
        traffic(rng, clients, seconds),
        seconds,
        since=seconds / 9,
        replicas=lambda: [_replica("first"), _replica("second")],
        pool=PoolConfig(ttl_s=10 * seconds, lookahead=4),
        incidents=incidents,
    )


def _replica(name: str) -> Replica:
    config = A10G.config(max_num_seqs=SLOTS, max_num_batched_tokens=512)
    return Replica(name, config, A10G.step_time)


def without_rule(of: Setting) -> dict[str, Play]:
    """A gateway that takes what waits again for new requests."""
    return {CHARGED_AGAIN: play(of, VtcPolicy(), ForgetfulGateway)}


def granted_again(run: Play) -> list[events.Granted]:
    """Grants of requests that had been granted before."""
    seen: set[str] = set()
    again = []
    for grant in run.effects(events.Granted):
        if grant.request in seen:
            again.append(grant)
        seen.add(grant.request)
    return again


def crash_table(found: dict[str, Play]) -> Table:
    """What became of the requests on the replica."""
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            name,
            len(run.ends.cut),
            len(granted_again(run)),
            sum(grant.charge_milli for grant in granted_again(run)) / 1_000,
            max(
                (run.trace.jobs[g.request].job.num_prompt_tokens for g in granted_again(run)),
                default=0,
            ),
        )
        for name, run in found.items()
    )
    columns = (
        "queue",
        "streams cut",
        "granted again",
        "charged again (units)",
        "longest prompt of them",
    )
    return Table("the crash", columns, rows)


def _run(rng: Generator) -> Result:
    found = plays(setting(rng), without_rule)
    return result("a replica crashes mid-stream", found, crash_table(found))


SCENARIOS = (
    Scenario("fairness/crash", "a replica crashes in the middle of streams", _run, plots=True),
)
