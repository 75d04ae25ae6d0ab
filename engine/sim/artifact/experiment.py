"""One suite under each of its policies, measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from engine.sim.artifact.measures import (
    WARM_UP_S,
    Served,
    ServiceDifference,
    contended_gap,
    rates,
    served,
    service_difference,
    throughput,
)
from engine.sim.artifact.server import Run, run
from engine.sim.artifact.workloads import Suite
from engine.sim.report import Quantiles
from engine.sim.workload import Arrival
from fairness.controls import LcfPolicy, OracleVtcPolicy, PredictedVtcPolicy, RpmPolicy, noisy
from fairness.metrics import jain
from fairness.policy import FcfsPolicy, Policy, VtcPolicy

CAPS = (5, 20, 30)
NOISE = 0.5

Policies = Mapping[str, Callable[[], Policy]]


@dataclass(frozen=True)
class Experiment:
    """A run of a suite under one policy. Weights are shares of the usual one."""

    run: Run
    weights: Mapping[str, float]

    @cached_property
    def clients(self) -> Mapping[str, Served]:
        """What each client was served, by name."""
        return dict(sorted(served(self.run.trace).items()))

    @cached_property
    def difference(self) -> ServiceDifference:
        """The paper's service difference."""
        return service_difference(self.clients)

    @cached_property
    def throughput(self) -> float:
        """Prompt and output tokens per second."""
        return throughput(self.run.trace)

    @cached_property
    def gap(self) -> float:
        """The largest gap of charged service by weight, in units, while both were backlogged."""
        return contended_gap(self.run.samples, self.weights)

    @property
    def sending(self) -> tuple[float, float]:
        """From the end of the warm-up to the last arrival."""
        return WARM_UP_S, max(job.arrived for job in self.run.trace.jobs.values())

    @property
    def rates(self) -> Mapping[str, float]:
        """Each client's units per second meanwhile."""
        return dict(zip(self.clients, rates(self.clients, *self.sending), strict=True))

    @property
    def jain(self) -> float:
        """Jain's index of these rates by weight."""
        return jain([rate / self.weights[name] for name, rate in self.rates.items()])

    @property
    def refused(self) -> float:
        """The share of requests that were refused."""
        return len(self.run.trace.refused) / len(self.run.trace.jobs)

    def first_tokens(self, client: str) -> Quantiles:
        """Seconds to the first token of the client's requests."""
        jobs = self.run.trace.jobs.values()
        return Quantiles.of(
            np.array(
                [
                    job.token_times[0] - job.arrived
                    for job in jobs
                    if job.job.tenant == client and job.token_times
                ]
            )
        )


def experiment(suite: Suite, arrivals: Sequence[Arrival], policy: Policy) -> Experiment:
    """Serve the suite's requests under the policy."""
    names = {arrival.job.tenant for arrival in arrivals}
    weights = {name: (suite.weights or {}).get(name, 1_000) / 1_000 for name in names}
    return Experiment(run(suite, arrivals, policy), weights)


def policies(suite: Suite, arrivals: Sequence[Arrival]) -> Policies:
    """The policies a suite is run under, by name; the caps only where they were published."""
    lengths = {arrival.job.job_id: arrival.job.answer.length for arrival in arrivals}
    found: dict[str, Callable[[], Policy]] = {
        "FCFS": FcfsPolicy,
        "LCF": LcfPolicy,
        "VTC": VtcPolicy,
        "VTC (predict)": PredictedVtcPolicy,
        "VTC (±50%)": partial(OracleVtcPolicy, noisy(lengths.__getitem__, NOISE)),
        "VTC (oracle)": partial(OracleVtcPolicy, lengths.__getitem__),
    }
    if suite.caps:
        found |= {f"RPM {limit}": partial(RpmPolicy, limit) for limit in CAPS}
    return found
