"""The documentation says what the code does: what it names exists, what exists is named."""

import re
from pathlib import Path

import pytest
import typer

from engine.protocol import metrics, wire
from engine.settings import EngineSettings
from gateway.cli.main import app
from gateway.errors import INTERNAL, TABLE
from gateway.settings import FairnessSettings, GatewaySettings

ROOT = Path(__file__).resolve().parents[2]
API = (ROOT / "docs" / "api.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

SPECS = [
    spec
    for spec in vars(metrics).values()
    if isinstance(spec, metrics.CounterSpec | metrics.GaugeSpec | metrics.HistogramSpec)
    and spec.name.startswith("evenhand_")
]
SETTINGS = [
    f"EVENHAND_{table}__{name.upper()}"
    for table, model in (
        ("GATEWAY", GatewaySettings),
        ("FAIRNESS", FairnessSettings),
        ("ENGINE", EngineSettings),
    )
    for name in model.model_fields
]


def commands(command, path):
    """Every leaf command of the command line, as a user types it."""
    children = getattr(command, "commands", None)
    if not children:
        return [path]
    return [leaf for name, child in children.items() for leaf in commands(child, f"{path} {name}")]


COMMANDS = commands(typer.main.get_command(app), "evenhand")


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_metric_is_documented_with_its_labels(spec):
    labels = "{" + ",".join(spec.labels) + "}" if spec.labels else ""
    assert f"`{spec.name}{labels}`" in OPERATIONS


def test_every_documented_metric_exists():
    table_rows = re.findall(r"^\| `(evenhand_[a-z_]+)", OPERATIONS, re.MULTILINE)
    assert sorted(table_rows) == sorted(spec.name for spec in SPECS)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_documented(name):
    assert f"`{name}`" in OPERATIONS


def test_every_documented_setting_exists():
    named = set(re.findall(r"EVENHAND_[A-Z]+__[A-Z_]+", OPERATIONS + API))
    assert named <= set(SETTINGS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_documented(command):
    assert f"`{command}`" in OPERATIONS


@pytest.mark.parametrize(
    "code", sorted({row.code for row in [*TABLE.values(), INTERNAL] if row.code})
)
def test_every_error_code_is_documented(code):
    assert f"`{code}`" in API


@pytest.mark.parametrize("table", [wire._CHAT, wire._COMPLETION], ids=["chat", "completions"])
def test_every_public_field_is_documented(table):
    for name in table[wire.Audience.PUBLIC]:
        assert f"`{name}`" in API, name


@pytest.mark.parametrize("table", [wire._CHAT, wire._COMPLETION], ids=["chat", "completions"])
def test_every_field_of_engines_alone_is_documented(table):
    for name in table[wire.Audience.ENGINE].keys() - table[wire.Audience.PUBLIC].keys():
        assert f"`{name}`" in OPERATIONS, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_nothing_names_a_machine(page):
    assert not re.search(r"/(home|root|work|tmp)/", page.read_text())
