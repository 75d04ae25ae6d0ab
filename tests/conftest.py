"""Fixtures every package may use."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from engine.server.waiting import yield_while_waiting

# As in production, and before any test imports torch: with threads that spin while they wait, the
# tests of kernels and models took many times as long on a busy machine.
yield_while_waiting()

# Triton reads it when kernels are defined: they run in its interpreter, on the CPU, unless whoever
# has a GPU says 0.
os.environ.setdefault("TRITON_INTERPRET", "1")

# How long an example takes says something about the machine, not about the product.
settings.register_profile(
    "evenhand", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("evenhand")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model's GGUF: `EVENHAND_TEST_MODEL`, else pulled once into the model cache."""
    given = os.environ.get("EVENHAND_TEST_MODEL")
    if given:
        return Path(given)
    from engine.model.store import pull

    return pull("smollm2-135m")
