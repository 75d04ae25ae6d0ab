"""Triton's decorator with types, and how kernels are compiled: at a launch, or ahead of time.

Sizes that belong to a model are constants of a kernel (`tl.constexpr`). What changes from step to
step is a plain argument named in `changing`: else Triton compiles one more variant when such a
number happens to be 1 or a multiple of 16, in the middle of somebody's request.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton

NUMBER_TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
"""Triton's names for the types of numbers that kernels are made for."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The constants a kernel is compiled for, and the shape of its programs."""

    constants: Mapping[str, Any]
    num_warps: int
    num_stages: int

    def keywords(self) -> dict[str, Any]:
        """What a launch is given besides the arguments that change."""
        return {**self.constants, "num_warps": self.num_warps, "num_stages": self.num_stages}


@dataclass(frozen=True, slots=True)
class Signature:
    """One way in which a kernel is launched: enough to compile it where there is no GPU.

    `types` names the type of every argument that is no constant, as Triton does: "*fp16" points to
    fp16. The pointers in `aligned` are multiples of 16 bytes, as torch's allocations are, and the
    compiler is told so. A kernel that `may_spill` may hold more than fits into registers.
    """

    name: str
    kernel: Any
    types: Mapping[str, str]
    launch: Launch
    aligned: Sequence[str] = ()
    may_spill: bool = False


def kernel(
    *, changing: Sequence[str] = (), unaligned: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Any]:
    """Compile a function that is launched on a grid.

    `changing` are numbers not to specialise on, `unaligned` pointers that may be any address.
    """

    def decorate(function: Callable[..., None]) -> Any:
        return triton.jit(
            function,
            do_not_specialize=[*changing],
            do_not_specialize_on_alignment=[*unaligned],
        )

    return decorate


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a function that kernels call."""
    return triton.jit(function)


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU (`TRITON_INTERPRET=1`)."""
    return bool(triton.knobs.runtime.interpret)
