"""Which decoder a model is loaded into, and that a slow one is not chosen in silence."""

import logging

import pytest

from engine.model import load
from engine.model.native import NativeDecoder
from engine.model.torch_decoder import TorchDecoder
from kernels.cpu.library import KernelsUnavailableError, StaleKernelsError
from tests.support.drawn_weights import DrawnWeights, config


@pytest.fixture
def path(monkeypatch, tmp_path):
    monkeypatch.setattr(load, "open_weights", lambda path: DrawnWeights(config()))
    return tmp_path


def without_kernels(monkeypatch, error):
    def native(*arguments):
        raise error

    monkeypatch.setattr(load, "NativeDecoder", native)


def test_a_cpu_computes_natively(path):
    assert isinstance(load.load_model(path, threads=1), NativeDecoder)


def test_without_kernels_torch_computes_and_the_log_says_so(path, monkeypatch, caplog):
    without_kernels(monkeypatch, KernelsUnavailableError("not compiled"))
    with caplog.at_level(logging.WARNING):
        assert isinstance(load.load_model(path, threads=1), TorchDecoder)
    assert "SLOW" in caplog.text
    assert "not compiled" in caplog.text


def test_8_bit_activations_have_no_slow_form(path, monkeypatch):
    def no_kernels(quantization):
        raise KernelsUnavailableError("not compiled")

    monkeypatch.setattr(load, "require_kernels", no_kernels)
    with pytest.raises(ValueError, match=r"activations-int8.*not compiled"):
        load.load_model(path, quantization="activations-int8")


def test_stale_kernels_are_not_worked_around(path, monkeypatch):
    without_kernels(monkeypatch, StaleKernelsError("older"))
    with pytest.raises(StaleKernelsError):
        load.load_model(path)
