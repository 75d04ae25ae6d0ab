"""`evenhand doctor`: the whole of it, and what it says of models, kernels and devices."""

import json
import shutil
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from engine.model.inspect import inspect
from engine.settings import EngineSettings
from gateway.checks import Status
from gateway.cli import model_checks
from gateway.cli.doctor import doctor, examine
from kernels.cpu import library
from tests.support.stack import ROOT, run_cli

app = typer.Typer()
app.command()(doctor)
DEFAULTS = EngineSettings()


@pytest.fixture
def run(tmp_path):
    def call(*arguments, **environment):
        env = {"EVENHAND_DATA_DIR": str(tmp_path / "data")} | environment
        return CliRunner().invoke(app, arguments, env=env)

    return call


@pytest.fixture
def with_model(tmp_path, smollm2):
    models = tmp_path / "data" / "models"
    models.mkdir(parents=True, mode=0o700)
    (tmp_path / "data").chmod(0o700)
    return shutil.copyfile(smollm2, models / "smollm2-135m.gguf")


def test_a_new_machine_is_well(run, tmp_path):
    result = run()
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert all(line.startswith(("ok ", "warning ")) for line in lines)
    assert not (tmp_path / "data").exists()


def test_a_migrated_deployment_with_a_model_is_well(run, tmp_path, with_model):
    assert run_cli("migrate", EVENHAND_DATA_DIR=str(tmp_path / "data")).returncode == 0
    result = run("--json")
    assert result.exit_code == 0, result.output
    found = {finding["check"]: finding for finding in json.loads(result.stdout)}
    assert {name for name, finding in found.items() if finding["status"] != "ok"} == set()
    assert set(found) == {
        "settings",
        "data directory",
        "keyring",
        "database",
        "migrations",
        "clock",
        "engines",
        "model smollm2-135m",
        "device",
        "CPU kernels",
        "torch and CUDA",
    }
    assert "Llama or Mistral, Q4_1" in found["model smollm2-135m"]["says"]


@pytest.mark.parametrize("name", ["EVENHAND_NOPE", "EVENHAND_ENGINE__NOPE"])
def test_unknown_settings_fail_and_the_machine_is_still_looked_at(run, name):
    result = run("--json", **{name: "1"})
    assert result.exit_code == 1
    found = {finding["check"]: finding for finding in json.loads(result.stdout)}
    assert found["settings"]["status"] == "failed"
    assert name in found["settings"]["says"]
    assert "CPU kernels" in found
    assert "database" not in found


def test_a_damaged_model_fails(run, with_model):
    with with_model.open("r+b") as file:
        file.seek(50_000_000)
        file.write(b"damage")
    result = run()
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("failed")]
    assert "sha256" in line
    assert "evenhand model pull smollm2-135m" in line


def test_a_model_that_does_not_fit_is_a_warning(with_model, tmp_path):
    def look(available):
        return model_checks.model("smollm2-135m", tmp_path / "data", DEFAULTS, available)

    needed = model_checks.memory_needed(inspect(with_model), DEFAULTS)
    assert look(needed).status is Status.OK
    assert look(None).status is Status.OK
    found = look(needed - 1)
    assert found.status is Status.WARNING
    assert "EVENHAND_ENGINE__KV_MEMORY" in found.says


def test_memory_follows_the_settings(smollm2):
    found = inspect(smollm2)
    blocks = EngineSettings(num_kv_blocks=100)
    larger = EngineSettings(num_kv_blocks=200)
    difference = model_checks.memory_needed(found, larger) - model_checks.memory_needed(
        found, blocks
    )
    assert difference == 100 * found.page_bytes(16)


def test_the_tokenizer_named_in_the_settings_is_looked_at(tmp_path, smollm2):
    (found,) = model_checks.models(tmp_path / "data", smollm2, DEFAULTS)
    assert (found.check, found.status) == (f"model {smollm2}", Status.OK)
    (found,) = model_checks.models(tmp_path / "data", tmp_path / "none.gguf", DEFAULTS)
    assert found.status is Status.FAILED


def test_available_memory_is_the_machines_or_the_containers(tmp_path, monkeypatch):
    meminfo, limit, used = (tmp_path / name for name in ("meminfo", "max", "current"))
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable:  50 kB\n")
    monkeypatch.setattr(model_checks, "_MEMINFO", meminfo)
    monkeypatch.setattr(model_checks, "_CGROUP_LIMIT", limit)
    monkeypatch.setattr(model_checks, "_CGROUP_USED", used)
    assert model_checks.available_memory() == 50 * 1024
    limit.write_text("max\n")
    used.write_text("1000\n")
    assert model_checks.available_memory() == 50 * 1024
    limit.write_text("21000\n")
    assert model_checks.available_memory() == 20_000
    meminfo.unlink()
    limit.unlink()
    assert model_checks.available_memory() is None


def fails_with(error):
    def call():
        raise error

    return call


def test_kernels_that_are_not_of_these_sources_fail(monkeypatch):
    assert model_checks.cpu_kernels().status is Status.OK
    monkeypatch.setattr(model_checks, "native", fails_with(library.StaleKernelsError("older")))
    assert model_checks.cpu_kernels().status is Status.FAILED


def test_kernels_that_are_not_there_are_a_warning(monkeypatch):
    error = library.KernelsUnavailableError("run `python -m kernels.cpu.build`")
    monkeypatch.setattr(model_checks, "native", fails_with(error))
    found = model_checks.cpu_kernels()
    assert found.status is Status.WARNING
    assert "kernels.cpu.build" in found.says


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"EVENHAND_ENGINE__DTYPE": "bfloat16"}, "dtype 'bfloat16' is not supported on the CPU"),
        (
            {
                "EVENHAND_ENGINE__QUANTIZATION": "activations-int8",
                "EVENHAND_ENGINE__DEVICE": "cuda",
            },
            "quantization 'activations-int8' is for device 'cpu' only",
        ),
        (
            {
                "EVENHAND_ENGINE__QUANTIZATION": "activations-int8",
                "EVENHAND_CPU_KERNELS": "plain",
            },
            "quantization 'activations-int8' needs the kernels for AVX2; plain ones run here",
        ),
    ],
)
def test_what_an_engine_would_refuse_fails(tmp_path, settings, says):
    done = run_cli("doctor", "--json", EVENHAND_DATA_DIR=str(tmp_path / "data"), **settings)
    assert done.returncode == 1
    found = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert found["device"]["status"] == "failed"
    assert says in found["device"]["says"]


def test_without_a_driver_no_torch_is_loaded():
    code = (
        "import sys; from gateway.cli.doctor import examine; examine(None);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_what_may_not_be_looked_at_fails_and_raises_nothing(tmp_path):
    beyond = tmp_path / ("x" * 300) / "data"  # as one in a folder that is closed to us
    found = {finding.check: finding.status for finding in examine(beyond)}
    assert found["data directory"] is Status.FAILED
    assert found["keyring"] is Status.FAILED
    assert found["models"] is Status.FAILED
    assert found["clock"] is Status.OK


def test_a_model_that_may_not_be_looked_at_fails(tmp_path):
    name = str(tmp_path / ("x" * 300))
    assert model_checks.model(name, tmp_path, DEFAULTS, None).status is Status.FAILED
