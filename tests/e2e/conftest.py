"""One running product for the end-to-end tests of a module."""

import pytest

from tests.support import stack as product
from tests.support.otlp import OtlpReceiver


@pytest.fixture(scope="session")
def otlp():
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def stack(tmp_path_factory, smollm2, otlp):
    running = product.start(
        tmp_path_factory.mktemp("evenhand"),
        smollm2,
        OTEL_EXPORTER_OTLP_ENDPOINT=otlp.url,
        OTEL_METRIC_EXPORT_INTERVAL="500",
        OTEL_BSP_SCHEDULE_DELAY="200",
    )
    yield running
    assert running.stop() == 0, "".join(running.stderr)
