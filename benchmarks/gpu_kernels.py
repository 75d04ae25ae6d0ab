"""Every Triton kernel against its reference: the kernels' own tests, on the device there is."""

import time

import pytest

from benchmarks.gpu_section import Section, say

# In this order: what is quick first, so that the budget runs out in the largest grid if anywhere.
TESTS = [
    "tests/kernels/triton/test_rms_norm.py",
    "tests/kernels/triton/test_rotary.py",
    "tests/kernels/triton/test_gated.py",
    "tests/kernels/triton/test_sampling.py",
    "tests/kernels/triton/test_pages.py",
    "tests/kernels/triton/test_attention.py",
]


class _Collector:
    """A pytest plugin that tells a section what became of each test, within its budget."""

    def __init__(self, section: Section) -> None:
        self._section = section
        self._said = time.monotonic()
        self._late: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if not self._section.in_time:
            self._late.append(item.nodeid)
            pytest.skip("no time is left")
        if time.monotonic() - self._said > 15:
            self._said = time.monotonic()
            say(f"  {self._section.checks} checked, now {item.nodeid}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.removeprefix("tests/kernels/triton/")
        if report.failed:
            self._section.check(name, str(report.longrepr).strip().splitlines()[-1])
        elif report.when == "call":
            self._section.check(name, None)

    def pytest_sessionfinish(self) -> None:
        if self._late:
            self._section.skip(f"{len(self._late)} tests from {self._late[0]}", "no time is left")


def run(section: Section, gpu: bool) -> None:  # noqa: FBT001 - one signature for all sections
    """The interpreter takes its time: without a GPU a part of the tests stands for all."""
    options = ["addopts=--import-mode=importlib", "timeout=0"]
    quiet = ["-p", "no:terminal", "-W", "ignore"]
    arguments = [*TESTS, "-m", "not prove", *(f"-o{option}" for option in options), *quiet]
    if not gpu:
        arguments += [
            "-k",
            "not far and not beyond_what and not mixed_batches and not copied_pages",
        ]
    status = pytest.main(arguments, plugins=[_Collector(section)])
    if status not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED} or not section.checks:
        section.check("tests", f"could not be run: {pytest.ExitCode(status).name}")
