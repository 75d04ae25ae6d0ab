"""Compiles every registered kernel for GPUs that need not be there, and says what each one needs.

`python -m kernels.triton.ahead` prints a table, and with `--json` one object. Whoever imports this
must not have kernels interpreted: `TRITON_INTERPRET` is unset.
"""

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.triton.jit import Signature
from kernels.triton.registry import signatures

SHARED_LIMITS = {80: 163 << 10, 90: 227 << 10}
"""Bytes of shared memory a program may have, by compute capability (CUDA C++ guide, table 27)."""

_DIVISIBLE = [["tt.divisibility", 16]]
_WARP = 32


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a kernel needs of a multiprocessor; `registers` a thread, the rest in bytes."""

    name: str
    capability: int
    warps: int
    registers: int
    shared: int
    spilled: int
    may_spill: bool

    @property
    def fault(self) -> str | None:
        """What is wrong with it, if anything."""
        if self.shared > SHARED_LIMITS[self.capability]:
            return f"{self.shared} bytes of shared memory are too many"
        if self.spilled and not self.may_spill:
            return f"spills {self.spilled} bytes"
        return None


def compile_for(signature: Signature, capability: int) -> Compiled:
    """Compile one kernel down to machine code; Triton's errors are raised as they are."""
    names = signature.kernel.arg_names
    source = ASTSource(
        signature.kernel,
        {name: signature.types.get(name, "constexpr") for name in names},
        dict(signature.launch.constants),
        {(names.index(name),): _DIVISIBLE for name in signature.aligned},
    )
    shape = {"num_warps": signature.launch.num_warps, "num_stages": signature.launch.num_stages}
    log = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as cache,
        contextlib.redirect_stdout(log),
        triton.knobs.cache.scope(),
        triton.knobs.nvidia.scope(),
    ):
        # What is cached is not assembled again, and only the assembler knows of spills.
        triton.knobs.cache.dir = cache
        triton.knobs.nvidia.dump_ptxas_log = True
        target = GPUTarget("cuda", capability, _WARP)
        compiled = triton.compile(source, target=target, options=shape)
    said = log.getvalue()
    return Compiled(
        name=signature.name,
        capability=capability,
        warps=signature.launch.num_warps,
        registers=_figure(r"Used (\d+) registers", said),
        shared=compiled.metadata.shared,
        spilled=_figure(r"(\d+) bytes spill stores", said),
        may_spill=signature.may_spill,
    )


def compile_all(capabilities: Sequence[int], processes: int) -> list[Compiled]:
    """Every kernel for every capability, in order."""
    jobs = [
        (index, capability) for capability in capabilities for index in range(len(signatures()))
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context) as pool:
        return list(pool.map(_compile, jobs, chunksize=4))


def _compile(job: tuple[int, int]) -> Compiled:
    index, capability = job
    return compile_for(signatures()[index], capability)


def _figure(pattern: str, log: str) -> int:
    found = re.search(pattern, log)
    if found is None:
        raise RuntimeError(f"the assembler's log has no {pattern!r}: {log!r}")
    return int(found[1])


def table(kernels: Iterable[Compiled]) -> str:
    """One line a kernel."""
    lines = [f"{'kernel':44}{'sm':>4}{'warps':>7}{'registers':>11}{'shared':>9}{'spilled':>9}"]
    lines += [
        f"{k.name:44}{k.capability:4}{k.warps:7}{k.registers:11}{k.shared:9}{k.spilled:9}"
        f"{'  ' + k.fault if k.fault else ''}"
        for k in kernels
    ]
    return "\n".join(lines)


def main() -> None:
    """Exit with 1 if a kernel needs more than there is."""
    parser = argparse.ArgumentParser(prog="python -m kernels.triton.ahead", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    arguments = parser.parse_args()
    kernels = compile_all(tuple(SHARED_LIMITS), arguments.processes)
    sys.stdout.write(
        json.dumps([asdict(kernel) for kernel in kernels]) if arguments.json else table(kernels)
    )
    sys.stdout.write("\n")
    sys.exit(any(kernel.fault for kernel in kernels))


if __name__ == "__main__":
    main()
