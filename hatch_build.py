"""Compiles the native CPU kernels when the package is built or installed for development.

Without a C compiler the package is built all the same, for any machine, and says that engines on a
CPU will be slow; sources that do not compile are an error.
"""

import importlib.util
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeKernels(BuildHookInterface):  # type: ignore[type-arg] # the type of its configuration
    """Hatchling's hook: before files are collected, for wheels and for editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile in place; a wheel then holds the libraries and is for this platform only."""
        compiler = _load(Path(self.root) / "kernels" / "cpu" / "build.py")
        try:
            compiler.build()
        except compiler.NoCompilerError as error:
            self.app.display_warning(f"CPU kernels are not compiled, engines will be slow: {error}")
            return
        if version == "editable":
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform_tag()}"
        build_data["artifacts"].append("kernels/cpu/native/*.so")


def _load(path: Path) -> ModuleType:
    """A module by its file: the package is not installed yet."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        sys.exit(f"{path} is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _platform_tag() -> str:
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
