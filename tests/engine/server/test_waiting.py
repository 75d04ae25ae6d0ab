import subprocess
import sys

from engine.server.waiting import yield_while_waiting


def test_it_leaves_an_operators_choice_alone(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    yield_while_waiting()
    import os

    assert os.environ["OMP_WAIT_POLICY"] == "active"


def test_it_can_be_called_before_torch_is_loaded():
    code = (
        "import sys; from engine.server.waiting import yield_while_waiting; yield_while_waiting();"
        "import os; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={}
    )
    assert ran.stdout.split() == ["passive", "False"]
