"""`make gpu-check`: whether this GPU computes right, and how much of it the kernels use.

Three sections, each with a budget of seconds, together at most 8 minutes: every Triton kernel
against its reference over the grid of its tests; the engine against transformers; bytes and
operations a second over those of a plain copy and a plain product measured beside them. What a
budget does not reach is said to be skipped. One table, then one line of JSON; exit status 1 if
anything was wrong.

Without a GPU everything runs in Triton's interpreter on small sizes, so that the script itself is
known to work; its figures then mean nothing.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict

from benchmarks.gpu_section import Section, say, table


def use_gpu() -> bool:
    """Whether there is a GPU; else have kernels interpreted. Before any kernel is imported."""
    import torch

    found = torch.cuda.is_available()
    os.environ["TRITON_INTERPRET"] = "0" if found else "1"
    if not found:
        say("NO GPU: Triton's interpreter stands in, on small sizes. The figures mean nothing.\n")
    return found


def section_runs() -> dict[str, tuple[float, Callable[[Section, bool], None]]]:
    """Of each section its budget in seconds, and what fills it in."""
    from benchmarks import gpu_engine, gpu_kernels, gpu_speed

    return {
        "kernels": (240.0, gpu_kernels.run),
        "engine": (130.0, gpu_engine.run),
        "speed": (90.0, gpu_speed.run),
    }


def run(chosen: list[str], *, gpu: bool) -> list[Section]:
    import numpy as np

    sections = section_runs()
    done = []
    for name in chosen or list(sections):
        budget_s, compute = sections[name]
        say(f"{name} (at most {budget_s:.0f} s)")
        section = Section(name, budget_s)
        start = time.monotonic()
        with np.errstate(all="ignore"):  # the interpreter is numpy, which warns where no GPU would
            compute(section, gpu)
        section.seconds = round(time.monotonic() - start, 1)
        done.append(section)
    return done


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    names = ["kernels", "engine", "speed"]
    parser.add_argument("sections", nargs="*", choices=[[], *names], default=[])
    chosen = parser.parse_args(arguments).sections
    gpu = use_gpu()
    device = describe(gpu=gpu)
    say(json.dumps(device))
    sections = run(chosen, gpu=gpu)
    say("\n" + "\n".join(table(section) for section in sections))
    if not gpu:
        say("NO GPU was here: this says only that the check itself works.")
    say(json.dumps({"device": device, "sections": [asdict(section) for section in sections]}))
    sys.exit(any(section.wrong for section in sections))


def describe(*, gpu: bool) -> dict[str, object]:
    import torch
    import triton

    libraries = {"torch": torch.__version__, "triton": triton.__version__}
    if not gpu:
        return {"name": "interpreter", **libraries}
    from engine.model.gpu_decoder import require_gpu

    require_gpu()
    about = torch.cuda.get_device_properties(0)
    return {
        "name": about.name,
        "capability": f"{about.major}.{about.minor}",
        "memory": about.total_memory,
        "multiprocessors": about.multi_processor_count,
        **libraries,
    }


if __name__ == "__main__":
    main()
