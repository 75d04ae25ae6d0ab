"""What arrives when: arrival processes, length distributions, and how jobs follow each other.

Everything random comes from the numpy Generator that is passed in, so one seed is one workload.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import NormalDist
from typing import Protocol

from numpy.random import Generator

from engine.sim.job import Job, Span, Streams


@dataclass(frozen=True, slots=True)
class Arrival:
    """`job` arrives at `when`, in seconds."""

    when: float
    job: Job


class Workload(Protocol):
    """A source of jobs: some arrive by the clock, some because others ended."""

    def first(self) -> Iterable[Arrival]:
        """The arrivals that depend on nothing."""
        ...

    def after(self, job: Job, now: float) -> Iterable[Arrival]:
        """What arrives because `job` ended at `now`; never before `now`."""
        ...


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Clients who do not wait for each other: arrivals only by the clock."""

    arrivals: Sequence[Arrival]

    def first(self) -> Iterable[Arrival]:
        """All of them."""
        return self.arrivals

    def after(self, job: Job, now: float) -> Iterable[Arrival]:  # noqa: ARG002 - the port's signature
        """Nothing."""
        return ()


class ClosedLoop:
    """`in_flight` clients, each of whom sends the next job as soon as the last one ended."""

    def __init__(self, jobs: Sequence[Job], in_flight: int) -> None:
        self._first = jobs[:in_flight]
        self._rest = iter(jobs[in_flight:])

    def first(self) -> Iterable[Arrival]:
        """One job per client, at time 0."""
        return [Arrival(0.0, job) for job in self._first]

    def after(self, job: Job, now: float) -> Iterable[Arrival]:  # noqa: ARG002 - the port's signature
        """The next job, at once."""
        return [Arrival(now, following) for following in (next(self._rest, None),) if following]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns of one chat: each is sent `think_s` after the one before was answered."""

    begins: float
    turns: tuple[Job, ...]
    think_s: float = 0.0


class Conversations:
    """Chats that begin by the clock and go on turn by turn."""

    def __init__(self, conversations: Iterable[Conversation]) -> None:
        self._begins: list[Arrival] = []
        self._next: dict[str, tuple[float, Job]] = {}
        for chat in conversations:
            self._begins.append(Arrival(chat.begins, chat.turns[0]))
            for turn, following in zip(chat.turns, chat.turns[1:], strict=False):
                self._next[turn.job_id] = (chat.think_s, following)

    def first(self) -> Iterable[Arrival]:
        """Every chat's first turn."""
        return self._begins

    def after(self, job: Job, now: float) -> Iterable[Arrival]:
        """The chat's next turn."""
        if job.job_id not in self._next:
            return ()
        think_s, following = self._next[job.job_id]
        return [Arrival(now + think_s, following)]


# --- arrival processes -------------------------------------------------------------------------


def poisson(rng: Generator, rate: float, count: int) -> list[float]:
    """`count` arrival times at `rate` per second on average, independent of each other."""
    return [float(when) for when in rng.exponential(1 / rate, count).cumsum()]


def bursts(rng: Generator, rate: float, count: int, burst: int) -> list[float]:
    """The same rate, but jobs come `burst` at a time; the bursts are Poisson arrivals."""
    return [when for when in poisson(rng, rate / burst, -(-count // burst)) for _ in range(burst)][
        :count
    ]


# --- lengths -----------------------------------------------------------------------------------


class Lengths(Protocol):
    """A distribution of lengths in tokens, each at least 1."""

    def draw(self, rng: Generator, count: int) -> list[int]:
        """`count` independent lengths."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    length: int

    def draw(self, rng: Generator, count: int) -> list[int]:  # noqa: ARG002 - the port's signature
        """`count` times `length`."""
        return [self.length] * count


@dataclass(frozen=True, slots=True)
class Uniform:
    """Any length from `least` to `most`, both included, with the same chance."""

    least: int
    most: int

    def draw(self, rng: Generator, count: int) -> list[int]:
        """`count` independent lengths."""
        return [int(length) for length in rng.integers(self.least, self.most, count, endpoint=True)]


@dataclass(frozen=True, slots=True)
class Exponential:
    """Exponential with the given mean, rounded up."""

    mean: float

    def draw(self, rng: Generator, count: int) -> list[int]:
        """`count` independent lengths."""
        return [int(length) + 1 for length in rng.exponential(self.mean, count)]


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Lognormal with the given median and sigma, clipped to [`least`, `most`], rounded down."""

    median: float
    sigma: float
    least: int = 1
    most: int = 1 << 20

    def draw(self, rng: Generator, count: int) -> list[int]:
        """`count` independent lengths."""
        drawn = rng.lognormal(log(self.median), self.sigma, count).clip(self.least, self.most)
        return [int(length) for length in drawn]

    def strata(self, count: int) -> list[int]:
        """The middle of each `count`-quantile, in order: few lengths that stand for many."""
        normal = NormalDist(log(self.median), self.sigma)
        middles = [exp(normal.inv_cdf((index + 0.5) / count)) for index in range(count)]
        return [int(min(max(length, self.least), self.most)) for length in middles]


# --- jobs --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobKind:
    """What the jobs of one stream of traffic have in common: lengths, a shared prefix, a tenant."""

    prompts: Lengths
    answers: Lengths
    prefix: tuple[Span, ...] = ()
    tenant: str = "tenant"
    max_tokens: int = 0

    def jobs(self, rng: Generator, streams: Streams, count: int) -> list[Job]:
        """`count` jobs; the prefix comes before each prompt and is not part of its drawn length."""
        prompts, answers = self.prompts.draw(rng, count), self.answers.draw(rng, count)
        return [
            Job(
                f"{self.tenant}-{number}",
                (*self.prefix, Span(streams.new(), prompt)),
                Span(streams.new(), answer),
                self.max_tokens,
                self.tenant,
            )
            for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
        ]


def arrivals(times: Iterable[float], jobs: Iterable[Job]) -> list[Arrival]:
    """Each job at its time."""
    return [Arrival(when, job) for when, job in zip(times, jobs, strict=True)]


@dataclass(slots=True)
class Chat:
    """A conversation in the making: what was said so far is the prefix of what comes next."""

    name: str
    streams: Streams
    said: tuple[Span, ...] = ()
    tenant: str = "tenant"
    turns: list[Job] = field(default_factory=list)

    def turn(self, message: int, answer: int) -> Job:
        """The next turn: the whole history and a new message, to be answered in `answer` tokens."""
        prompt = (*self.said, Span(self.streams.new(), message))
        job = Job(
            f"{self.name}-{len(self.turns)}",
            prompt,
            Span(self.streams.new(), answer),
            tenant=self.tenant,
        )
        self.said = (*prompt, job.answer)
        self.turns.append(job)
        return job
