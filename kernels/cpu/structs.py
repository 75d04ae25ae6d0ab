"""The structs and functions of the native kernels' headers, as ctypes sees them.

Field for field and argument for argument what `native/*.h` declares; their comments say what each
means. Pointers are addresses: whoever makes a struct keeps the arrays it points to.
"""

import ctypes
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from typing import Any, ClassVar

import numpy as np

Array = np.ndarray[Any, Any]

PANEL = 16  # EVH_PANEL
TILE = 16  # EVH_TILE

F32, F16, BF16, W4, W8 = range(5)  # enum evh_format
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}  # enum evh_activation


def address(array: Array | None, dtype: type[np.generic] | None = None) -> int | None:
    """Where a contiguous array begins, None for none; ValueError for any other array."""
    if array is None:
        return None
    if not array.flags.c_contiguous or (dtype is not None and array.dtype != dtype):
        raise ValueError(f"the kernels need a contiguous array of {dtype}, not {array.dtype}")
    return array.ctypes.data


class Matrix(Structure):
    """evh_matrix."""

    _fields_: ClassVar = [
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("rows", c_int64),
        ("columns", c_int64),
        ("panel_bytes", c_int64),
        ("format", c_int32),
        ("block", c_int32),
        ("half_scales", c_int32),
        ("has_minimum", c_int32),
        ("int8", c_int32),
    ]


class Activations(Structure):
    """evh_activations."""

    _fields_: ClassVar = [
        ("values", c_void_p),
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("sums", c_void_p),
        ("tokens", c_int64),
        ("columns", c_int64),
    ]


class Batch(Structure):
    """evh_batch."""

    _fields_: ClassVar = [
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("rows", c_void_p),
        ("row_starts", c_void_p),
        ("first_positions", c_void_p),
        ("block_tables", c_void_p),
        ("num_tokens", c_int64),
        ("num_rows", c_int64),
        ("table_width", c_int64),
    ]


class Pages(Structure):
    """evh_pages."""

    _fields_: ClassVar = [
        ("keys", c_void_p),
        ("values", c_void_p),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("page_size", c_int64),
        ("group", c_int64),
        ("window", c_int64),
    ]


_matrix, _activations = POINTER(Matrix), POINTER(Activations)
_batch, _pages = POINTER(Batch), POINTER(Pages)
_items = (c_int64, c_int64)  # first, past

# Name: (result, arguments).
FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "evh_source_digest": (ctypes.c_char_p, ()),
    "evh_runs_avx2": (c_int32, ()),
    "evh_embed": (None, (_matrix, c_void_p, c_float, c_void_p, *_items)),
    "evh_rms_norm": (
        None,
        (c_void_p, c_void_p, c_float, c_int64, c_int32, c_void_p, *_items),
    ),
    "evh_quantize": (None, (c_void_p, c_int64, *(c_void_p,) * 3, *_items)),
    "evh_linear": (
        None,
        (_matrix, _activations, c_void_p, c_int64, c_int32, c_void_p, *_items),
    ),
    "evh_linear_scratch": (c_int64, (c_int64,)),
    "evh_angles": (None, (c_void_p, c_void_p, c_float, c_int64, c_void_p, c_void_p, *_items)),
    "evh_heads": (
        None,
        (c_void_p, c_int64, *(c_void_p,) * 2, c_float, *(c_void_p,) * 2, _pages, _batch, *_items),
    ),
    "evh_attention_items": (c_int64, (_batch, c_int64)),
    "evh_attention_scratch": (c_int64, (c_int64, _pages)),
    "evh_attention": (
        None,
        (c_void_p, c_int64, c_float, _pages, _batch, c_void_p, c_void_p, *_items),
    ),
    "evh_gate": (None, (c_void_p, c_int64, c_int32, c_void_p, *_items)),
}


def declare(library: ctypes.CDLL) -> None:
    """Give every function of the library its types, so that a wrong argument is a Python error."""
    for name, (result, arguments) in FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:  # not written yet
            continue
        function.restype = result
        function.argtypes = arguments
