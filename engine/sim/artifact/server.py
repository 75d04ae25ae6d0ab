"""The paper's server, as far as our own engine and dispatcher can be it: one run of one suite.

There an engine admits a request if it will hold what all can become, answers included, and looks
no sooner than ten steps after it last admitted any. Here the dispatcher has no look-ahead and keeps
half a mean answer free for each request in flight; where all requests have one length and so end
together, it has as many slots as fit whole. The replica is open for grants only when the paper's
server looks. Passing misfits and the urgent lane are this product's, not the paper's, and are off.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.core.batch import StepReport
from engine.sim.artifact.workloads import Suite
from engine.sim.job import Job
from engine.sim.presets import PRESETS
from engine.sim.queues import Fair, FairnessSample, Grant
from engine.sim.replica import Replica
from engine.sim.simulation import Simulation
from engine.sim.step_time import StepTime, StepWork
from engine.sim.trace import Trace
from engine.sim.workload import Arrival, OpenLoop
from fairness import events
from fairness.dispatcher import Dispatcher
from fairness.policy import Policy
from fairness.types import PoolConfig, ReplicaCapacity, TenantTerms

STEPS_BETWEEN_ADMISSIONS = 10
MAX_PREFILL_TOKENS = 3_072
MOST_SLOTS = 256
COLD_START_S = 4.9  # the first step: then, by the published log of `overload`, many have come
POOL = PoolConfig(lookahead=0, growth_blocks=8, ttl_s=1e6, slack_milli=0, urgent_share_milli=0)


@dataclass(slots=True)
class Paced(Fair):
    """`Fair` before one replica that takes requests no sooner than ten steps after the last.

    Between two such moments nothing depends on what was charged, so it is told at these moments.
    """

    _replica: str = ""
    _capacity: ReplicaCapacity = field(default_factory=lambda: ReplicaCapacity(1, 16))
    _steps: int = 0
    _in_flight: int = 0
    _arrived: bool = False
    _untold: set[str] = field(default_factory=set)
    _ended: list[str] = field(default_factory=list)

    def connect(self, replica: Replica) -> None:
        """Know the replica; it is closed until it looks for requests."""
        self._replica = replica.name
        self._capacity = ReplicaCapacity(
            replica.config.max_num_seqs, replica.stats().kv_tokens, replica.config.block_size
        )
        self._admit(0.0)

    def arrive(self, now: float, job: Job) -> Sequence[Grant]:
        """Let it wait; a warm and idle server admits at once."""
        grants = Fair.arrive(self, now, job)
        self._arrived = True
        return grants if self._in_flight else [*grants, *self._admit(now)]

    def hear(self, now: float, report: StepReport) -> Sequence[Grant]:
        """Count the step's tokens, and admit if it is time."""
        for token in report.emitted:
            self._emitted[token.request_id] += 1
            if token.finish_reason is not None:
                self._ended.append(token.request_id)
        self._untold.update(token.request_id for token in report.emitted)
        self._steps += 1
        if not self._may_admit():
            return ()
        self._report(now)
        grants = self._admit(now)
        self._sample(now)
        return grants

    def _may_admit(self) -> bool:
        """Whether it is time, and anything has come or gone that could change the answer."""
        running = self._in_flight - len(self._ended)
        if running and self._steps < STEPS_BETWEEN_ADMISSIONS:
            return False
        return bool(self._ended) or (self._arrived and running < self._capacity.slots)

    def _report(self, now: float) -> None:
        """Tell what was emitted, then what has ended."""
        for request in sorted(self._untold.difference(self._ended)):
            self._tell(events.Emitted(now, request, self._emitted[request]))
        for request in self._ended:
            self._tell(events.Finished(now, request, self._emitted.pop(request)))
            del self._jobs[request]
        self._in_flight -= len(self._ended)
        self._untold.clear()
        self._ended.clear()

    def _admit(self, now: float) -> list[Grant]:
        """Open the replica for a moment."""
        grants = self._tell(events.ReplicaUp(now, self._replica, self._capacity))
        grants += self._tell(events.ReplicaDrained(now, self._replica))
        self._in_flight += len(grants)
        self._arrived = False
        if grants:
            self._steps = 0
        return grants


@dataclass(slots=True)
class ColdStart:
    """A machine whose first step takes longer: it compiles, and meanwhile requests gather."""

    warm: StepTime
    seconds_left: float = COLD_START_S

    def seconds(self, work: StepWork) -> float:
        """As when warm, and once the start."""
        if not work.num_rows:
            return self.warm.seconds(work)
        start, self.seconds_left = self.seconds_left, 0.0
        return start + self.warm.seconds(work)


@dataclass(frozen=True, slots=True)
class Run:
    """One suite under one policy: what happened, and the pool's samples from it."""

    trace: Trace
    samples: Sequence[FairnessSample]


def run(suite: Suite, arrivals: Sequence[Arrival], policy: Policy) -> Run:
    """Serve these requests to their end."""
    preset = PRESETS[suite.preset]
    num_slots = slots(arrivals, preset.kv_tokens)
    config = replace(
        preset.config(max_num_seqs=num_slots, max_num_batched_tokens=MAX_PREFILL_TOKENS),
        prefix_cache=False,
        reserve=0.0,
        max_reserve=0.0,
    )
    replica = Replica("replica", config, ColdStart(preset.step_time))
    queue = Paced(Dispatcher(POOL, policy), terms(suite, arrivals))
    queue.connect(replica)
    trace = Simulation([replica], OpenLoop(arrivals), queue).run()
    return Run(trace, queue.samples)


def slots(arrivals: Sequence[Arrival], kv_tokens: int) -> int:
    """How many may run together.

    Requests of one length stay in step, so as many as the cache holds whole. Of a mixture the
    memory test admits fewer than there are slots here.
    """
    lengths = {(one.job.num_prompt_tokens, one.job.answer.length) for one in arrivals}
    return kv_tokens // sum(lengths.pop()) if len(lengths) == 1 else MOST_SLOTS


def terms(suite: Suite, arrivals: Sequence[Arrival]) -> dict[str, TenantTerms]:
    """Every client's terms: its weight, and limits that hold back nothing of the suite."""
    jobs = [arrival.job for arrival in arrivals]
    longest_prompt = max(job.num_prompt_tokens for job in jobs)
    longest_answer = max(job.declared_tokens for job in jobs)
    return {
        job.tenant: TenantTerms(
            (suite.weights or {}).get(job.tenant, 1_000),
            len(jobs),
            longest_prompt,
            longest_answer,
        )
        for job in jobs
    }
