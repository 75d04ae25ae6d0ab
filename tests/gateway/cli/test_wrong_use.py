"""What a command says, and its exit status, when it cannot start: one line, and 2 for wrong use."""

import socket

import pytest
import torch
from typer.testing import CliRunner

from gateway.cli.main import app
from kernels.cpu.library import StaleKernelsError


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("EVENHAND_DATA_DIR", str(tmp_path / "data"))
    return lambda *arguments: CliRunner().invoke(app, arguments)


def said(result, status):
    assert result.exit_code == status, (result.output, result.exception)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.mark.parametrize("command", ["serve", "gateway", "engine"])
@pytest.mark.parametrize("model", ["nope", "hf:nope"])
def test_a_model_that_cannot_be_is_wrong_use(run, command, model):
    assert model in said(run(command, "--model", model), 2)


def test_a_damaged_model_says_how_to_get_it_anew(run, tmp_path):
    model = tmp_path / "data" / "models" / "smollm2-135m.gguf"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"GGUF")
    for command in ("serve", "engine"):
        text = said(run(command), 1)
        assert str(model) in text
        assert "evenhand model pull smollm2-135m" in text


def test_a_path_too_long_for_sockets_leaves_nothing(run, tmp_path):
    folder = tmp_path / ("long" * 25)
    assert "too long" in said(run("serve", "--data-dir", str(folder)), 1)
    assert not folder.exists()


@pytest.mark.parametrize("name", ["EVENHAND_NOPE", "EVENHAND_ENGINE__NOPE"])
def test_the_engine_names_an_unknown_setting(run, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    assert name in said(run("engine"), 1)


@pytest.mark.parametrize("how", [("--device", "cuda"), ()])
def test_a_gpu_that_is_not_there_is_told(run, monkeypatch, smollm2, how):
    monkeypatch.setattr(torch.version, "cuda", None)
    if not how:
        monkeypatch.setenv("EVENHAND_ENGINE__DEVICE", "cuda")
    text = said(run("engine", "--model", str(smollm2), "--port", "0", *how), 1)
    assert "needs a CUDA build of torch" in text


def test_a_key_without_a_keyring_says_what_makes_one(run):
    assert "evenhand migrate" in said(run("admin", "key", "create", "--tenant", "x"), 1)


def test_a_taken_port_is_told_before_any_model_is_loaded(run, tmp_path, smollm2, monkeypatch):
    async def never(*_: object) -> None:
        raise AssertionError("the engine was started")

    monkeypatch.setattr("gateway.cli.engine_process.EngineProcess.start", never)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        place = ("--data-dir", str(tmp_path / "data"), "--admin-port", "0")
        result = run("serve", "--model", str(smollm2), "--port", port, *place)
    assert f"127.0.0.1:{port}" in said(result, 1)


def test_kernels_that_are_not_of_these_sources_are_one_clear_error(run, smollm2, monkeypatch):
    def stale():
        raise StaleKernelsError("libevenhand-plain.so is older than its sources")

    monkeypatch.setattr("engine.model.native.Team", lambda _threads: stale())
    assert "older than its sources" in said(
        run("engine", "--model", str(smollm2), "--port", "0"), 1
    )
