"""Every Triton kernel in the configurations that stand for all: what is compiled ahead of time."""

from kernels.triton import (
    copy_pages,
    decode_attention,
    gated,
    prefill_attention,
    rms_norm,
    rotary,
    sampling,
    store_kv,
)
from kernels.triton.jit import Signature

_MODULES = (
    store_kv,
    decode_attention,
    prefill_attention,
    copy_pages,
    rms_norm,
    rotary,
    gated,
    sampling,
)


def signatures() -> list[Signature]:
    """One list over all kernels; names are unique."""
    return [signature for module in _MODULES for signature in module.signatures()]
