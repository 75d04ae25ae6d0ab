"""A prompt that fits only an empty replica, before two replicas that small requests keep full.

It is passed at most eight times, then a replica is held for it until it fits. If others could pass
it for ever, it would wait for ever; if nobody could, both replicas would run empty for it.
"""

from collections.abc import Sequence
from dataclasses import replace

from numpy.random import Generator

from engine.sim.job import Job, Span, Streams
from engine.sim.replica import Replica
from engine.sim.result import Cell, Result, Table
from engine.sim.scenario import Scenario
from engine.sim.scenarios.fair.compare import (
    A10G,
    SLOTS,
    Play,
    Setting,
    play,
    plays,
    result,
    traffic,
    usual,
)
from engine.sim.trace import JobTrace
from engine.sim.workload import Arrival
from fairness import events
from fairness.policy import VtcPolicy
from fairness.types import PassReason, PoolConfig, TenantTerms

SECONDS = 120.0
HUGE, SMALL = "huge", ("one", "two")
PROMPT, ANSWER, EVERY_S = 9_400, 64, 20.0
WITHOUT_LIMIT, NEVER_PASSED = "passed without limit", "never passed"
# The default plan: two of its largest requests may pass before the pool waits.
TERMS = TenantTerms(1_000, concurrency=64, max_prompt_tokens=2_048, max_output_tokens=512)
HUGE_TERMS = TenantTerms(1_000, concurrency=2, max_prompt_tokens=9_600, max_output_tokens=128)


def setting(rng: Generator, seconds: float = SECONDS) -> Setting:
    """Two tenants with more small requests than fit, and one huge request every 20 seconds."""
    streams = Streams()
    sent = traffic(rng, [usual(name, 9.0) for name in SMALL], seconds)
    for number in range(int(seconds / EVERY_S)):
        prompt, answer = Span(streams.new() | 1, PROMPT), Span(streams.new() | 1, ANSWER)
        job = Job(f"{HUGE}-{number}", (prompt,), answer, tenant=HUGE)
        sent.append(Arrival(EVERY_S * (number + 0.5), job))
    return Setting(
        {HUGE: HUGE_TERMS, **dict.fromkeys(SMALL, TERMS)},
        sent,
        seconds,
        since=seconds / 6,
        replicas=_two,
        pool=PoolConfig(ttl_s=10 * seconds),
    )


def _two() -> Sequence[Replica]:
    config = A10G.config(max_num_seqs=SLOTS, max_num_batched_tokens=512)
    return [Replica(name, config, A10G.step_time) for name in ("first", "second")]


def without_rule(of: Setting) -> dict[str, Play]:
    """One in which anybody may pass for ever, one in which nobody may."""
    without = replace(of.pool, max_passes=1 << 30, slack_milli=1 << 30, urgent_share_milli=0)
    never = replace(of.pool, slack_milli=0, max_passes=1 << 30)
    return {
        WITHOUT_LIMIT: play(replace(of, pool=without), VtcPolicy()),
        NEVER_PASSED: play(replace(of, pool=never), VtcPolicy()),
    }


def huge_jobs(run: Play) -> list[JobTrace]:
    """The huge requests."""
    return run.jobs[HUGE]


def longest_wait(run: Play) -> float:
    """Seconds until a huge request's first token, or until the end for one that got none."""
    return max(
        (job.token_times[0] if job.token_times else run.setting.seconds) - job.arrived
        for job in huge_jobs(run)
    )


def most_passed(run: Play) -> int:
    """The most often that a request was passed because it did not fit."""
    passes = run.effects(events.Passed)
    return max((p.passes for p in passes if p.reason is PassReason.MISFIT), default=0)


def huge_table(found: dict[str, Play]) -> Table:
    """What the huge requests got, and what the rest paid for it."""
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            name,
            sum(bool(job.token_times) for job in huge_jobs(run)),
            len(huge_jobs(run)),
            longest_wait(run),
            most_passed(run),
            len(run.effects(events.Pinned)),
            100 * run.report.slot_utilisation,
        )
        for name, run in found.items()
    )
    columns = (
        "queue",
        "answered",
        "of",
        "longest wait (s)",
        "most passes",
        "replicas held",
        "slots used (%)",
    )
    return Table(
        f"prompts of {PROMPT:,} tokens where a replica holds {A10G.kv_tokens:,}", columns, rows
    )


def _run(rng: Generator) -> Result:
    found = plays(setting(rng), without_rule)
    return result("a request that fits only an empty replica", found, huge_table(found))


SCENARIOS = (
    Scenario("fairness/huge", "a request that fits only an empty replica", _run, plots=True),
)
