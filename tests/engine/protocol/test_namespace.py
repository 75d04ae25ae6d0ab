"""A namespace is 43 base64url characters from the first to the very last."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol.namespace import is_namespace


@given(st.binary(min_size=32, max_size=32))
def test_every_32_bytes_have_a_namespace(raw):
    assert is_namespace(base64.urlsafe_b64encode(raw).rstrip(b"=").decode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a" * 42,
        "a" * 44,
        "a" * 43 + "\n",
        "a" * 42 + "=",
        "a" * 42 + "+",
        "é" * 43,
        "٣" * 43,
        None,
        43,
    ],
)
def test_anything_else_is_none(text):
    assert not is_namespace(text)
