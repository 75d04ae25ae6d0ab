"""A tenant that sends long prompts and leaves at the first token of each answer.

The engine has computed the prompt by then. Whoever gives back what an unfinished answer cost lets
such a tenant have the machine for nothing.
"""

from numpy.random import Generator

from engine.sim.incidents import Patience
from engine.sim.result import Cell, Result, Table
from engine.sim.scenario import Scenario
from engine.sim.scenarios.fair.broken import RefundsTheUnfinished
from engine.sim.scenarios.fair.compare import (
    TERMS,
    Client,
    Play,
    Setting,
    play,
    plays,
    result,
    traffic,
    usual,
)
from engine.sim.workload import Fixed, JobKind

SECONDS = 90.0
ABUSER, HONEST = "abuser", "honest"
RATES = {ABUSER: 10.0, HONEST: 6.0}
REFUNDED = "cancels refunded"


def setting(rng: Generator, seconds: float = SECONDS) -> Setting:
    """Both want more than half; the abuser's clients leave with one token of 256."""
    kind = JobKind(Fixed(480), Fixed(256), tenant=ABUSER)
    clients = [Client(kind, RATES[ABUSER]), usual(HONEST, RATES[HONEST])]
    sent = traffic(rng, clients, seconds)
    leaving = {a.job.job_id: Patience(tokens=1) for a in sent if a.job.tenant == ABUSER}
    terms = {ABUSER: TERMS, HONEST: TERMS}
    return Setting(terms, sent, seconds, since=seconds / 9, patience=leaving)


def without_rule(of: Setting) -> dict[str, Play]:
    """One that charges nothing for what a client left."""
    return {REFUNDED: play(of, RefundsTheUnfinished())}


def left_table(found: dict[str, Play]) -> Table:
    """How many prompts the abuser had computed and left."""
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, len(run.ends.left), 100 * run.shares[ABUSER]) for name, run in found.items()
    )
    columns = ("queue", "prompts computed and left", "of the service (%)")
    return Table("what the abuser got", columns, rows)


def _run(rng: Generator) -> Result:
    found = plays(setting(rng), without_rule)
    return result("one of two tenants leaves at the first token", found, left_table(found))


SCENARIOS = (
    Scenario(
        "fairness/cancels", "a tenant that leaves once its prompt is computed", _run, plots=True
    ),
)
