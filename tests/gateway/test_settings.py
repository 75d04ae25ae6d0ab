"""Settings come from the environment and a file; an unknown name is an error that names it."""

import pytest

from gateway.settings import SettingsError, load


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    import os

    for name in [name for name in os.environ if name.startswith("EVENHAND_")]:
        monkeypatch.delenv(name)


def test_defaults():
    settings = load()
    assert (settings.gateway.port, settings.gateway.admin_port) == (8000, 8001)
    assert settings.gateway.max_body_bytes == 2 * 1024 * 1024
    assert settings.fairness.ttl == 120
    assert settings.effective_database_url.endswith("/.local/share/evenhand/evenhand.db")


def test_the_environment_with_nesting(monkeypatch, tmp_path):
    monkeypatch.setenv("EVENHAND_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("EVENHAND_GATEWAY__PORT", "9000")
    monkeypatch.setenv("EVENHAND_GATEWAY__ENGINES", '["unix:/run/a.sock"]')
    monkeypatch.setenv("EVENHAND_FAIRNESS__POLICY", "fcfs")
    settings = load(gateway={"admin_port": 0})
    assert (settings.gateway.port, settings.gateway.admin_port) == (9000, 0)
    assert settings.gateway.engines == ("unix:/run/a.sock",)
    assert settings.fairness.policy == "fcfs"
    assert settings.admin_socket == tmp_path / "gateway.sock"


@pytest.mark.parametrize(
    "name",
    [
        "EVENHAND_NOPE",
        "EVENHAND_GATEWAY__NOPE",
        "EVENHAND_FAIRNESS__URGENT",
        "EVENHAND_DATA_DIR__X",
    ],
)
def test_unknown_names_are_errors(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    with pytest.raises(SettingsError, match=name):
        load()


def test_names_of_other_programs_are_known(monkeypatch):
    for name in ("EVENHAND_ENGINE__DTYPE", "EVENHAND_ADMIN_URL", "EVENHAND_TEST_MODEL"):
        monkeypatch.setenv(name, "x")
    load()


def test_a_file_below_the_environment(monkeypatch, tmp_path):
    file = tmp_path / "evenhand.toml"
    file.write_text("[gateway]\nport = 1\nadmin_port = 2\n")
    monkeypatch.setenv("EVENHAND_CONFIG", str(file))
    monkeypatch.setenv("EVENHAND_GATEWAY__PORT", "3")
    settings = load()
    assert (settings.gateway.port, settings.gateway.admin_port) == (3, 2)
    file.write_text("[gateway]\nnope = 1\n")
    with pytest.raises(SettingsError, match="EVENHAND_GATEWAY__NOPE"):
        load()
    file.write_text("[engine]\nblock_size = 32\n")  # the engine reads no file
    with pytest.raises(SettingsError, match="EVENHAND_ENGINE"):
        load()


def test_a_wrong_value_is_named_and_not_shown(monkeypatch):
    monkeypatch.setenv("EVENHAND_GATEWAY__PORT", "hunter2")
    with pytest.raises(SettingsError, match="EVENHAND_GATEWAY__PORT") as refused:
        load()
    assert "hunter2" not in str(refused.value)


def test_deadlines_lie_within_the_time_to_live(monkeypatch):
    fairness = load().fairness
    assert (fairness.shortest_deadline_s, fairness.longest_deadline_s) == (2, 90)
    fairness = load(fairness={"ttl": 0.4}).fairness
    assert fairness.shortest_deadline_s == fairness.longest_deadline_s == pytest.approx(0.3)
    for wrong in ({"t_max": 120}, {"t_min": 91}, {"t_min": 5, "t_max": 4}, {"ttl": 600}):
        with pytest.raises(SettingsError, match="FAIRNESS"):
            load(fairness=wrong)


@pytest.mark.parametrize("name", ["FLUSH_INTERVAL", "LOAD_FACTOR"])
def test_no_setting_is_endless(monkeypatch, name):
    monkeypatch.setenv(f"EVENHAND_FAIRNESS__{name}", "inf")
    with pytest.raises(SettingsError, match=name):
        load()


def test_an_empty_event_log_is_not_the_working_directory(monkeypatch):
    monkeypatch.setenv("EVENHAND_FAIRNESS__EVENT_LOG", "")
    with pytest.raises(SettingsError, match="event_log must name a directory"):
        load()


def test_where_events_are_logged(monkeypatch, tmp_path):
    monkeypatch.setenv("EVENHAND_DATA_DIR", str(tmp_path))
    assert load().event_log_dir == tmp_path / "fairness"
    monkeypatch.setenv("EVENHAND_FAIRNESS__EVENT_LOG", str(tmp_path / "elsewhere"))
    assert load().event_log_dir == tmp_path / "elsewhere"
    monkeypatch.setenv("EVENHAND_FAIRNESS__EVENT_LOG", "off")
    assert load().event_log_dir is None
