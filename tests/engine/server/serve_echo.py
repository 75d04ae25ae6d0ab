"""A whole engine process without weights.

`python -m tests.engine.server.serve_echo MODEL SOCKET DRAIN_DEADLINE_S [STEP_S]`: each step takes
`STEP_S`, so that a test can stop the process while a stream runs.
"""

import sys
import time
from pathlib import Path

from engine.core.engine_core import CoreConfig
from engine.protocol.text.model import load_text_model
from engine.runner.fake import FakeRunner
from engine.server.assembly import assemble
from engine.server.listen import UnixAddress, bound
from engine.server.serving import EngineServer
from tests.engine.server.conftest import Echo

STEP_S = 0.02


class SlowRunner:
    def __init__(self, inner, step_s):
        self.inner = inner
        self.step_s = step_s

    def execute(self, batch):
        time.sleep(self.step_s)
        return self.inner.execute(batch)


def main(model, path, drain_deadline_s, step_s=STEP_S):
    text = load_text_model(Path(model))
    config = CoreConfig(num_blocks=64, max_model_len=512, model_digest=b"echo")
    runner = FakeRunner(64, vocab_size=text.vocab_size, next_token=Echo(text))
    with bound(UnixAddress(Path(path))) as listener:
        engine = assemble(SlowRunner(runner, float(step_s)), text, config)
        server = EngineServer(
            engine.app,
            engine.service,
            float(drain_deadline_s),
            lambda: print("ready", flush=True),
        )
        server.run(sockets=[listener])
        engine.telemetry.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
