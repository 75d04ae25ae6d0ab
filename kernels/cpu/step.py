"""Programs for the native step: the operations of a forward pass, made once, run in one call.

The dataclasses mirror `native/step.h`; `kernels.h` tells what each operation computes. They are
done in order, each by the whole team. Buffers and operations may be shared by several programs.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kernels.cpu import structs
from kernels.cpu.library import native
from kernels.cpu.packed import PackedMatrix
from kernels.cpu.structs import Array, address
from kernels.cpu.team import Team
from kernels.layout import BatchLayout, Ints, PagedLayer

_ERRORS: Final = {  # enum evh_error
    1: "an operation's parts do not fit together",
    2: "the batch has more tokens than the buffers have room for",
    3: "the batch's rows, positions and tokens do not agree",
    4: "the batch has a token that the model has no embedding for",
    5: "the batch has a position whose page does not exist",
    6: "the team's threads are in another process",
}


class Buffer:
    """`values` [max_tokens, width] fp32, and room for their int8 form if they are `quantized`."""

    def __init__(self, max_tokens: int, width: int, *, quantized: bool = False) -> None:
        self.width = width
        self.values = np.empty((max_tokens, width), np.float32)
        self.struct = structs.Buffer(address(self.values), None, None, None, width, max_tokens)
        if quantized:
            self._codes = np.empty((max_tokens, width), np.int8)
            self._scales, self._sums = np.empty((2, max_tokens, width // 32), np.float32)
            self.struct.codes = address(self._codes)
            self.struct.scales = address(self._scales)
            self.struct.sums = address(self._sums)

    def take(self, values: Array) -> None:
        """Use another array for the values, [any number of tokens, width], from now on."""
        if values.shape[1:] != (self.width,):
            raise ValueError(f"an array {values.shape} for a buffer of width {self.width}")
        self.struct.values = address(values, np.float32)
        self.struct.max_tokens = len(values)
        self.values = values


class Pages:
    """Keys [pages, G, D, S] and values [pages, G, S, D] of one layer, and how it is attended to."""

    def __init__(self, keys: Array, values: Array, layer: PagedLayer) -> None:
        self._arrays = keys, values
        self.count, num_kv_heads, head_dim, page_size = keys.shape
        self.struct = structs.Pages(
            address(keys, np.float32),
            address(values, np.float32),
            num_kv_heads,
            head_dim,
            page_size,
            layer.group,
            layer.window or 0,
        )


@dataclass(frozen=True, slots=True)
class Embed:
    """Rows of a table, by token, times a scale."""

    table: PackedMatrix
    out: Buffer
    scale: float

    def struct(self) -> structs.Op:
        """As the step sees it."""
        op = structs.EmbedOp(_at(self.table.struct), _at(self.out.struct), self.scale)
        return structs.Op(0, structs.AnyOp(embed=op))


@dataclass(frozen=True, slots=True)
class Angles:
    """Cosines and sines [tokens, half] of positions times frequencies [half], times a scale."""

    frequencies: Array
    scale: float
    cos: Buffer
    sin: Buffer

    def struct(self) -> structs.Op:
        """As the step sees it."""
        frequencies = address(self.frequencies, np.float32)
        op = structs.AnglesOp(frequencies, _at(self.cos.struct), _at(self.sin.struct), self.scale)
        return structs.Op(1, structs.AnyOp(angles=op))


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS norm times a weight [width], written to `out` or added to it."""

    input: Buffer
    weight: Array
    eps: float
    out: Buffer
    add: bool = False

    def struct(self) -> structs.Op:
        """As the step sees it."""
        weight = address(self.weight, np.float32)
        op = structs.NormOp(
            weight, _at(self.input.struct), _at(self.out.struct), self.eps, self.add
        )
        return structs.Op(2, structs.AnyOp(norm=op))


@dataclass(frozen=True, slots=True)
class Quantize:
    """The int8 form of a buffer's values, into the buffer."""

    buffer: Buffer

    def struct(self) -> structs.Op:
        """As the step sees it."""
        op = structs.QuantizeOp(_at(self.buffer.struct))
        return structs.Op(3, structs.AnyOp(quantize=op))


@dataclass(frozen=True, slots=True)
class Linear:
    """Up to three matrices that share an input; their outputs lie side by side in `out`."""

    input: Buffer
    matrices: Sequence[PackedMatrix]
    out: Buffer
    add: bool = False

    def struct(self) -> structs.Op:
        """As the step sees it."""
        op = structs.LinearOp(_at(self.input.struct), _at(self.out.struct))
        column = 0
        for part, matrix in enumerate(self.matrices):
            op.matrices[part] = _at(matrix.struct)
            op.columns[part] = column
            column += matrix.struct.rows
        op.parts, op.add = len(self.matrices), self.add
        return structs.Op(4, structs.AnyOp(linear=op))


