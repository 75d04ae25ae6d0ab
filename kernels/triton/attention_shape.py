"""What attention is compiled for and how it is launched: a fixed table, nothing is tried out.

The table follows from what a program must hold. Decoding: the query heads of one key/value head
padded to 16 rows, and as many bytes of keys and values in flight as keep memory busy from few
programs a multiprocessor. Prefill: 128 rows of products where their sums fit into the registers of
8 warps, fewer where not. Shared memory stays under 99 KiB, which all GPUs from sm_80 on give a
program. A tile is smaller for fp32, whose products are taken without tensor cores.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton.language as tl

from kernels.api import KvPages
from kernels.triton.jit import NUMBER_TYPES, Launch, interpreted

LOG2_E = 1.4426950408889634
NO_WINDOW = 2**31 - 1
"""The window of a layer that attends to every earlier position."""

MAX_SPLITS = 64
_PROGRAMS_PER_MULTIPROCESSOR = 2
_TILES_PER_SPLIT = 2

# Padded head size: positions in a tile, warps, stages; for types of 2 bytes, and of 4.
_DECODE = {
    2: {16: (64, 4, 3), 32: (64, 4, 3), 64: (64, 4, 3), 128: (64, 4, 3), 256: (32, 8, 3)},
    4: {16: (32, 4, 2), 32: (32, 4, 2), 64: (32, 4, 2), 128: (16, 4, 3), 256: (16, 8, 2)},
}
# Padded head size: rows of products, positions in a tile, warps, stages.
_PREFILL = {
    2: {
        16: (128, 64, 8, 3),
        32: (128, 64, 8, 3),
        64: (128, 64, 8, 3),
        128: (128, 32, 8, 3),
        256: (64, 32, 8, 3),
    },
    4: {
        16: (64, 32, 8, 2),
        32: (64, 32, 8, 2),
        64: (64, 32, 8, 2),
        128: (32, 32, 8, 2),
        256: (32, 16, 8, 2),
    },
}
_PRODUCTS = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
}


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What of a model and its pages attention is compiled for.

    Raises ValueError for a shape that the kernels do not take.
    """

    dtype: torch.dtype
    heads: int
    kv_heads: int
    head_dim: int
    page_size: int

    def __post_init__(self) -> None:
        if self.dtype not in NUMBER_TYPES:
            raise ValueError(f"dtype must be float16, bfloat16 or float32, not {self.dtype}")
        if self.heads % self.kv_heads or self.heads // self.kv_heads > 32:
            raise ValueError(
                f"heads must be 1 to 32 times kv_heads, not {self.heads} to {self.kv_heads}"
            )
        if self.head_dim % 8 or not 8 <= self.head_dim <= 256:
            raise ValueError(f"head_dim must be a multiple of 8 up to 256, not {self.head_dim}")
        if self.page_size not in {8, 16, 32, 64}:
            raise ValueError(f"page_size must be 8, 16, 32 or 64, not {self.page_size}")

    @classmethod
    def of(cls, qkv: torch.Tensor, pages: KvPages) -> "AttentionShape":
        """The shape of a batch over pages of the same type; both must be dense."""
        if qkv.dtype != pages.keys.dtype:
            raise ValueError(f"qkv is {qkv.dtype}, the pages are {pages.keys.dtype}")
        if not qkv.is_contiguous():
            raise ValueError("qkv must be contiguous")
        heads = qkv.shape[1] // pages.head_dim - 2 * pages.num_kv_heads
        return cls(qkv.dtype, heads, pages.num_kv_heads, pages.head_dim, pages.page_size)

    @property
    def padded_dim(self) -> int:
        """The head size as products take it: a power of two, at least 16."""
        return max(16, 1 << (self.head_dim - 1).bit_length())

    @property
    def type_name(self) -> str:
        """Triton's name of the type."""
        return NUMBER_TYPES[self.dtype]

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.type_name} {self.heads}/{self.kv_heads}x{self.head_dim} S{self.page_size}"

    def constants(self) -> dict[str, Any]:
        """The constants that both attention kernels share."""
        products = _PRODUCTS[self.dtype]
        if interpreted() and self.dtype == torch.bfloat16:
            products = tl.float32  # the interpreter multiplies bf16 as if its bits were integers
        return {
            "H": self.heads,
            "G": self.kv_heads,
            "D": self.head_dim,
            "D_PAD": self.padded_dim,
            "S": self.page_size,
            "PRODUCTS": products,
            "PRECISION": "ieee",
        }


@cache
def decode_launch(shape: AttentionShape) -> Launch:
    """How `decode_attention_kernel` is launched."""
    tile, warps, stages = _DECODE[shape.dtype.itemsize][shape.padded_dim]
    rows = 32 if shape.heads // shape.kv_heads > 16 else 16
    return Launch({**shape.constants(), "M": rows, "TILE": tile}, warps, stages)


@cache
def prefill_launch(shape: AttentionShape) -> Launch:
    """How `prefill_attention_kernel` is launched."""
    rows, tile, warps, stages = _PREFILL[shape.dtype.itemsize][shape.padded_dim]
    return Launch({**shape.constants(), "M": rows, "TILE": tile}, warps, stages)


def splits(programs: int, context: int, tile: int, multiprocessors: int) -> int:
    """Into how many runs of tiles a context is split, so that `programs` becomes enough of them.

    Enough is two programs a multiprocessor; a run is at least two tiles long.
    """
    wanted = -(-_PROGRAMS_PER_MULTIPROCESSOR * multiprocessors // programs)
    return max(1, min(wanted, context // (_TILES_PER_SPLIT * tile), MAX_SPLITS))


@cache
def multiprocessors(device: torch.device) -> int:
    """How many programs a device runs at once, at least; the interpreter's runs one."""
    if device.type == "cpu":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


TYPICAL_SHAPES = (
    AttentionShape(torch.float16, 32, 8, 128, 16),  # Llama 3 8B, Mistral 7B, Qwen 3 8B
    AttentionShape(torch.bfloat16, 28, 4, 128, 32),  # Qwen 2.5 7B
    AttentionShape(torch.bfloat16, 14, 2, 64, 16),  # Qwen 2.5 0.5B
    AttentionShape(torch.float16, 9, 3, 64, 32),  # SmolLM2 135M
    AttentionShape(torch.bfloat16, 4, 1, 256, 16),  # Gemma 3 270M and 1B
    AttentionShape(torch.float16, 16, 8, 256, 32),  # Gemma 3 12B
    AttentionShape(torch.float16, 32, 32, 80, 16),  # every query head with keys of its own
    AttentionShape(torch.float32, 9, 3, 64, 16),
)
"""Shapes of known models and of their like, for ahead-of-time compilation."""

ONE_SHAPE_A_HEAD_SIZE = tuple({shape.padded_dim: shape for shape in TYPICAL_SHAPES[:-1]}.values())
"""For kernels of which the other sizes change little."""
