"""What changed since it was last seen that nobody could pass a misfit: a few accounts, or anything.

Looking at every tenant costs time in their number, and a request that arrives changes only its own
tenant's chance. So changes are noted by tenant where that is all they touch.
"""

from fairness.counters import Account
from fairness.types import TenantId

FEW = 64


class Changes:
    """`anything`: every tenant must be looked at again; else only those of `tenants`."""

    def __init__(self) -> None:
        self.anything = True
        self.tenants: set[TenantId] = set()

    def note(self, account: Account) -> None:
        """What the account waits for, where it stands or what it may do is not what it was."""
        if not self.anything:
            self.tenants.add(account.tenant)
            if len(self.tenants) > FEW:
                self.note_all()

    def note_all(self) -> None:
        """Credit came back, replicas changed, or prefixes became known: it may help anybody."""
        self.anything = True
        self.tenants.clear()

    def seen(self) -> None:
        """All was looked at."""
        self.anything = False
        self.tenants.clear()
