"""Loads many models in this process, as an engine does, and prints what came of each.

    python -m tests.support.load_models LIMIT PATHS

PATHS is a file with a path a line, LIMIT how many more bytes of address space this process may
take once everything is imported. Prints a JSON line before each model and one after it.
"""

import contextlib
import json
import resource
import signal
import sys
from pathlib import Path

import numpy as np

from engine.model.load import load_model
from engine.model.store import ModelSource
from engine.protocol.errors import InvalidRequest
from engine.protocol.requests import Message
from engine.protocol.text.errors import ModelFileError
from engine.protocol.text.model import load_text_model
from engine.server.main import _require_rows
from kernels.layout import BatchLayout

SECONDS = 20


def main() -> None:
    """See the module's docstring."""
    limit, paths = int(sys.argv[1]), Path(sys.argv[2]).read_text().splitlines()
    load(Path(paths[0]))  # whatever is imported or made only once
    used = _status("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, (used + limit, used + limit))
    for path in paths:
        print(json.dumps({"begins": path}), flush=True)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        signal.alarm(SECONDS)
        try:
            outcome = {"loaded": load(Path(path))}
        except ModelFileError as error:
            outcome = {"refused": str(error), "file": str(error.path)}
        except BaseException as error:  # noqa: BLE001 - that is what we are looking for
            outcome = {"broken": f"{type(error).__name__}: {error}"[:500]}
        signal.alarm(0)
        print(json.dumps(outcome | {"grown": _status("VmHWM") - before}), flush=True)


def load(path: Path) -> bool:
    """Load, render, and compute; raises ModelFileError."""
    text = load_text_model(path)
    model = load_model(path, threads=1)
    _require_rows(ModelSource(path, "m"), text, model.config.vocab_size)
    with contextlib.suppress(InvalidRequest):
        text.encode_chat([Message("user", "ab <|end|>")])
    compute(model, text.encode("abc")[:4] or [0])
    return True


def compute(model, token_ids) -> None:
    """One step over a few tokens; whatever comes of it, it must come back."""
    groups = len(model.page_groups.windows)
    count = len(token_ids)
    numbers = np.arange(count, dtype=np.int32)
    layout = BatchLayout(
        positions=numbers,
        rows=np.zeros(count, np.int32),
        row_starts=np.array([0, count], np.int32),
        first_positions=np.zeros(1, np.int32),
        block_tables=np.arange(groups, dtype=np.int32).reshape(groups, 1, 1),
    )
    state = model.open(groups, 16, 16)
    state.forward(np.array(token_ids, np.int32), layout)
    assert state.logits(np.array([count - 1])).shape == (1, model.config.vocab_size)


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) << 10
    raise KeyError(key)


if __name__ == "__main__":
    main()
