"""From an operator's settings and a model to the core's sizes."""

import socket

import pytest

from engine.server.main import _words, core_config
from engine.settings import EngineSettings


def sizes(settings, context_length=2048, num_blocks=100):
    return core_config(
        settings,
        context_length=context_length,
        num_blocks=num_blocks,
        model_digest=b"m",
        windows=(None, 64),
    )


def test_settings_reach_the_core():
    config = sizes(
        EngineSettings(
            block_size=8,
            max_num_seqs=3,
            max_num_batched_tokens=32,
            reserve=0.1,
            prefix_cache=False,
            long_prefill_token_threshold=16,
            max_waiting=7,
            max_waiting_tokens=5000,
        )
    )
    assert (config.block_size, config.max_num_seqs, config.max_num_batched_tokens) == (8, 3, 32)
    assert (config.reserve_blocks, config.prefix_cache) == (10, False)
    assert config.windows == (None, 64)
    assert (config.long_prefill_token_threshold, config.max_waiting_requests) == (16, 7)
    assert config.max_waiting_tokens == 5000


@pytest.mark.parametrize(("governor", "highest"), [(True, 0.10), (False, 0.05)])
def test_the_governor_may_raise_the_reserve_or_not(governor, highest):
    config = sizes(EngineSettings(reserve=0.05, thrash_governor=governor))
    assert (config.reserve, config.max_reserve) == (0.05, highest)


def test_a_queue_too_small_for_the_longest_prompt_is_refused():
    with pytest.raises(ValueError, match="max_waiting_tokens"):
        sizes(EngineSettings(max_waiting_tokens=100))


@pytest.mark.parametrize(("wanted", "got"), [(None, 2048), (512, 512), (9999, 2048)])
def test_the_model_bounds_the_context(wanted, got):
    assert sizes(EngineSettings(max_model_len=wanted)).max_model_len == got


def test_an_address_in_words():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        assert _words(listener.getsockname()) == f"http://127.0.0.1:{listener.getsockname()[1]}"
    assert _words("/run/e.sock") == "unix:/run/e.sock"
    assert _words(("::1", 80, 0, 0)) == "http://[::1]:80"
