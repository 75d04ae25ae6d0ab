"""Who is next, behind one port: the fair policy, and first come, first served as its control.

A policy ranks tenants and may keep books of its own through the hooks; it never changes an account.
"""

# ruff: noqa: B027 - the hooks: doing nothing is what most policies want of them

from abc import ABC, abstractmethod

from fairness.counters import Account, Ticket
from fairness.types import TenantId


class Policy(ABC):
    """Ranks backlogged tenants: the smallest rank is granted, ties go to the smaller tenant id.

    The hooks are told what happened after it happened; here they do nothing.
    """

    name: str

    @abstractmethod
    def rank(self, account: Account, head: Ticket) -> int:
        """The rank of a backlogged tenant whose first waiting request is `head`."""

    def slack(self, largest: int) -> int:  # noqa: ARG002 - the port's signature
        """How far above the first rank a tenant may pass a misfit or use the urgent lane.

        `largest` is Z, the tenant's own largest request per unit of weight.
        """
        return 0

    def refuses(self, now: float, tenant: TenantId) -> float | None:  # noqa: ARG002 - as above
        """Seconds after which a refused request may be tried again; None to take it."""
        return None

    def charged(self, account: Account, milli: int) -> None:
        """The account was charged; a negative amount is a correction or a refund."""

    def granted(self, account: Account, ticket: Ticket) -> None:
        """The request was granted, perhaps not for the first time."""

    def emitted(self, account: Account, ticket: Ticket, before: int) -> None:
        """The request has emitted `ticket.output_tokens`, of which `before` were known."""

    def ended(self, account: Account, ticket: Ticket) -> None:
        """The request is in flight no longer: it ended, or waits again."""


class VtcPolicy(Policy):
    """The tenant with the smallest counter goes next (Virtual Token Counter, OSDI 2024)."""

    name = "vtc"

    def rank(self, account: Account, head: Ticket) -> int:  # noqa: ARG002 - the port's signature
        """The counter."""
        return account.raw // account.terms.weight_milli

    def slack(self, largest: int) -> int:
        """One largest request."""
        return largest


class FcfsPolicy(Policy):
    """The request that arrived first goes next, whoever sent it; counters only measure."""

    name = "fcfs"

    def rank(self, account: Account, head: Ticket) -> int:  # noqa: ARG002 - the port's signature
        """The place in the order of arrival."""
        return head.arrival
