"""Engine settings come from the environment, closed."""

import pytest
from pydantic import ValidationError

from engine.settings import EngineSettings, load_engine_settings


def test_defaults_suit_a_laptop():
    settings = load_engine_settings()
    assert (settings.max_num_seqs, settings.max_num_batched_tokens) == (16, 512)
    assert settings.kv_memory is None
    assert (settings.device, settings.dtype) == ("cpu", "auto")
    assert settings.thrash_governor
    assert settings.max_waiting_tokens == 1 << 22
    assert settings.block_size == 16


def test_environment_names_are_read(monkeypatch):
    monkeypatch.setenv("EVENHAND_ENGINE__KV_MEMORY", "64MiB")
    monkeypatch.setenv("EVENHAND_ENGINE__PREFIX_CACHE", "false")
    monkeypatch.setenv("EVENHAND_ENGINE__RESERVE", "0.1")
    monkeypatch.setenv("EVENHAND_ENGINE__THRASH_GOVERNOR", "false")
    monkeypatch.setenv("EVENHAND_ENGINE__MAX_WAITING_TOKENS", "9000")
    monkeypatch.setenv("EVENHAND_ENGINE__DEVICE", "cuda")
    monkeypatch.setenv("EVENHAND_ENGINE__DTYPE", "float16")
    settings = load_engine_settings()
    assert settings.kv_memory == 64 << 20
    assert (settings.device, settings.dtype) == ("cuda", "float16")
    assert settings.prefix_cache is False
    assert settings.reserve == 0.1
    assert not settings.thrash_governor
    assert settings.max_waiting_tokens == 9000


def test_unknown_name_is_an_error_that_names_it(monkeypatch):
    monkeypatch.setenv("EVENHAND_ENGINE__MAX_NUM_SEQ", "4")
    with pytest.raises(ValidationError, match="max_num_seq"):
        load_engine_settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_NUM_SEQS", "0"),
        ("RESERVE", "0.6"),
        ("BLOCK_SIZE", "-1"),
        ("NUM_KV_BLOCKS", "many"),
        ("KV_MEMORY", "0"),
        ("DEVICE", "tpu"),
        ("DTYPE", "int8"),
        ("MAX_WAITING_TOKENS", "0"),
    ],
)
def test_values_out_of_range_are_refused(monkeypatch, name, value):
    monkeypatch.setenv(f"EVENHAND_ENGINE__{name}", value)
    with pytest.raises(ValidationError):
        load_engine_settings()


def test_settings_cannot_change_after_start():
    with pytest.raises(ValidationError):
        EngineSettings().max_num_seqs = 3


def test_a_step_must_have_room_for_every_sequence():
    with pytest.raises(ValidationError, match="max_num_batched_tokens"):
        EngineSettings(max_num_seqs=16, max_num_batched_tokens=8)
