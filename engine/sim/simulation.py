"""Runs a workload against replicas in virtual time and keeps what happened.

A replica steps while it has work. What a step did reaches clients and the queue when the step
ends; what arrives meanwhile is seen by the next step, as in a server.
"""

from collections.abc import Callable, Iterable, Sequence
from math import inf

from engine.core.batch import StepReport
from engine.core.errors import QueueFull
from engine.sim.clock import VirtualTime
from engine.sim.job import Job
from engine.sim.queues import Grant, Queue, Straight
from engine.sim.replica import Replica, Step
from engine.sim.trace import JobTrace, ReplicaTrace, Timeline, Trace
from engine.sim.workload import Arrival, Workload

_STUCK_STEPS = 1_000


class SimulationStuck(Exception):  # noqa: N818 - a condition, named as callers say it
    """A replica has work but computed nothing for many steps: the engine core is at fault."""


class Simulation:
    """One run; `run` may be called once."""

    def __init__(self, replicas: Sequence[Replica], workload: Workload, queue: Queue) -> None:
        self._replicas = {replica.name: replica for replica in replicas}
        self._timelines = {name: Timeline() for name in self._replicas}
        self._empty_steps = dict.fromkeys(self._replicas, 0)
        self._workload = workload
        self._queue = queue
        self._time = VirtualTime()
        self._jobs: dict[str, JobTrace] = {}
        self._refused: set[str] = set()
        self._busy: set[str] = set()

    def run(self, until: float = inf) -> Trace:
        """Run until nothing is left to do, or until `until` seconds.

        Raises SimulationStuck if a replica makes no progress.
        """
        self._expect(self._workload.first())
        self._time.run(until)
        for replica in self._replicas.values():
            replica.check_integrity()
        return Trace(
            self._jobs,
            {
                name: ReplicaTrace(
                    self._timelines[name], replica.stats(), replica.config.max_num_seqs
                )
                for name, replica in self._replicas.items()
            },
            frozenset(self._refused.union(self._queue.refused)),
            self._time.now,
        )

    def _expect(self, arrivals: Iterable[Arrival]) -> None:
        for arrival in arrivals:
            self._time.at(arrival.when, self._arriving(arrival.job))

    def _arriving(self, job: Job) -> Callable[[], None]:
        def arrive() -> None:
            now = self._time.now
            self._jobs[job.job_id] = JobTrace(job, now)
            self._send(self._queue.arrive(now, job))

        return arrive

    def _send(self, grants: Iterable[Grant]) -> None:
        for grant in grants:
            replica = self._replicas[grant.replica]
            try:
                replica.add(grant.job)
            except QueueFull:
                self._refused.add(grant.job.job_id)
                continue
            self._jobs[grant.job.job_id].granted = self._time.now
            self._wake(replica)

    def _wake(self, replica: Replica) -> None:
        """Begin a step as soon as everything else of this moment has happened."""
        if replica.name not in self._busy:
            self._busy.add(replica.name)
            self._time.at(self._time.now, lambda: self._begin_step(replica))

    def _begin_step(self, replica: Replica) -> None:
        step = replica.step()
        self._require_progress(replica, step)
        self._time.at(self._time.now + step.seconds, lambda: self._end_step(replica, step))

    def _end_step(self, replica: Replica, step: Step) -> None:
        self._record(self._timelines[replica.name], replica, step)
        self._deliver(step.report)
        self._busy.discard(replica.name)
        self._send(self._queue.hear(self._time.now, step.report))
        if replica.has_work():
            self._wake(replica)

    def _deliver(self, report: StepReport) -> None:
        now = self._time.now
        for admission in report.admitted:
            self._jobs[admission.request_id].num_cached_tokens = admission.num_cached_tokens
        for token in report.emitted:
            trace = self._jobs[token.request_id]
            trace.token_times.append(now)
            if token.finish_reason is not None:
                trace.finished = now
                self._expect(self._workload.after(trace.job, now))

    def _record(self, timeline: Timeline, replica: Replica, step: Step) -> None:
        stats = replica.stats()
        timeline.ended.append(self._time.now)
        timeline.seconds.append(step.seconds)
        timeline.rows.append(step.num_rows)
        timeline.tokens.append(step.report.num_batch_tokens)
        timeline.waiting.append(stats.waiting)
        timeline.held_blocks.append(stats.held_blocks)
        timeline.preempted.append(step.report.num_preempted)

    def _require_progress(self, replica: Replica, step: Step) -> None:
        if step.report.failed:
            raise step.report.failed[0].error
        stuck = 0 if step.num_rows else self._empty_steps[replica.name] + 1
        self._empty_steps[replica.name] = stuck
        if stuck >= _STUCK_STEPS:
            raise SimulationStuck(f"{replica.name} computed nothing in {stuck} steps")


def simulate(replica: Replica, workload: Workload, until: float = inf) -> Trace:
    """Run one replica without a queue in front."""
    return Simulation([replica], workload, Straight(replica.name)).run(until)
