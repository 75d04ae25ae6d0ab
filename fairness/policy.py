"""Who is next, behind one port: the fair policy and first come, first served as its control."""

from typing import Protocol

from fairness.counters import Account, Ticket


class Policy(Protocol):
    """Ranks backlogged tenants; the smallest rank is granted, ties go to the smaller tenant id."""

    @property
    def name(self) -> str:
        """What settings and metrics call it."""
        ...

    def rank(self, account: Account, head: Ticket) -> int:
        """The rank of a backlogged tenant whose oldest waiting request is `head`."""
        ...


class VtcPolicy:
    """The tenant with the smallest counter goes next."""

    name = "vtc"

    def rank(self, account: Account, head: Ticket) -> int:  # noqa: ARG002 - the port's signature
        """The counter."""
        return account.counter


class FcfsPolicy:
    """The request that arrived first goes next, whoever sent it; counters only measure."""

    name = "fcfs"

    def rank(self, account: Account, head: Ticket) -> int:  # noqa: ARG002 - the port's signature
        """The place in the order of arrival."""
        return head.arrival
