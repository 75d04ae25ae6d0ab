"""Queues with one rule taken away, as controls: what each rule is for shows where it is missing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.core.batch import StepReport
from engine.sim.gateway import SimGateway
from engine.sim.job import Job
from engine.sim.queues import Grant
from fairness import events
from fairness.caps import UNIT
from fairness.cost import output_cost, prompt_cost
from fairness.counters import Account, Ticket
from fairness.policy import Policy, VtcPolicy
from fairness.types import Prices, TenantId


class UnsettledEstimate(Policy):
    """Charges every request its prompt and a guess of its answer, and never what it came to."""

    name = "estimate-unsettled"

    def __init__(self, guess: int, prices: Prices | None = None) -> None:
        self._guess = guess
        self._prices = prices or Prices()
        self._charged: Counter[TenantId] = Counter()

    def rank(self, account: Account, head: Ticket) -> int:  # noqa: ARG002 - the port's signature
        """All guesses so far, by weight."""
        return UNIT * self._charged[account.tenant] // account.terms.weight_milli

    def granted(self, account: Account, ticket: Ticket) -> None:
        """Charge for good."""
        guessed = output_cost(self._prices, self._guess)
        self._charged[account.tenant] += guessed + prompt_cost(self._prices, ticket.prompt_tokens)


class RefundsTheUnfinished(Policy):
    """Charges as ever, but gives everything back when a client leaves before its answer's end."""

    name = "cancel-refunds"

    def __init__(self, prices: Prices | None = None) -> None:
        self._prices = prices or Prices()
        self._charged: Counter[TenantId] = Counter()

    def rank(self, account: Account, head: Ticket) -> int:  # noqa: ARG002 - the port's signature
        """What is charged now, by weight."""
        return UNIT * self._charged[account.tenant] // account.terms.weight_milli

    def charged(self, account: Account, milli: int) -> None:
        """Write it down."""
        self._charged[account.tenant] += milli

    def ended(self, account: Account, ticket: Ticket) -> None:
        """Give back what an unfinished answer cost, prompt and tokens."""
        if ticket.output_tokens < ticket.output_limit:
            tokens = output_cost(self._prices, ticket.output_tokens)
            self._charged[account.tenant] -= tokens + (ticket.charged or 0)


class PrefixFirst(Policy):
    """Tenants whose prompts begin as granted ones did go first, whoever else waits."""

    name = "prefix-first"

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._cached: set[TenantId] = set()

    def rank(self, account: Account, head: Ticket) -> int:
        """Those tenants before all others, each by the arrival of its head."""
        return ((account.tenant not in self._cached) << 40) + head.arrival

    def granted(self, account: Account, ticket: Ticket) -> None:
        """What it begins with is cached from now on."""
        if self._known.intersection(ticket.prefix):
            self._cached.add(account.tenant)
        self._known.update(ticket.prefix)


class ChargesRepeats(VtcPolicy):
    """Counts what an engine computed again after a preemption as if the tenant had asked for it."""

    name = "repeats-charged"

    def __init__(self, repeated: Mapping[TenantId, int], prices: Prices | None = None) -> None:
        self._repeated = repeated  # tokens, by tenant; whoever runs the replicas keeps it
        self._prices = prices or Prices()

    def rank(self, account: Account, head: Ticket) -> int:  # noqa: ARG002 - the port's signature
        """The counter, and the repeated tokens as prompt."""
        again = prompt_cost(self._prices, self._repeated.get(account.tenant, 0))
        return (account.raw + UNIT * again) // account.terms.weight_milli


@dataclass
class ReapingGateway(SimGateway):
    """Takes a stream that was silent for five minutes for lost, and gives its credit to others.

    The engine, whom nobody asks, goes on with it.
    """

    silence_s: float = 300.0
    _heard: dict[str, float] = field(default_factory=dict)

    def hear(self, now: float, report: StepReport) -> Sequence[Grant]:
        """Remember who was heard of."""
        self._heard.update((one.request_id, now) for one in report.emitted)
        return SimGateway.hear(self, now, report)

    def tick(self, now: float) -> Sequence[Grant]:
        """Give up what was silent too long."""
        grants = [*SimGateway.tick(self, now)]
        for job_id in tuple(self._at):
            if now - self._heard.setdefault(job_id, now) >= self.silence_s:
                del self._at[job_id]
                grants += self._tell(events.Finished(now, job_id, self._emitted[job_id]))
        return grants


@dataclass
class ForgetfulGateway(SimGateway):
    """Queues what a crash sent back as if it were new: at the tail, and charged once more."""

    def lose(self, now: float, replica: str) -> tuple[Sequence[Grant], Sequence[Job]]:
        """End what was there, and take what had not begun for new requests."""
        there = [job_id for job_id, name in self._at.items() if name == replica]
        again = [self._jobs[job_id] for job_id in there if job_id not in self._began]
        grants = self._tell(events.ReplicaDrained(now, replica))
        for job in again:
            grants += self._tell(events.Finished(now, job.job_id, 0))
            del self._at[job.job_id]
        lost, cut = SimGateway.lose(self, now, replica)
        grants += lost
        for job in again:
            grants += self.arrive(now, job)
        return grants, cut
