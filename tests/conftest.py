"""Fixtures every package may use."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model's GGUF: `EVENHAND_TEST_MODEL`, else pulled once into the model cache."""
    given = os.environ.get("EVENHAND_TEST_MODEL")
    if given:
        return Path(given)
    from engine.model.store import pull

    return pull("smollm2-135m")
