"""How torch's threads wait for each other; to be decided before torch is first imported."""

import os


def yield_while_waiting() -> None:
    """Let idle compute threads sleep instead of spin, unless the environment already says.

    Spinning assumes that a core waits for each thread. Beside a busy gateway none does, and the
    spinner then holds up the thread it waits for: a decode step of 16 rows took six times as long.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
