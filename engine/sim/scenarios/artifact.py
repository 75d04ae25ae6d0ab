"""`fairness/SUITE`: the Virtual Token Counter paper's experiments, its figures beside ours."""

from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.random import Generator

from engine.sim.artifact.experiment import Experiment, experiment, policies
from engine.sim.artifact.measures import WARM_UP_S, Vector, accumulated_gap, windowed
from engine.sim.artifact.published import NOTES, RESULTS
from engine.sim.artifact.workloads import SUITES, Suite
from engine.sim.report import report
from engine.sim.result import Cell, Line, Plot, Result, Table
from engine.sim.scenario import Scenario

_SHOWN_BY_CLIENT = ("FCFS", "VTC")
_NUM_MOMENTS = 120
_CLIENTS_DRAWN = 8

Found = Mapping[str, Experiment]


def compare(suite: Suite, rng: Generator) -> Result:
    """Every policy on the same requests."""
    arrivals = suite.arrivals(rng)
    found = {
        name: experiment(suite, arrivals, policy())
        for name, policy in policies(suite, arrivals).items()
    }
    theirs = _published(suite)
    return Result(
        (_differences(suite, found), *theirs, _gaps(found), _clients(suite, found)),
        (_gap_plot(found), *(_service_plot(name, found[name]) for name in ("FCFS", "VTC"))),
        {name: report(one.run.trace) for name, one in found.items()},
    )


_DIFFERENCE = ("policy", "max", "mean", "variance", "mean / FCFS", "tokens/s")


def _differences(suite: Suite, found: Found) -> Table:
    """What the paper's tables hold."""
    rows = tuple(
        (
            name,
            one.difference.largest,
            one.difference.mean,
            one.difference.variance,
            _ratio(one.difference.mean, found["FCFS"].difference.mean),
            one.throughput,
        )
        for name, one in found.items()
    )
    return Table(f"{suite.summary}: service difference (units/s)", _DIFFERENCE, rows)


def _published(suite: Suite) -> tuple[Table, ...]:
    """Their table, if there is one."""
    if suite.name not in RESULTS:
        return ()
    results = RESULTS[suite.name]
    rows = tuple(
        (
            name,
            one.largest,
            one.mean,
            one.variance,
            _ratio(one.mean, results["FCFS"].mean),
            one.throughput,
        )
        for name, one in results.items()
    )
    return (Table("the same as published", _DIFFERENCE, rows),)


def _ratio(mean: float, control: float) -> Cell:
    return mean / control if control else "-"


def _gaps(found: Found) -> Table:
    rows = tuple((name, one.gap, one.jain, 100 * one.refused) for name, one in found.items())
    columns = ("policy", "gap, both backlogged (units)", "Jain", "refused (%)")
    return Table("while clients send", columns, rows)


def _clients(suite: Suite, found: Found) -> Table:
    """Each client's wait for first tokens, and its service while they send."""
    shown = {name: found[name] for name in _SHOWN_BY_CLIENT}
    columns = [f"{name} {what}" for name in shown for what in ("TTFT", "p99", "units/s")]
    shares = {name: one.rates for name, one in shown.items()}
    rows: list[tuple[Cell, ...]] = []
    for client, weight in sorted(found["FCFS"].weights.items()):
        row: list[Cell] = [client, weight]
        for name, one in shown.items():
            waits = one.first_tokens(client)
            row += [waits.mean, waits.p99, shares[name][client]]
        rows.append(tuple(row))
    title = "by client: first token, mean and p99 (s), and service"
    note = NOTES.get(suite.name)
    return Table(
        f"{title}; published: {note}" if note else title,
        ("client", "weight", *columns),
        tuple(rows),
    )


def _gap_plot(found: Found) -> Plot:
    """Flat under a fair policy, growing under another."""
    lines = []
    for name, one in found.items():
        moments = np.linspace(WARM_UP_S, one.sending[1], _NUM_MOMENTS)
        gap = accumulated_gap(one.clients, moments)
        lines.append(Line(name, _floats(moments), _floats(gap)))
    return Plot("Most less least accumulated service", "seconds", "service units", tuple(lines))


def _service_plot(policy: str, one: Experiment) -> Plot:
    """The best served clients' service in a window of a minute."""
    moments = np.linspace(0.0, one.run.trace.ended, _NUM_MOMENTS)
    rates = one.rates
    most = sorted(rates, key=lambda name: -rates[name])[:_CLIENTS_DRAWN]
    lines = tuple(
        Line(name, _floats(moments), _floats(windowed(one.clients[name], moments)))
        for name in sorted(most)
    )
    return Plot(f"Service by client, {policy}", "seconds", "service units per second", lines)


def _floats(values: Vector) -> list[float]:
    return [float(value) for value in values]


SCENARIOS = tuple(
    Scenario(f"fairness/{suite.name}", suite.summary, partial(compare, suite), plots=True)
    for suite in SUITES.values()
)
