"""What is left, asked over the admin socket of whatever answers there."""

import json
import socket
import tempfile
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer
from uuid import UUID

import pytest
from typer.testing import CliRunner

from gateway.cli.admin import app, left
from migrations import runner

TENANT = UUID(int=7)
ANSWER = {"rpm": 1, "tpm": None, "uncached_tpm": None, "queued": 60, "running": 9}


class Gateway(UnixStreamServer):
    """Answers every request with the same status and body."""

    def __init__(self, path, status, body):
        self.status, self.body, self.asked = status, body, []
        super().__init__(str(path), Handler)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_args):
        pass

    def address_string(self):
        return "socket"


@pytest.fixture
def folder():
    """A short path: a socket's is limited."""
    with tempfile.TemporaryDirectory(prefix="eh-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def answering(folder):
    """Starts a gateway that answers on `gateway.sock`."""
    started = []

    def start(status, body):
        server = Gateway(folder / "gateway.sock", status, body)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        started.append((server, thread))
        return server

    yield start
    for server, thread in started:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_gateways_answer(folder, answering):
    server = answering(200, json.dumps(ANSWER).encode())
    assert left.ask(folder / "gateway.sock", TENANT) == ANSWER
    assert server.asked == [f"/left?tenant={TENANT}"]


def test_none_where_no_gateway_runs(folder):
    assert left.ask(folder / "gateway.sock", TENANT) is None
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(folder / "gateway.sock"))
    assert left.ask(folder / "gateway.sock", TENANT) is None


@pytest.mark.parametrize(
    ("status", "body"), [(500, b"{}"), (404, b"{}"), (200, b"[]"), (200, b"nonsense"), (200, b"")]
)
def test_a_wrong_answer_is_said(folder, answering, status, body):
    answering(status, body)
    with pytest.raises(left.LeftUnavailableError, match="gateway"):
        left.ask(folder / "gateway.sock", TENANT)


def quota_show(folder, *options):
    env = {
        "EVENHAND_DATA_DIR": str(folder),
        "EVENHAND_DATABASE_URL": f"sqlite:///{folder / 'evenhand.db'}",
    }
    return CliRunner().invoke(app, ["quota", "show", "--tenant", "acme", *options], env=env)


@pytest.fixture
def tenant(folder):
    env = {"EVENHAND_DATA_DIR": str(folder)}
    runner.upgrade(f"sqlite:///{folder / 'evenhand.db'}")
    assert CliRunner().invoke(app, ["tenant", "create", "acme"], env=env).exit_code == 0


@pytest.mark.usefixtures("tenant")
def test_quota_show_says_what_is_left(folder, answering):
    answering(200, json.dumps(ANSWER).encode())
    assert json.loads(quota_show(folder, "--json").stdout)["left"] == ANSWER
    shown = quota_show(folder).stdout
    rows = {line.split()[1]: line.split() for line in shown.splitlines() if line.startswith("│")}
    assert rows["rpm"][-2] == "1"
    assert rows["tpm"][-2] == "-"
    assert rows["concurrency"][-2] == "0"
    assert rows["max_queued"][-2] == "4"
    assert rows["max_output"][-2] == "-"


@pytest.mark.usefixtures("tenant")
def test_quota_show_warns_and_shows_the_rest(folder, answering):
    answering(500, b"{}")
    found = quota_show(folder, "--json")
    assert found.exit_code == 0
    assert json.loads(found.stdout)["left"] is None
    assert found.stderr.startswith("warning: ")
