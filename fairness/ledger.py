"""The accounts of one pool: the floor, who is backlogged, and the order in which tenants go.

Three orders are kept: by rank for the next grant, by settled counter for the floor, and by the most
a tenant can get back for M. Whoever changes an account says so: `join` and `leave` when it starts
and stops being backlogged, `moved` when its rank may have fallen, `retune` when its caps changed.
"""

from itertools import count

from fairness.caps import UNIT, caps
from fairness.counters import Account
from fairness.ordering import LazyMinHeap
from fairness.policy import Policy
from fairness.types import PoolConfig, TenantId, TenantTerms


class Ledger:
    """Accounts by tenant. `floor` is V, which never falls; `credit` bounds every tenant's N.

    `num_backlogged`, `weight` and `stake` are sums over backlogged tenants: how many, their weights
    in thousandths, their stakes.
    """

    def __init__(self, policy: Policy, config: PoolConfig) -> None:
        self.accounts: dict[TenantId, Account] = {}
        self.floor = 0
        self.credit = 0
        self.num_backlogged = 0
        self.weight = 0
        self.stake = 0
        self._policy = policy
        self._config = config
        self._serials = count()
        self._floor_lag: int | None = 0
        self._by_rank = LazyMinHeap(self._rank)
        self._by_settled = LazyMinHeap(_settled)
        self._by_refund = LazyMinHeap(_refund)
        self._by_largest = LazyMinHeap(_largest)
        self._quiet = LazyMinHeap(_quiet_counter)
        self._orders = (self._by_rank, self._by_settled, self._by_refund, self._by_largest)

    def open(self, tenant: TenantId, terms: TenantTerms) -> Account:
        """The tenant's account; a new one starts at the floor."""
        account = self.accounts.get(tenant)
        if account is None:
            known = caps(terms, self.credit, self._config)
            account = Account(tenant, terms, known, raw=self.floor * terms.weight_milli)
            self.add(account)
        return account

    def add(self, account: Account) -> None:
        """Take in an account as it stands: a new one, or one of a checkpoint."""
        account.serial = next(self._serials)
        self.accounts[account.tenant] = account
        if account.backlogged:
            self._count(account, 1)
        self._offer(account)

    def set_terms(self, account: Account, terms: TenantTerms) -> None:
        """A tenant's weight or limits changed."""
        self._count(account, -account.backlogged)
        account.set_terms(terms, self.floor)
        account.caps = caps(terms, self.credit, self._config)
        self._count(account, account.backlogged)
        self._offer(account)

    def set_credit(self, credit: int) -> None:
        """The pool's slots and look-ahead changed, and with them what tenants can hold at most."""
        least = min(credit, self.credit)
        if credit == self.credit:
            return
        self.credit = credit
        for account in self.accounts.values():
            if account.terms.concurrency > least:  # else its own limit is what counts
                self.set_terms(account, account.terms)

    def join(self, account: Account, now: float) -> bool:
        """The account became backlogged and rises to the floor; true if it was below.

        What it may still fall is noted.
        """
        lifted = account.lift(self.floor)
        account.note_join(now)
        self._count(account, 1)
        self._by_rank.offer(account)
        self._by_settled.offer(account)
        return lifted

    def leave(self, account: Account) -> None:
        """The account is no longer backlogged."""
        self._count(account, -1)
        account.backlogged_since = None

    def moved(self, account: Account) -> None:
        """A backlogged account's rank may have fallen."""
        self._by_rank.offer(account)

    def granted(self, account: Account) -> None:
        """More of it is unsettled now; limits that shrank may have let in more than today's do."""
        if account.unsettled > account.caps.refund:
            self._by_refund.offer(account)
            self._floor_lag = None

    def rest(self, account: Account) -> None:
        """The account is quiet: it may be forgotten once it is not ahead of the floor."""
        self._quiet.offer(account)

    def next(self) -> Account | None:
        """The backlogged tenant that goes next."""
        return self._by_rank.least()

    def advance_floor(self) -> None:
        """V becomes the smallest settled counter of the backlogged tenants, if that is higher."""
        account = self._by_settled.least()
        if account is not None:
            self.floor = max(self.floor, account.settled)

    def floor_lag(self) -> int:
        """M: the most that the smallest backlogged counter can be above the floor.

        Kept until an account comes, goes or changes its caps, or has more unsettled than they say.
        """
        if self._floor_lag is not None:
            return self._floor_lag
        account = self._by_refund.least()
        if account is None:
            return 0
        lag = account.refund_cap
        if account.unsettled <= account.caps.refund:
            self._floor_lag = lag
        return lag

    def floor_lag_seen(self) -> int:
        """The same from the accounts alone: for a reader in another thread."""
        return max((account.refund_cap for account in tuple(self.accounts.values())), default=0)

    def largest_request(self) -> int:
        """The cost of the largest request of one sequence that any known tenant may send."""
        account = self._by_largest.least()
        return 0 if account is None else account.caps.largest

    def work_before(self, account: Account) -> int:
        """What may be served before a backlogged account's new head is granted, in milli-units.

        Its own output and refunds, and of every other backlogged tenant as much as the bound on an
        interval lets it have: the weight times Z + (U + A)/weight of both, and M.
        """
        own = account.caps
        others = self.weight - account.terms.weight_milli
        ahead = -(-others * (own.stake_norm + self.floor_lag()) // UNIT)
        return own.work + ahead + self.stake - own.stake

    def forget(self) -> list[Account]:
        """Drop the accounts of quiet tenants that are not ahead of the floor."""
        forgotten = []
        while (account := self._quiet.least()) is not None:
            if account.counter > self.floor:
                break
            del self.accounts[account.tenant]
            account.gone = True
            for order in (*self._orders, self._quiet):
                order.drop(account)
            self._floor_lag = None
            forgotten.append(account)
        return forgotten

    def backlogged(self) -> list[Account]:
        """The tenants that have a waiting request and are not held back by their own limits."""
        return [account for account in tuple(self.accounts.values()) if account.backlogged]

    def _count(self, account: Account, sign: int) -> None:
        self.num_backlogged += sign
        self.weight += sign * account.terms.weight_milli
        self.stake += sign * account.caps.stake

    def _offer(self, account: Account) -> None:
        """All its keys may have fallen."""
        self._floor_lag = None
        for order in (*self._orders, self._quiet):
            order.offer(account)

    def rank(self, account: Account) -> int:
        """The rank of a backlogged account."""
        if account.first is None:
            raise AssertionError(f"backlogged tenant {account.tenant} has nothing waiting")
        return self._policy.rank(account, account.first)

    def _rank(self, account: Account) -> int | None:
        head = account.first
        if account.backlogged_since is None or head is None:
            return None
        return self._policy.rank(account, head)


def _settled(account: Account) -> int | None:
    return None if account.backlogged_since is None else account.settled


def _refund(account: Account) -> int | None:
    return None if account.gone else -account.refund_cap


def _largest(account: Account) -> int | None:
    return None if account.gone else -account.caps.largest


def _quiet_counter(account: Account) -> int | None:
    return account.counter if account.quiet and not account.gone else None
