"""`make bench`: every speed claim in one run, as one JSON object on standard output.

Progress goes to standard error. Run it on an otherwise idle machine: the load average at the
start is part of the result.
"""

import argparse
import json
import os
import platform
import sys
from pathlib import Path

from benchmarks import (
    agreement,
    block_hashing,
    contention,
    decode,
    engine_speed,
    fair_grants,
    gateway_overhead,
    prefix_ttft,
    scheduler_steps,
    simulator,
    start_up,
)
from engine.model.store import pull

SECTIONS = {
    "engine_speed": engine_speed.run,
    "decode": decode.run,
    "agreement": agreement.run,
    "prefix_ttft": prefix_ttft.run,
    "start_up": start_up.run,
    "contention": contention.run,
    "gateway_overhead": gateway_overhead.run,
    "scheduler_steps": scheduler_steps.run,
    "fair_grants": fair_grants.run,
    "block_hashing": block_hashing.run,
    "simulator": simulator.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS], default=[])
    chosen = parser.parse_args().sections or list(SECTIONS)
    given = os.environ.get("EVENHAND_TEST_MODEL")
    model = Path(given) if given else pull("smollm2-135m")
    results: dict[str, object] = {
        "machine": {
            "cpus": os.cpu_count(),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "load_average": os.getloadavg(),
        }
    }
    for name in chosen:
        print(f"{name} ...", file=sys.stderr, flush=True)
        results[name] = SECTIONS[name](model)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
