"""Overload, and heads whose deadlines are a tenth of what the pool can promise.

One tenant asks for ten times its share in long answers, three ask for just about theirs in short
ones. Nearly every head of the first is late. An urgent lane with a budget and within the slack
changes next to nothing; without both, whoever is late goes first, and the machine is the heavy
tenant's.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from numpy.random import Generator

from engine.core.config import CoreConfig
from engine.sim.replica import MODEL_DIGEST, Replica
from engine.sim.result import Cell, Result, Table
from engine.sim.scenario import Scenario
from engine.sim.scenarios.fair.compare import (
    FAIR,
    FCFS,
    Client,
    Play,
    Setting,
    play,
    result,
    traffic,
)
from engine.sim.step_time import EverySame
from engine.sim.workload import Fixed, JobKind, Uniform
from fairness import events
from fairness.policy import FcfsPolicy, VtcPolicy
from fairness.types import GrantReason, MissReason, PoolConfig, TenantTerms

SECONDS = 450.0
SLOTS, STEP_S = 1, 0.03
HEAVY, LIGHT = "heavy", ("one", "two", "three")
PROMPT, ESSAY, WORDS = 8, 128, Uniform(8, 16)
MEAN_WORDS, MOST_WORDS = 12, 16
HEAVY_LOAD, LIGHT_LOAD = 10.0, 1.05  # in fair shares
AS_PROMISED, UNBUDGETED = "deadlines as promised", "no budget, no slack"
TTL_S, T_MAX_S = 120.0, 110.0


def setting(rng: Generator, seconds: float = SECONDS) -> Setting:
    """One tenant at ten times its share, three near theirs."""
    essay, words = PROMPT + 2 * ESSAY, PROMPT + 2 * MEAN_WORDS
    # Shares are equal when each gets so many units a second: a token takes a slot for a step.
    share = SLOTS / STEP_S / (ESSAY / essay + len(LIGHT) * MEAN_WORDS / words)
    kind = JobKind(Fixed(PROMPT), Fixed(ESSAY), tenant=HEAVY)
    clients = [Client(kind, HEAVY_LOAD * share / essay)]
    for name in LIGHT:
        kind = JobKind(Fixed(PROMPT), WORDS, tenant=name, max_tokens=MOST_WORDS)
        clients.append(Client(kind, LIGHT_LOAD * share / words))
    terms = TenantTerms(1_000, 16, max_prompt_tokens=PROMPT, max_output_tokens=MOST_WORDS)
    return Setting(
        {HEAVY: replace(terms, max_output_tokens=ESSAY), **dict.fromkeys(LIGHT, terms)},
        traffic(rng, clients, seconds),
        seconds,
        since=seconds / 15,
        replicas=_one_slot,
        pool=PoolConfig(lookahead=0, ttl_s=TTL_S, t_max_s=T_MAX_S),
        sample_every=4,
    )


def _one_slot() -> Sequence[Replica]:
    config = CoreConfig(1_024, 1 << 12, MODEL_DIGEST, max_num_seqs=SLOTS)
    return [Replica("replica", config, EverySame(STEP_S))]


def natural_s(run: Play) -> float:
    """The median time that the pool gave the heavy tenant's heads, by its work and its rate."""
    headed = run.effects(events.Headed)
    times = [h.work_milli / h.rate_milli for h in headed if h.rate_milli and h.tenant == HEAVY]
    return median(times)


def at_a_tenth(of: Setting, natural: float) -> Setting:
    """The same with every deadline a tenth of this time."""
    return replace(of, pool=replace(of.pool, t_min_s=natural / 10, t_max_s=natural / 10))


def unbudgeted(of: Setting) -> Setting:
    """The same with an urgent lane that may take everything, from anybody."""
    return replace(of, pool=replace(of.pool, urgent_share_milli=1_000, slack_milli=1 << 30))


def plays(of: Setting) -> dict[str, Play]:
    """A tenth of the natural deadlines, also by FCFS and without budget, and the natural ones."""
    promised = play(of, VtcPolicy())
    tenth = at_a_tenth(of, natural_s(promised))
    return {
        FAIR: play(tenth, VtcPolicy()),
        FCFS: play(tenth, FcfsPolicy()),
        UNBUDGETED: play(unbudgeted(tenth), VtcPolicy()),
        AS_PROMISED: promised,
    }


def urgent_share(run: Play) -> float:
    """The part of all charges that requests of the urgent lane made."""
    pool = run.gateway.dispatcher.snapshot()
    return pool.urgent_milli / pool.service_milli


def missed(run: Play, reason: MissReason) -> int:
    """How many heads missed their deadline for this reason."""
    return sum(one.reason is reason for one in run.effects(events.Missed))


def oldest_wait(run: Play) -> float:
    """The longest that any request waited for its grant, its refusal or the end."""
    ended = {one.request: one.now for one in run.effects(events.Expired)}
    ended |= {one.request: one.now for one in run.effects(events.Refused)}
    return max(
        ended.get(name, run.setting.seconds if job.granted is None else job.granted) - job.arrived
        for name, job in run.trace.jobs.items()
    )


def wrongly_logged(run: Play) -> set[str]:
    """Requests that waited past their deadline without a log of it, or were logged though in time.

    Whoever is granted in the very step that follows the deadline may be either.
    """
    late, in_time = set[str](), set[str]()
    ended = {one.request: one.now for one in run.effects(events.Expired)}
    ended |= {one.request: one.now for one in run.effects(events.Granted)}
    for headed in run.effects(events.Headed):
        waited_until = ended.get(headed.request, run.setting.seconds)
        if waited_until > headed.deadline + 2 * STEP_S:
            late.add(headed.request)
        elif waited_until <= headed.deadline:
            in_time.add(headed.request)
    logged = {one.request for one in run.effects(events.Missed)}
    return (late - logged) | (logged & in_time)


def deadlines_table(found: dict[str, Play]) -> Table:
    """What the urgent lane did."""
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            name,
            100 * run.shares[HEAVY],
            100 * urgent_share(run),
            sum(grant.reason is GrantReason.URGENT for grant in run.effects(events.Granted)),
            *(missed(run, reason) for reason in MissReason),
            len(wrongly_logged(run)),
            oldest_wait(run),
        )
        for name, run in found.items()
    )
    columns = (
        "queue",
        "heavy's share (%)",
        "urgent (%)",
        "urgent grants",
        *(f"missed: {reason}" for reason in MissReason),
        "wrongly logged",
        "longest wait (s)",
    )
    return Table("deadlines at a tenth", columns, rows)


def _run(rng: Generator) -> Result:
    found = plays(setting(rng))
    return result("overload with deadlines at a tenth", found, deadlines_table(found))


SCENARIOS = (
    Scenario("fairness/deadlines", "overload with deadlines at a tenth", _run, plots=True),
)
