import json
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.eventfiles import pool_directory, segment_path
from tests.fairness.recorded import WALL_AHEAD, random_log

PNG = b"\x89PNG\r\n\x1a\n"
START = 1000.0 + WALL_AHEAD


def run(*arguments, **options):
    return CliRunner().invoke(app, ["audit", "fairness", *map(str, arguments)], **options)


def write(root, pool, segments):
    directory = pool_directory(root, pool)
    directory.mkdir(parents=True)
    for number, lines in enumerate(segments, 1):
        segment_path(directory, number).write_bytes(b"".join(lines))


def iso(wall):
    return datetime.fromtimestamp(wall, UTC).replace(tzinfo=None).isoformat()


@pytest.fixture(scope="module")
def segments():
    return random_log(4, steps=900).segments


@pytest.fixture
def logs(tmp_path, segments):
    write(tmp_path / "fairness", "org/model", segments)
    return tmp_path / "fairness"


@pytest.fixture
def broken(tmp_path, segments):
    lines = [list(one) for one in segments]
    index = next(i for i, line in enumerate(lines[1]) if b'"Granted"' in line)
    lines[1][index] = lines[1][index].replace(b'"turn"', b'"urgent"').replace(b'"pass"', b'"turn"')
    write(tmp_path / "broken", "m", lines)
    return tmp_path / "broken", index + 1


def test_a_kept_log_passes_with_its_figures(logs):
    result = run("--log", logs)
    assert result.exit_code == 0, result.output
    assert "pool pool, policy vtc: events 1 to" in result.stdout
    for column in ("BY WEIGHT", "WORST GAP", "HEAD'S AGE", "PASSED", "MISSED", "SPREAD", "URGENT"):
        assert column in result.stdout
    assert "t0" in result.stdout
    assert "every promise held" in result.stdout
    assert "…" not in result.stdout
    assert result.stderr == ""


def test_the_deployments_own_log_is_the_default(logs, monkeypatch):
    assert run("--data-dir", logs.parent).exit_code == 0
    monkeypatch.setenv("EVENHAND_DATA_DIR", str(logs.parent))
    assert run().exit_code == 0
    monkeypatch.setenv("EVENHAND_FAIRNESS__EVENT_LOG", "off")
    result = run()
    assert result.exit_code == 2
    assert "keeps no event log" in result.stderr


def test_one_pools_own_folder_will_do(logs):
    assert run("--log", pool_directory(logs, "org/model")).exit_code == 0


def test_json_has_everything(logs):
    result = run("--log", logs, "--json", "--window", 10)
    (report,) = json.loads(result.stdout)
    assert report["kept"] is True
    assert report["breaches"] == []
    assert len(report["windows"]) > 3
    tallies = [tally for window in report["windows"] for tally in window["tenants"].values()]
    assert any(tally["worst_gap"]["bound_norm"] > 0 for tally in tallies)
    assert report["events"] == report["last_sequence"]


def test_windows_are_printed_one_by_one(logs):
    result = run("--log", logs, "--window", 20)
    assert result.stdout.count("promises, ") > 2


def test_a_breach_exits_with_one_and_names_its_event(broken):
    root, line = broken
    result = run("--log", root)
    assert result.exit_code == 1
    assert "BROKEN" in result.stdout
    assert f"segment 2, line {line}: Granted request q" in result.stdout
    (report,) = json.loads(run("--log", root, "--json").stdout)
    first = report["breaches"][0]
    assert (first["segment"], first["line"], first["check"]) == (2, line, "digests")
    assert first["event"].startswith("Granted request q")


def test_every_pool_is_audited_and_one_can_be_chosen(logs, broken):
    root, _ = broken
    pool_directory(root, "m").rename(pool_directory(logs, "m"))
    both = run("--log", logs)
    assert both.exit_code == 1
    assert "BROKEN" in both.stdout
    assert "every promise held" in both.stdout
    assert run("--log", logs, "--pool", "org/model").exit_code == 0
    assert run("--log", logs, "--pool", "m").exit_code == 1


def test_a_span_of_time(logs):
    whole = json.loads(run("--log", logs, "--json").stdout)[0]
    begin, end = whole["windows"][0]["start"], whole["windows"][0]["end"]
    middle = (begin + end) // 2
    options = ("--from", iso(middle), "--to", iso(middle + 20))
    part = json.loads(run("--log", logs, "--json", *options).stdout)[0]
    assert [window["start"] >= middle for window in part["windows"]] == [True]
    assert part["windows"][0]["end"] <= middle + 20
    assert part["segments"] != whole["segments"]
    assert part["kept"] is True


def test_a_plot_of_service_and_spread(logs, tmp_path):
    path = tmp_path / "p.png"
    assert run("--log", logs, "--plot", path).exit_code == 0
    assert path.read_bytes().startswith(PNG)
    assert path.stat().st_size > 20_000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--log", "{root}/nowhere"], "cannot be read: No such file"),
        (["--log", "{root}"], "there is no event log below"),
        (["--log", "{root}/fairness", "--pool", "other"], "there is no event log below"),
        (["--log", "{root}/fairness", "--from", "yesterday"], "--from wants a time like"),
        (["--log", "{root}/fairness", "--to", "31.12."], "--to wants a time like"),
        (["--log", "{root}/fairness", "--plot", "{root}/p.jpg"], "does not end with .png"),
        (["--log", "{root}/fairness", "--plot", "{root}/no/p.png"], "--plot cannot write"),
        (["--log", "{root}/fairness", "--window", "0"], "greater than or equal to 1"),
    ],
)
def test_wrong_use(logs, options, words):
    result = run(*(option.format(root=logs.parent) for option in options))
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.replace("│", " ").split())


def test_a_plot_is_of_one_pool(logs, segments, tmp_path):
    write(logs, "second", segments)
    result = run("--log", logs, "--plot", tmp_path / "p.png")
    assert result.exit_code == 2
    assert "choose it with --pool" in result.stderr
    assert run("--log", logs, "--pool", "second", "--plot", tmp_path / "p.png").exit_code == 0
