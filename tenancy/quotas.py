"""Limits over the levels plan, tenant and key: the tightest applies and says which level set it."""

from dataclasses import asdict, fields
from types import MappingProxyType

from tenancy.entities import EffectiveLimit, EffectiveLimits, Limits
from tenancy.errors import InvalidValueError

LIMIT_NAMES = tuple(field.name for field in fields(Limits))
REQUIRED_IN_PLAN = ("concurrency", "max_queued", "max_prompt", "max_output")
MAX_LIMIT = 10**12


def checked(limits: Limits) -> Limits:
    """The same limits. Raises InvalidValueError for one below 1 or over 10**12."""
    for name, value in asdict(limits).items():
        if value is not None and not 1 <= value <= MAX_LIMIT:
            raise InvalidValueError(name, f"must be from 1 to {MAX_LIMIT}, not {value}")
    return limits


def effective(plan: Limits, tenant: Limits, key: Limits | None = None) -> EffectiveLimits:
    """The tightest value per dimension. On a tie the outermost level is named.

    Raises ValueError where the plan lacks a limit it must have.
    """
    missing = [name for name in REQUIRED_IN_PLAN if getattr(plan, name) is None]
    if missing:
        raise ValueError(f"a plan must set {', '.join(missing)}")
    levels = {"plan": plan, "tenant": tenant} | ({} if key is None else {"key": key})
    tightest = {
        name: min(
            (
                EffectiveLimit(value=getattr(limits, name), level=level)
                for level, limits in levels.items()
                if getattr(limits, name) is not None
            ),
            key=lambda limit: limit.value,
            default=None,
        )
        for name in LIMIT_NAMES
    }
    return EffectiveLimits(**tightest)  # type: ignore[arg-type] # required ones are set, see above


def as_mapping(limits: EffectiveLimits) -> MappingProxyType[str, EffectiveLimit | None]:
    """Dimension to limit, in the order of `LIMIT_NAMES`."""
    return MappingProxyType({name: getattr(limits, name) for name in LIMIT_NAMES})
