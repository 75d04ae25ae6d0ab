"""What happened in a run, as it happened: each job's times, each replica's steps."""

from array import array
from dataclasses import dataclass, field

from engine.core.engine_core import CoreStats
from engine.sim.job import Job


def _doubles() -> "array[float]":
    return array("d")


def _integers() -> "array[int]":
    return array("q")


@dataclass(slots=True)
class JobTrace:
    """One job. Times are virtual seconds; None means it has not happened.

    `token_times` has one entry per output token: when it reached the client.
    """

    job: Job
    arrived: float
    granted: float | None = None
    finished: float | None = None
    num_cached_tokens: int = 0
    token_times: "array[float]" = field(default_factory=_doubles)


@dataclass(slots=True)
class Timeline:
    """One replica, with an entry per step in every array.

    When the step ended, how long it took, the rows and tokens of its batch, and after it the
    requests waiting, the blocks held, and how many requests it preempted.
    """

    ended: "array[float]" = field(default_factory=_doubles)
    seconds: "array[float]" = field(default_factory=_doubles)
    rows: "array[int]" = field(default_factory=_integers)
    tokens: "array[int]" = field(default_factory=_integers)
    waiting: "array[int]" = field(default_factory=_integers)
    held_blocks: "array[int]" = field(default_factory=_integers)
    preempted: "array[int]" = field(default_factory=_integers)


@dataclass(frozen=True, slots=True)
class ReplicaTrace:
    """A replica's steps, its totals at the end, and the slots it has."""

    timeline: Timeline
    stats: CoreStats
    slots: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole run: jobs in order of arrival, replicas by name, when it ended.

    `refused` are the jobs that found a queue full, or that the dispatcher would not take.
    """

    jobs: dict[str, JobTrace]
    replicas: dict[str, ReplicaTrace]
    refused: frozenset[str]
    ended: float
