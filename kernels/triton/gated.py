"""Gated activations (Shazeer 2020): `act(gate) * up`, computed in fp32.

gate_up is [N, 2C], dense: per token C gates, then C values. The result is [N, C]. One program
computes `BLOCK` columns of one token. GELU is the tanh form, which is a sigmoid: with
z = sqrt(2 / pi) * (x + 0.044715 x³), (1 + tanh(z)) / 2 = sigmoid(2z).
"""

import torch
import triton
import triton.language as tl

from kernels.api import Activation
from kernels.triton.jit import Launch, Signature, kernel

_BLOCK = 1024


def gated(gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """See `kernels.api.Kernels.gated`; gate_up is dense."""
    num_tokens, width = len(gate_up), gate_up.shape[1] // 2
    out = torch.empty(num_tokens, width, dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        how = launch(width, activation)
        gated_kernel[(num_tokens, triton.cdiv(width, _BLOCK))](gate_up, out, **how.keywords())
    return out


def launch(width: int, activation: Activation) -> Launch:
    """Of `width` gates."""
    constants = {"WIDTH": width, "GELU": activation == "gelu_tanh", "BLOCK": _BLOCK}
    return Launch(constants, num_warps=4, num_stages=1)


@kernel()
def gated_kernel(
    gate_up: tl.tensor, out: tl.tensor, WIDTH: tl.constexpr, GELU: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """Token `program_id(0)`, columns from `program_id(1) * BLOCK`."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    gates = gate_up + token * 2 * WIDTH + columns
    gate = tl.load(gates, mask, 0.0).to(tl.float32)
    up = tl.load(gates + WIDTH, mask, 0.0).to(tl.float32)
    z2 = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate) if GELU else gate
    # exp of what is never positive cannot overflow.
    e = tl.exp(-tl.abs(z2))
    share = tl.where(z2 >= 0, 1.0, e) / (1.0 + e)
    tl.store(out + token * WIDTH + columns, (gate * share * up).to(out.dtype.element_ty), mask)


def signatures() -> list[Signature]:
    """Llama 3's 14,336 gates and Gemma 3's 2,048."""
    forms: tuple[tuple[int, Activation], ...] = ((14_336, "silu"), (2_048, "gelu_tanh"))
    return [
        Signature(
            f"gated {activation} of {width} {dtype}",
            gated_kernel,
            {"gate_up": f"*{dtype}", "out": f"*{dtype}"},
            launch(width, activation),
            aligned=("gate_up", "out"),
        )
        for width, activation in forms
        for dtype in ("bf16", "fp32")
    ]
