"""Copy whole pages, all layers: how a sequence gets a page of its own before it writes to one.

Shapes: `keys` [layers, pages, G, D, S] and `values` [layers, pages, G, S, D]: a page of a layer is
`PAGE` = G * D * S consecutive elements of either. `sources` and `targets` are [copies] int32. One
program copies `BLOCK` elements of one layer's keys and values. The reference is `KvPages.copy`.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from kernels.api import KvPages
from kernels.triton.attention_shape import ONE_SHAPE_A_HEAD_SIZE
from kernels.triton.jit import Launch, Signature, kernel

_BLOCK = 2048
_WARPS = 4


def copy_pages(pages: KvPages, sources: Sequence[int], targets: Sequence[int]) -> None:
    """Copy page `sources[i]` to `targets[i]`; every source is read first.

    `targets` holds no page twice. Raises IndexError for a page that does not exist, having copied
    nothing.
    """
    num_layers, num_pages, *page = pages.keys.shape
    for number in (*sources, *targets):
        if not 0 <= number < num_pages:
            raise IndexError(f"page {number} of {num_pages}")
    if not sources:
        return
    if set(sources).isdisjoint(targets):
        _copy(pages, pages, sources, targets)
        return
    # A page both read and written: programs run in any order, so all of them are set aside first.
    count = len(sources)
    aside = KvPages(
        pages.keys.new_empty(num_layers, count, *page),
        pages.values.new_empty(num_layers, count, *pages.values.shape[2:]),
    )
    _copy(pages, aside, sources, range(count))
    _copy(aside, pages, range(count), targets)


def _copy(origin: KvPages, goal: KvPages, sources: Sequence[int], targets: Sequence[int]) -> None:
    numbers = torch.tensor([[*sources], [*targets]], dtype=torch.int32, device=goal.keys.device)
    page = goal.keys.stride(1)
    copy_pages_kernel[len(sources), len(goal.keys), triton.cdiv(page, _BLOCK)](
        origin.keys,
        origin.values,
        goal.keys,
        goal.values,
        numbers[0],
        numbers[1],
        origin.keys.shape[1],
        goal.keys.shape[1],
        **_launch(page).keywords(),
    )


@kernel(changing=["origin_pages", "goal_pages"], unaligned=["sources", "targets"])
def copy_pages_kernel(
    origin_keys: tl.tensor,
    origin_values: tl.tensor,
    goal_keys: tl.tensor,
    goal_values: tl.tensor,
    sources: tl.tensor,
    targets: tl.tensor,
    origin_pages: tl.tensor,
    goal_pages: tl.tensor,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Copy one part of one page of one layer; grid (copies, layers, parts of a page)."""
    copy, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
    element = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    origin = (layer * origin_pages + tl.load(sources + copy)) * PAGE + element
    goal = (layer * goal_pages + tl.load(targets + copy)) * PAGE + element
    mask = element < PAGE
    tl.store(goal_keys + goal, tl.load(origin_keys + origin, mask=mask), mask=mask)
    tl.store(goal_values + goal, tl.load(origin_values + origin, mask=mask), mask=mask)


def _launch(page: int) -> Launch:
    return Launch({"PAGE": page, "BLOCK": _BLOCK}, _WARPS, num_stages=1)


def signatures() -> list[Signature]:
    """For ahead-of-time compilation."""
    pointers = ("origin_keys", "origin_values", "goal_keys", "goal_values")
    return [
        Signature(
            f"copy_pages {shape.name}",
            copy_pages_kernel,
            {
                **dict.fromkeys(pointers, f"*{shape.type_name}"),
                **dict.fromkeys(("sources", "targets"), "*i32"),
                **dict.fromkeys(("origin_pages", "goal_pages"), "i32"),
            },
            _launch(shape.kv_heads * shape.head_dim * shape.page_size),
            aligned=pointers,
        )
        for shape in ONE_SHAPE_A_HEAD_SIZE
    ]
