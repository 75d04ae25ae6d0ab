"""Effective limits: which value is in force, and who set it."""

from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenancy.entities import DEFAULT_PLAN_LIMITS, EffectiveLimit, Limits
from tenancy.errors import InvalidValueError
from tenancy.quotas import MAX_LIMIT, as_mapping, checked, effective

NAMES = [field.name for field in fields(Limits)]
values = st.none() | st.integers(1, 5)
levels = st.builds(Limits, **dict.fromkeys(NAMES, values))
plans = st.builds(Limits, **dict.fromkeys(NAMES, st.integers(1, 5)) | {"rpm": values})


@settings(deadline=None)
@given(plan=plans, tenant=levels, key=st.none() | levels)
def test_a_tenant_replaces_its_plan_and_a_key_tightens(plan, tenant, key):
    found = as_mapping(effective(plan, tenant, key))
    for name in NAMES:
        outer = getattr(tenant, name) or getattr(plan, name)
        stated = [value for value in (outer, getattr(key or Limits(), name)) if value is not None]
        if not stated:
            assert found[name] is None
            continue
        assert found[name].value == min(stated)
        source = {"plan": plan, "tenant": tenant, "key": key}[found[name].level]
        assert getattr(source, name) == found[name].value


def test_default_plan_alone():
    found = effective(DEFAULT_PLAN_LIMITS, Limits())
    assert found.rpm == EffectiveLimit(600, "plan")
    assert found.uncached_tpm is None
    assert found.max_output == EffectiveLimit(512, "plan")


def test_a_tie_names_the_outer_level():
    same = Limits(concurrency=4)
    assert effective(DEFAULT_PLAN_LIMITS, Limits(), same).concurrency == EffectiveLimit(4, "plan")
    assert effective(DEFAULT_PLAN_LIMITS, same, same).concurrency == EffectiveLimit(4, "tenant")


def test_a_tenant_may_have_more_than_its_plan_gives():
    generous = Limits(rpm=100_000)
    found = effective(DEFAULT_PLAN_LIMITS, generous, Limits(rpm=200_000))
    assert found.rpm == EffectiveLimit(100_000, "tenant")


def test_a_looser_key_changes_nothing():
    loose = Limits(rpm=601, concurrency=100)
    assert effective(DEFAULT_PLAN_LIMITS, Limits(), loose) == effective(
        DEFAULT_PLAN_LIMITS, Limits()
    )


@pytest.mark.parametrize("name", ["concurrency", "max_queued", "max_prompt", "max_output"])
def test_a_plan_without_scheduling_limits_is_refused(name):
    with pytest.raises(ValueError, match=name):
        effective(replace(DEFAULT_PLAN_LIMITS, **{name: None}), Limits(**{name: 1}))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, -1, MAX_LIMIT + 1, 2**63])
def test_limits_out_of_range_are_refused(name, value):
    with pytest.raises(InvalidValueError, match=name):
        checked(Limits(**{name: value}))


def test_limits_in_range_pass():
    limits = Limits(rpm=1, tpm=MAX_LIMIT)
    assert checked(limits) is limits
    assert asdict(checked(DEFAULT_PLAN_LIMITS)) == asdict(DEFAULT_PLAN_LIMITS)
