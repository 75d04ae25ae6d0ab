"""The accounts of one pool: the floor, who is backlogged, and the order in which tenants go.

Three orders are kept: by rank for the next grant, by settled counter for the floor, and by the most
a tenant can get back for M. Whoever changes an account says so with `changed`.
"""

from collections.abc import Callable

from fairness.bound import refund_cap
from fairness.counters import Account, Ticket
from fairness.ordering import LazyMinHeap
from fairness.policy import Policy
from fairness.types import Prices, TenantId, TenantTerms

HeadOf = Callable[[Account], Ticket | None]


class Ledger:
    """Accounts by tenant. `floor` is V, which never falls; `credit` bounds every tenant's N."""

    def __init__(self, policy: Policy, prices: Prices, head_of: HeadOf) -> None:
        self.accounts: dict[TenantId, Account] = {}
        self.floor = 0
        self.credit = 0
        self._policy = policy
        self._prices = prices
        self._head_of = head_of
        self._by_rank = LazyMinHeap(self._rank)
        self._by_settled = LazyMinHeap(self._settled)
        self._by_refund = LazyMinHeap(self._refund)
        self._quiet = LazyMinHeap(self._quiet_counter)

    def open(self, tenant: TenantId, terms: TenantTerms) -> Account:
        """The tenant's account; a new one starts at the floor."""
        account = self.accounts.get(tenant)
        if account is None:
            account = Account(tenant, terms, raw=self.floor * terms.weight_milli)
            self.accounts[tenant] = account
            self._by_refund.offer(tenant)
        return account

    def set_credit(self, credit: int) -> None:
        """The pool's slots and look-ahead changed, and with them what every tenant can hold."""
        self.credit = credit
        for tenant in self.accounts:
            self._by_refund.offer(tenant)

    def changed(self, account: Account, now: float) -> bool:
        """Take note that an account changed; true if its counter was lifted.

        On becoming backlogged the counter rises to the floor, and what it may still fall is noted.
        """
        head = self._head_of(account)
        eligible = (
            head is not None and account.in_flight + head.sequences <= account.terms.concurrency
        )
        lifted = False
        if not eligible:
            account.backlogged_since = None
            if account.quiet:
                self._quiet.offer(account.tenant)
        elif not account.backlogged:
            lifted = account.lift(self.floor)
            account.note_join(now)
        self._by_rank.offer(account.tenant)
        self._by_settled.offer(account.tenant)
        self._by_refund.offer(account.tenant)
        return lifted

    def next(self) -> Account | None:
        """The backlogged tenant that goes next."""
        tenant = self._by_rank.least()
        return None if tenant is None else self.accounts[tenant]

    def advance_floor(self) -> None:
        """V becomes the smallest settled counter of the backlogged tenants, if that is higher."""
        tenant = self._by_settled.least()
        if tenant is not None:
            self.floor = max(self.floor, self.accounts[tenant].settled)

    def floor_lag(self) -> int:
        """M: the most that the smallest backlogged counter can be above the floor."""
        tenant = self._by_refund.least()
        return 0 if tenant is None else self._refund_cap(self.accounts[tenant])

    def forget(self) -> list[Account]:
        """Drop the accounts of quiet tenants that are not ahead of the floor."""
        forgotten = []
        while (tenant := self._quiet.least()) is not None:
            if self.accounts[tenant].counter > self.floor:
                break
            forgotten.append(self.accounts.pop(tenant))
        return forgotten

    def backlogged(self) -> list[Account]:
        """The tenants that have a waiting request and are not held back by their own limits."""
        return [account for account in self.accounts.values() if account.backlogged]

    def _refund_cap(self, account: Account) -> int:
        return refund_cap(account, self.credit, self._prices)

    def _rank(self, tenant: TenantId) -> int | None:
        account = self.accounts.get(tenant)
        if account is None or not account.backlogged:
            return None
        head = self._head_of(account)
        return None if head is None else self._policy.rank(account, head)

    def _settled(self, tenant: TenantId) -> int | None:
        account = self.accounts.get(tenant)
        return account.settled if account is not None and account.backlogged else None

    def _refund(self, tenant: TenantId) -> int | None:
        account = self.accounts.get(tenant)
        return None if account is None else -self._refund_cap(account)

    def _quiet_counter(self, tenant: TenantId) -> int | None:
        account = self.accounts.get(tenant)
        return account.counter if account is not None and account.quiet else None
