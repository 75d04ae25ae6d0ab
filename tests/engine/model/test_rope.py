"""Rotary frequencies against transformers' own functions, for any parameters."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.model.config_json import config_from_json
from engine.model.rope import Divisors, Linear, Rope

CONTEXT = 131_072

factors = st.floats(1, 64)
contexts = st.sampled_from([64, 2048, 8192, 32768])
SCALINGS = st.one_of(
    st.just({"rope_type": "default"}),
    st.builds(lambda factor: {"rope_type": "linear", "factor": factor}, factors),
    st.builds(
        lambda factor, low, above, context: {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": low + above,
            "original_max_position_embeddings": context,
        },
        factors,
        st.floats(0.5, 4),
        st.floats(0.5, 8),
        contexts,
    ),
    st.builds(
        lambda factor, context, options: {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": context,
            **options,
        },
        factors,
        contexts,
        st.fixed_dictionaries(
            {},
            optional={
                "attention_factor": st.floats(0.5, 2),
                "beta_fast": st.floats(8, 64),
                "beta_slow": st.floats(0.5, 4),
                "mscale": st.floats(0.5, 2),
                "mscale_all_dim": st.floats(0.5, 2),
                "truncate": st.booleans(),
            },
        ),
    ),
)


@given(
    st.sampled_from([16, 20, 64, 80, 96, 128, 256]),
    st.sampled_from([1e3, 1e4, 160000.0, 5e5, 1e6, 1e7]),
    SCALINGS,
)
def test_as_transformers_computes_them(tmp_path_factory, head_dim, theta, scaling):
    values = {
        "hidden_size": 4 * head_dim,
        "num_attention_heads": 4,
        "head_dim": head_dim,
        "max_position_embeddings": CONTEXT,
        "rope_parameters": {"rope_theta": theta, **scaling},
    }
    config = LlamaConfig(**values)
    frequencies, scale = ROPE_INIT_FUNCTIONS.get(
        scaling["rope_type"], LlamaRotaryEmbedding.compute_default_rope_parameters
    )(config)
    sizes = {"model_type": "llama", "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 8}
    (ours,) = config_from_json(tmp_path_factory.getbasetemp(), {**values, **sizes}).ropes
    assert ours.frequencies().dtype == np.float32
    # torch's power function and numpy's may differ by one unit in the last place, which becomes
    # several where frequencies are blended; from the same powers on everything is the same.
    periods = (theta ** (torch.arange(0, head_dim, 2).float() / head_dim)).numpy()
    plain = Rope(head_dim, theta).frequencies()
    np.testing.assert_array_max_ulp(plain, np.float32(1) / periods, maxulp=2)
    np.testing.assert_array_max_ulp(ours.scaling.apply(periods), frequencies.numpy(), maxulp=1)
    assert ours.scale == pytest.approx(scale, rel=1e-12)


def test_divisors_say_the_same_as_what_they_were_made_of():
    linear = Rope(64, 1e4, Linear(4.0))
    np.testing.assert_array_equal(
        Rope(64, 1e4, Divisors((4.0,) * 32)).frequencies(), linear.frequencies()
    )
