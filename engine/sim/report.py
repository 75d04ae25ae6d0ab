"""A run in numbers: latencies, utilisation, cache, preemptions, goodput."""

from array import array
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import numpy as np

from engine.sim.trace import JobTrace, ReplicaTrace, Trace


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must meet to count for goodput: seconds to its first token, and per token."""

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Seconds: the mean and three percentiles, linearly interpolated; zeros when nothing was."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0

    @classmethod
    def of(cls, values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> "Quantiles":
        """The quantiles of these values."""
        if not len(values):
            return cls()
        p50, p90, p99 = np.percentile(values, (50, 90, 99))
        return cls(float(values.mean()), float(p50), float(p90), float(p99), float(values.max()))


@dataclass(frozen=True, slots=True)
class Report:
    """One run. Rates are per virtual second, from the first arrival to the end; shares are 0 to 1.

    TTFT is from arrival to the first token, ITL every gap between two tokens of an answer, TPOT an
    answer's mean gap, latency from arrival to the last token. Utilisation is averaged over the time
    in which replicas stepped: rows per slot, and blocks held of all. `recompute_share` is how much
    of what was computed had been computed before and was lost to a preemption. `goodput` counts
    finished requests within the SLO.
    """

    requests: int
    finished: int
    refused: int
    seconds: float
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    requests_per_s: float
    goodput_per_s: float
    ttft: Quantiles
    itl: Quantiles
    tpot: Quantiles
    latency: Quantiles
    steps: int
    slot_utilisation: float
    kv_utilisation: float
    preemptions: int
    recomputed_tokens: int
    recompute_share: float
    hit_rate: float

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def report(trace: Trace, slo: Slo | None = None) -> Report:
    """Sum up a run. Without an SLO every finished request counts for goodput."""
    jobs = list(trace.jobs.values())
    done = [job for job in jobs if job.finished is not None]
    seconds = max(trace.ended - min((job.arrived for job in jobs), default=0.0), 1e-12)
    emitted = sum(len(job.token_times) for job in jobs)
    prompts = sum(job.job.num_prompt_tokens for job in jobs if job.token_times)
    replicas = trace.replicas.values()
    computed = sum(replica.stats.computed_tokens for replica in replicas)
    recomputed = sum(replica.stats.recomputed_tokens for replica in replicas)
    queried = sum(replica.stats.prefix_query_tokens for replica in replicas)
    hit = sum(replica.stats.prefix_hit_tokens for replica in replicas)
    return Report(
        requests=len(jobs),
        finished=len(done),
        refused=len(trace.refused),
        seconds=seconds,
        output_tokens_per_s=emitted / seconds,
        prompt_tokens_per_s=prompts / seconds,
        requests_per_s=len(done) / seconds,
        goodput_per_s=sum(slo is None or _meets(job, slo) for job in done) / seconds,
        ttft=Quantiles.of(np.array([_ttft(job) for job in jobs if job.token_times])),
        itl=Quantiles.of(gaps(jobs)),
        tpot=Quantiles.of(np.array([_tpot(job) for job in done if len(job.token_times) > 1])),
        latency=Quantiles.of(np.array([_latency(job) for job in done])),
        steps=sum(len(replica.timeline.ended) for replica in replicas),
        slot_utilisation=_utilisation(replicas, _slots_used),
        kv_utilisation=_utilisation(replicas, _blocks_used),
        preemptions=sum(replica.stats.preemptions for replica in replicas),
        recomputed_tokens=recomputed,
        recompute_share=recomputed / computed if computed else 0.0,
        hit_rate=hit / queried if queried else 0.0,
    )


def gaps(jobs: Iterable[JobTrace]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Every gap between two tokens of one answer, in seconds."""
    found = [np.diff(np.frombuffer(job.token_times)) for job in jobs if len(job.token_times) > 1]
    return np.concatenate(found) if found else np.empty(0)


def _ttft(job: JobTrace) -> float:
    return job.token_times[0] - job.arrived


def _tpot(job: JobTrace) -> float:
    return (job.token_times[-1] - job.token_times[0]) / (len(job.token_times) - 1)


def _latency(job: JobTrace) -> float:
    return job.token_times[-1] - job.arrived


def _meets(job: JobTrace, slo: Slo) -> bool:
    within = _ttft(job) <= slo.ttft_s
    return within and (len(job.token_times) == 1 or _tpot(job) <= slo.tpot_s)


def _slots_used(replica: ReplicaTrace) -> float:
    """Rows computed per slot, averaged over time."""
    return _averaged(replica, replica.timeline.rows) / replica.slots


def _blocks_used(replica: ReplicaTrace) -> float:
    """Blocks held of all, averaged over time."""
    return _averaged(replica, replica.timeline.held_blocks) / replica.stats.total_blocks


def _averaged(replica: ReplicaTrace, values: "array[int]") -> float:
    seconds = np.frombuffer(replica.timeline.seconds)
    return float(np.average(np.frombuffer(values, np.int64), weights=seconds))


def _utilisation(replicas: Iterable[ReplicaTrace], of: Callable[[ReplicaTrace], float]) -> float:
    """The mean over the replicas that stepped at all."""
    used = [of(replica) for replica in replicas if replica.timeline.seconds]
    return sum(used) / len(used) if used else 0.0
