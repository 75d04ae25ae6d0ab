"""Command-line values to typed ones; what cannot be read is wrong use (exit 2)."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import typer

from tenancy.quotas import MAX_LIMIT
from tenancy.usage import UsageGroup

_WEIGHT = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,3}))?")
_DURATION = re.compile(r"([0-9]{1,6})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
MAX_DURATION = timedelta(days=36_500)


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A limit to set; None clears it at this level."""

    value: int | None


@dataclass(frozen=True, slots=True)
class Grouping:
    """What usage is to be summed by, in this order."""

    groups: tuple[UsageGroup, ...]


@dataclass(frozen=True, slots=True)
class Expiry:
    """When a key ends: at a moment, or so long after it is made."""

    after: timedelta | None
    at: datetime | None

    def moment(self, now: datetime) -> datetime | None:
        """The moment, for a key made `now`."""
        return self.at if self.after is None else now + self.after


def parse_weight(text: str) -> int:
    """A weight in thousandths."""
    match = _WEIGHT.fullmatch(text)
    if match is None:
        raise typer.BadParameter("a weight is a number from 0.001 to 1000, like 1 or 2.5")
    return int(match[1]) * 1000 + int((match[2] or "").ljust(3, "0"))


def parse_limit(text: str) -> LimitChange:
    """A whole number from 1, or `none`."""
    if text == "none":
        return LimitChange(None)
    if not re.fullmatch(r"[0-9]{1,13}", text) or not 1 <= int(text) <= MAX_LIMIT:
        raise typer.BadParameter(f"a limit is a whole number from 1 to {MAX_LIMIT}, or none")
    return LimitChange(int(text))


def parse_moment(text: str) -> datetime:
    """An ISO 8601 date or time; without a zone it is UTC."""
    try:
        when = datetime.fromisoformat(text)
        return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter("give a date like 2027-01-31 or 2027-01-31T12:00Z") from None


def parse_expiry(text: str) -> Expiry:
    """A duration like 90d or 12h from now, or a moment."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return Expiry(after=None, at=parse_moment(text))
    after = timedelta(**{_UNITS[match[2]]: int(match[1])})
    if not timedelta() < after <= MAX_DURATION:
        raise typer.BadParameter("a duration is more than nothing and at most 100 years")
    return Expiry(after=after, at=None)


def parse_groups(text: str) -> Grouping:
    """Comma-separated groups, each once."""
    names = text.split(",")
    if len(set(names)) < len(names) or not set(names) <= set(UsageGroup):
        raise typer.BadParameter(f"give some of {', '.join(UsageGroup)}, separated by commas")
    return Grouping(tuple(UsageGroup(name) for name in names))
