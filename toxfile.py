"""Lets every tox environment run in one installed environment, so that torch is installed once.

tox keeps in each environment's folder the name of the environment it was made for, and rebuilds the folder when
another name comes along. The runner below records one name for all; everything else that tox compares (interpreter,
constraints, dependencies of the package) still leads to a reinstall when it changes.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tox.plugin import impl
from tox.tox_env.api import ToxEnv
from tox.tox_env.info import Info
from tox.tox_env.python.virtual_env.runner import VirtualEnvRunner
from tox.tox_env.register import ToxEnvRegister


class SharedInfo(Info):
    """What tox remembers of the shared folder, without the name of the environment that came first."""

    def compare(self, value: Any, section: str, sub_section: str | None = None) -> AbstractContextManager[Any]:
        if section == ToxEnv.__name__:
            value = {**value, "name": "shared"}
        return super().compare(value, section, sub_section)


class SharedVirtualEnvRunner(VirtualEnvRunner):
    """A virtual environment that environments of any name may use."""

    @staticmethod
    def id() -> str:
        return "shared-virtualenv"

    @property
    def cache(self) -> Info:
        return SharedInfo(self.env_dir)


@impl
def tox_register_tox_env(register: ToxEnvRegister) -> None:
    register.add_run_env(SharedVirtualEnvRunner)
