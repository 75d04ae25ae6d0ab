"""How long a head waits: every miss with its true reason, the urgent share, the queue's TTL."""

from fairness import events
from fairness.types import MissReason
from tests.fairness.books import Books
from tests.fairness.outside import BACKLOGGED, Account, Seen, demand
from tests.fairness.promises.turns import Turns


class Waits:
    """Looks after the grants of an event, when the pool has stopped."""

    def __init__(self, books: Books, turns: Turns, ratios: dict[str, float]) -> None:
        self.books = books
        self.turns = turns
        self.ratios = ratios
        self.missed = dict.fromkeys(MissReason, 0)

    def see_expired(self, effect: events.Expired) -> None:
        seen = self.books.live.get(effect.request)
        demand(seen is not None and seen.replica is None, "only what waits expires", effect)
        age = self.books.now - seen.spec.now
        demand(age >= self.books.config.ttl_s - 1e-9, "nothing expires before its TTL", effect)
        up = sum(room.accepting for room in self.books.replicas.values())
        demand(effect.replicas_up == up, "an expiry tells how many replicas are up", effect, up)
        self.books.withdraw(seen)

    def check(self) -> None:
        self._check_misses()
        self._check_share()

    def check_ttl(self) -> None:
        """Before the event is taken: one that it sends back too old may still be granted.

        Requests are kept in the order of their arrival, so the first that is young ends it.
        """
        books = self.books
        for seen in books.live.values():
            if seen.spec.now + books.config.ttl_s > books.now:
                return
            demand(seen.replica is not None, "nothing waits longer than the TTL", seen.spec)

    def _check_misses(self) -> None:
        books = self.books
        waiting = [a for a in books.accounts.values() if a.state == BACKLOGGED]
        for account in waiting:
            head = account.head
            if head.deadline <= books.now and not head.missed:
                told = books.expect(events.Missed, head.spec.request)
                due = self._reason(head, min(waiting, key=self.turns.rank))
                demand(told.reason is due, "a miss tells its true reason", told, due)
                head.missed = True
                self.missed[told.reason] += 1

    def _reason(self, head: Seen, least: Account) -> MissReason:
        """What would keep it waiting even if there were room for it, or else that there is none."""
        account = self.books.accounts[head.spec.tenant]
        if account is least:
            return MissReason.NO_FIT
        if not self.turns.within_slack(account, least):
            return MissReason.BEYOND_SLACK
        return MissReason.NO_FIT if self.turns.affordable(head) else MissReason.BUDGET

    def _check_share(self) -> None:
        """Urgent service is at most its share of all that was charged, and one request.

        Refunds of other service may lower the sum after the lane was used, so it is taken at its
        highest.
        """
        books = self.books
        share = books.config.urgent_share_milli * books.most_service
        allowed = share + 1000 * books.largest_urgent
        demand(1000 * books.urgent <= allowed, "urgent service is within its share", books.urgent)
        if books.urgent > 0:
            self.ratios["urgent"] = max(self.ratios["urgent"], 1000 * books.urgent / allowed)
