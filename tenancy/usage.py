"""What is asked of the usage rows and what comes back; rows are written once and never changed."""

from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from uuid import UUID


class UsageGroup(StrEnum):
    """What usage may be summed by. A day is a UTC day."""

    TENANT = "tenant"
    KEY = "key"
    MODEL = "model"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Rows created in [start, end) of one tenant or all; None leaves that side open."""

    tenant_id: UUID | None = None
    start: datetime | None = None
    end: datetime | None = None
    group_by: tuple[UsageGroup, ...] = (UsageGroup.TENANT,)


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """The sums of one group; a field that was not grouped by is None.

    `cached_tokens` sums what upstreams reported; `requests_cache_unknown` counts rows where they
    did not say.
    """

    tenant_id: UUID | None
    key_id: str | None
    model: str | None
    day: date | None
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    requests_cache_unknown: int
