"""Limits over the levels plan, tenant and key: which value is in force, and which level set it."""

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
    """The limit in force per dimension, and the level that set it.

    A plan gives what its tenants have unless told otherwise: a tenant's own limit replaces the
    plan's, looser or tighter. A key can only tighten. On a tie the tenant's level is named.
    Raises ValueError where the plan lacks a limit it must have.
    """
    missing = [name for name in REQUIRED_IN_PLAN if getattr(plan, name) is None]
    if missing:
        raise ValueError(f"a plan must set {', '.join(missing)}")
    found = {name: _in_force(name, plan, tenant, key or Limits()) for name in LIMIT_NAMES}
    return EffectiveLimits(**found)  # type: ignore[arg-type] # required ones are set, see above


def _in_force(name: str, plan: Limits, tenant: Limits, key: Limits) -> EffectiveLimit | None:
    own, default, narrower = (getattr(level, name) for level in (tenant, plan, key))
    limit = EffectiveLimit(own, "tenant") if own is not None else None
    if limit is None and default is not None:
        limit = EffectiveLimit(default, "plan")
    if narrower is not None and (limit is None or narrower < limit.value):
        limit = EffectiveLimit(narrower, "key")
    return limit


def as_mapping(limits: EffectiveLimits) -> MappingProxyType[str, EffectiveLimit | None]:
    """Dimension to limit, in the order of `LIMIT_NAMES`."""
    return MappingProxyType({name: getattr(limits, name) for name in LIMIT_NAMES})
