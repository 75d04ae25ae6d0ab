"""The structs and functions of the native kernels' headers, as ctypes sees them.

Field for field and argument for argument what `native/*.h` declares; their comments say what each
means. Pointers are addresses: whoever makes a struct keeps the arrays it points to.
"""

import ctypes
from ctypes import POINTER, Structure, Union, c_float, c_int32, c_int64, c_void_p
from typing import Any, ClassVar

import numpy as np

Array = np.ndarray[Any, Any]

PANEL = 16  # EVH_PANEL
TILE = 16  # EVH_TILE

F32, F16, BF16, W4, W8 = range(5)  # enum evh_format
MAX_PARTS = 3  # EVH_MAX_PARTS
JOB_DONE = -1  # EVH_JOB_DONE
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


class Buffer(Structure):
    """evh_buffer."""

    _fields_: ClassVar = [
        ("values", c_void_p),
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("sums", c_void_p),
        ("width", c_int64),
        ("max_tokens", c_int64),
    ]


_matrix, _activations = POINTER(Matrix), POINTER(Activations)
_batch, _pages, _buffer = POINTER(Batch), POINTER(Pages), POINTER(Buffer)


class EmbedOp(Structure):
    """evh_embed_op."""

    _fields_: ClassVar = [("table", _matrix), ("out", _buffer), ("scale", c_float)]


class AnglesOp(Structure):
    """evh_angles_op."""

    _fields_: ClassVar = [
        ("frequencies", c_void_p),
        ("cos", _buffer),
        ("sin", _buffer),
        ("scale", c_float),
    ]


class NormOp(Structure):
    """evh_norm_op."""

    _fields_: ClassVar = [
        ("weight", c_void_p),
        ("input", _buffer),
        ("out", _buffer),
        ("eps", c_float),
        ("add", c_int32),
    ]


class QuantizeOp(Structure):
    """evh_quantize_op."""

    _fields_: ClassVar = [("buffer", _buffer)]


class LinearOp(Structure):
    """evh_linear_op."""

    _fields_: ClassVar = [
        ("input", _buffer),
        ("out", _buffer),
        ("matrices", _matrix * MAX_PARTS),
        ("columns", c_int64 * MAX_PARTS),
        ("parts", c_int32),
        ("add", c_int32),
    ]


class HeadsOp(Structure):
    """evh_heads_op."""

    _fields_: ClassVar = [
        ("qkv", _buffer),
        ("cos", _buffer),
        ("sin", _buffer),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("pages", _pages),
        ("num_pages", c_int64),
        ("num_heads", c_int64),
        ("eps", c_float),
    ]


class AttentionOp(Structure):
    """evh_attention_op."""

    _fields_: ClassVar = [
        ("qkv", _buffer),
        ("out", _buffer),
        ("pages", _pages),
        ("num_pages", c_int64),
        ("num_heads", c_int64),
        ("scale", c_float),
    ]


class GateOp(Structure):
    """evh_gate_op."""

    _fields_: ClassVar = [("input", _buffer), ("out", _buffer), ("activation", c_int32)]


class AnyOp(Union):
    """The union inside evh_op, its members in the order of enum evh_op_kind."""

    _fields_: ClassVar = [
        ("embed", EmbedOp),
        ("angles", AnglesOp),
        ("norm", NormOp),
        ("quantize", QuantizeOp),
        ("linear", LinearOp),
        ("heads", HeadsOp),
        ("attention", AttentionOp),
        ("gate", GateOp),
    ]


class Op(Structure):
    """evh_op."""

    _anonymous_: ClassVar = ["any"]
    _fields_: ClassVar = [("kind", c_int32), ("any", AnyOp)]


class Program(Structure):
    """evh_program."""

    _fields_: ClassVar = [
        ("ops", POINTER(Op)),
        ("num_ops", c_int64),
        ("scratch", c_void_p),
        ("scratch_floats", c_int64),
        ("num_groups", c_int64),
    ]


# The two functions of an evh_job.
Begin = ctypes.CFUNCTYPE(c_int64, c_void_p, c_int64)
Work = ctypes.CFUNCTYPE(None, c_void_p, c_int64, c_int64, c_int32)


class Job(Structure):
    """evh_job."""

    _fields_: ClassVar = [("begin", Begin), ("work", Work), ("argument", c_void_p)]


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
    "evh_panel_bytes": (c_int64, (_matrix,)),
    "evh_fits_half": (c_int32, (c_void_p, c_int64)),
    "evh_pack_floats": (None, (_matrix, c_void_p, c_void_p, *_items)),
    "evh_pack_codes": (None, (_matrix, *(c_void_p,) * 4, *_items)),
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
    "evh_team_create": (c_void_p, (c_int32, c_int32)),
    "evh_team_destroy": (None, (c_void_p,)),
    "evh_team_is_here": (c_int32, (c_void_p,)),
    "evh_team_threads": (c_int32, (c_void_p,)),
    "evh_team_run": (None, (c_void_p, POINTER(Job))),
    "evh_step_scratch": (c_int64, (POINTER(Op), c_int64, c_int64)),
    "evh_step": (c_int32, (c_void_p, POINTER(Program), _batch)),
}


def declare(library: ctypes.CDLL) -> None:
    """Give every function of the library its types, so that a wrong argument is a Python error."""
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