@dataclass(frozen=True, slots=True)
class Heads:
    """Norm of query and key heads where a weight is given, rotation, and keys and values stored."""

    qkv: Buffer
    num_heads: int
    query_norm: Array | None
    key_norm: Array | None
    eps: float
    angles: Angles
    pages: Pages

    def struct(self) -> structs.Op:
        """As the step sees it."""
        op = structs.HeadsOp(
            _at(self.qkv.struct),
            _at(self.angles.cos.struct),
            _at(self.angles.sin.struct),
            address(self.query_norm, np.float32),
            address(self.key_norm, np.float32),
            _at(self.pages.struct),
            self.pages.count,
            self.num_heads,
            self.eps,
        )
        return structs.Op(5, structs.AnyOp(heads=op))


@dataclass(frozen=True, slots=True)
class Attention:
    """Causal attention of the rotated queries over the pages, scores times a scale."""

    qkv: Buffer
    num_heads: int
    scale: float
    pages: Pages
    out: Buffer

    def struct(self) -> structs.Op:
        """As the step sees it."""
        op = structs.AttentionOp(
            _at(self.qkv.struct),
            _at(self.out.struct),
            _at(self.pages.struct),
            self.pages.count,
            self.num_heads,
            self.scale,
        )
        return structs.Op(6, structs.AnyOp(attention=op))


@dataclass(frozen=True, slots=True)
class Gate:
    """activation(first half of the input) * second half; "silu" or "gelu_tanh"."""

    input: Buffer
    activation: str
    out: Buffer

    def struct(self) -> structs.Op:
        """As the step sees it."""
        activation = structs.ACTIVATIONS[self.activation]
        op = structs.GateOp(_at(self.input.struct), _at(self.out.struct), activation)
        return structs.Op(7, structs.AnyOp(gate=op))


Op = Embed | Angles | Norm | Quantize | Linear | Heads | Attention | Gate


class Program:
    """Operations for a team, over buffers of `max_tokens` and batches of `num_groups` tables."""

    def __init__(self, team: Team, ops: Sequence[Op], max_tokens: int, num_groups: int = 0) -> None:
        self._team = team
        self._ops = tuple(ops)  # they own what the structs point to
        self._num_groups = num_groups
        self._structs = (structs.Op * len(ops))(*(op.struct() for op in ops))
        floats = native().evh_step_scratch(self._structs, len(ops), max_tokens)
        self._scratch = np.empty((team.threads, floats), np.float32)
        self._program = structs.Program(
            self._structs, len(ops), address(self._scratch), floats, num_groups
        )

    def run(self, token_ids: Ints, layout: BatchLayout) -> None:
        """Compute a batch. Raises ValueError, before anything is computed, for one that cannot be.

        That is: one larger than the buffers, or with arrays that do not agree with each other, or
        with a token or page that does not exist.
        """
        rows = len(layout.first_positions)
        wanted = {
            "positions": (layout.positions, (len(token_ids),)),
            "rows": (layout.rows, (len(token_ids),)),
            "row_starts": (layout.row_starts, (rows + 1,)),
            "first_positions": (layout.first_positions, (rows,)),
        }
        for name, (array, shape) in wanted.items():
            if array.shape != shape:
                raise ValueError(f"{name} of a batch has the shape {array.shape}, not {shape}")
        if layout.block_tables.shape[:2] != (self._num_groups, rows):
            raise ValueError(f"a batch needs {self._num_groups} block tables for each row")
        arrays = (token_ids, *(array for array, _ in wanted.values()), layout.block_tables)
        pointers = [address(array, np.int32) for array in arrays]
        self._run(structs.Batch(*pointers, len(token_ids), rows, layout.block_tables.shape[2]))

    def run_rowless(self, num_tokens: int) -> None:
        """Compute what needs neither tokens nor positions, over the buffers' first `num_tokens`."""
        self._run(structs.Batch(num_tokens=num_tokens))

    def _run(self, batch: structs.Batch) -> None:
        error = native().evh_step(
            self._team.handle, ctypes.byref(self._program), ctypes.byref(batch)
        )
        if error:
            raise ValueError(_ERRORS[error])


def _at(struct: ctypes.Structure) -> "ctypes._Pointer[ctypes.Structure]":
    return ctypes.pointer(struct)
