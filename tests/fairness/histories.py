"""All named histories: what broke earlier statements of the promises, and what comes nearest."""

from tests.fairness import histories_bound, histories_waits
from tests.fairness.checker import Watch

HISTORIES = (*histories_bound.HISTORIES, *histories_waits.HISTORIES)


def watched(history) -> Watch:
    """A fresh watch under the history's own settings, after it was played."""
    watch = Watch(getattr(history, "config", None))
    history(watch)
    return watch
