import json

import pytest
from typer.testing import CliRunner

from engine.model.store import pull
from gateway.cli.model import app


@pytest.fixture
def run(tmp_path):
    def call(*arguments):
        return CliRunner().invoke(app, [*arguments, "--data-dir", str(tmp_path)])

    return call


def test_list_shows_what_could_be_pulled(run):
    result = run("list")
    assert result.exit_code == 0
    assert "smollm2-135m" in result.stdout


def test_list_json(run, tmp_path):
    hub = tmp_path / "models" / "hf" / "org" / "tiny"
    hub.mkdir(parents=True)
    (hub / "config.json").write_text("{}")
    listed = json.loads(run("list", "--json").stdout)
    assert [(m["name"], m["present"], m["bytes"]) for m in listed] == [
        ("smollm2-135m", False, 98_362_432),
        ("hf:org/tiny", True, 2),
    ]
    assert listed[1]["path"] == str(hub)


def test_pull_of_a_present_model_prints_its_path(run, tmp_path, smollm2):
    target = tmp_path / "models" / "smollm2-135m.gguf"
    target.parent.mkdir()
    target.symlink_to(smollm2)
    result = run("pull", "smollm2-135m", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"name": "smollm2-135m", "path": str(target)}
    assert result.stderr == ""
    assert run("pull", "smollm2-135m").stdout.strip() == str(pull("smollm2-135m", tmp_path))


@pytest.mark.parametrize("name", ["nope", "hf:", "hf:a", "hf:a/b/c", "hf:../x", "hf:a/..", "/etc"])
def test_wrong_name_is_wrong_use(run, name):
    result = run("pull", name)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_unreachable_hub_is_a_failure(run, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    result = run("pull", "hf:org/name")
    assert result.exit_code == 1
    assert "hf:org/name" in result.stderr
    assert result.stdout == ""


def test_a_model_that_is_here_is_described(run, tmp_path, smollm2):
    target = tmp_path / "models" / "smollm2-135m.gguf"
    target.parent.mkdir()
    target.symlink_to(smollm2)
    (listed,) = json.loads(run("list", "--json").stdout)
    assert (listed["state"], listed["family"], listed["type"]) == (
        "here",
        "Llama or Mistral",
        "Q4_1",
    )
    assert 1.1e9 < listed["memory_bytes"] < 2e9
    table = run("list").stdout
    assert "Q4_1" in table
    assert "here" in table


def test_a_model_that_cannot_be_loaded_says_why(run, tmp_path):
    hub = tmp_path / "models" / "hf" / "org" / "tiny"
    hub.mkdir(parents=True)
    (hub / "config.json").write_text("{}")
    (hub / "tokenizer.json").write_text("{}")
    (hub / "model.safetensors").write_bytes(b"")
    default, tiny = json.loads(run("list", "--json").stdout)
    assert default["state"] == "not pulled"
    assert tiny["state"] == "unusable"
    assert "model_type" in tiny["problem"]
