"""Rules about imports that import-linter cannot say."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NO_CLOCK_NO_IO = {"time", "random", "os", "asyncio", "logging", "datetime", "threading", "socket"}


def top_level_imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@pytest.mark.parametrize(
    ("package", "itself"), [("fairness", "fairness"), ("engine/core", "engine.core")]
)
def test_pure_cores_import_only_the_standard_library_and_no_clock(package, itself):
    modules = sorted((ROOT / package).rglob("*.py"))
    assert modules
    for module in modules:
        for name in top_level_imports(module):
            if name == itself or name.startswith(f"{itself}."):
                continue
            root = name.split(".")[0]
            assert root in sys.stdlib_module_names, f"{module.name} imports {name}"
            assert root not in NO_CLOCK_NO_IO, f"{module.name} imports {name}"


@pytest.mark.parametrize("module", ["engine.protocol.wire", "engine.protocol.text.model"])
def test_the_protocol_loads_no_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_an_engine_for_a_cpu_loads_no_torch():
    code = (
        "import sys, engine.server.main; "
        "heavy = {'torch', 'triton', 'numba', 'transformers'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_admin_cli_loads_neither_torch_nor_a_web_framework():
    code = (
        "import sys, gateway.cli.main; "
        "heavy = {'torch', 'numba', 'fastapi', 'uvicorn'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_kernels_init_is_empty():
    """Transformers imports any package named `kernels` and looks for a version in it."""
    assert (ROOT / "kernels" / "__init__.py").read_text() == ""


@pytest.mark.parametrize(
    "package", ["engine", "fairness", "gateway", "kernels", "migrations", "tenancy"]
)
def test_no_module_can_run_code_from_data(package):
    for path in sorted((ROOT / package).rglob("*.py")):
        names = top_level_imports(path)
        assert not names & {"pickle", "marshal", "shelve", "dill", "cloudpickle"}, path
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec"}, f"{path}:{node.lineno}"


def test_engine_and_tenancy_agree_on_the_data_directory(monkeypatch):
    """They may not import each other, so each says where the default is."""
    from engine.model.store import default_data_dir
    from tenancy.datadir import default_root

    monkeypatch.delenv("EVENHAND_DATA_DIR", raising=False)
    assert default_data_dir() == default_root()
