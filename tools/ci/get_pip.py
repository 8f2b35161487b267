# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let ansible-test make its virtual environments where get-pip.py cannot be downloaded.

ansible-test fetches get-pip.py from its own server and keeps it in a cache. Where that server does not answer and the
cache is empty, this puts a script of the same effect there, which takes pip from Python's own ensurepip.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

from ansible_test._internal.constants import CONTROLLER_PYTHON_VERSIONS, REMOTE_ONLY_PYTHON_VERSIONS
from ansible_test._internal.python_requirements import get_venv_packages

SERVER = "https://ci-files.testing.ansible.com/ansible-test/"
CACHE = Path("~/.ansible/test/cache").expanduser()
STAND_IN = '''\
"""Stand-in for get-pip.py, written by tools/ci/get_pip.py of gpufleet.vllm: takes pip from ensurepip."""
import ensurepip
import os
import subprocess
import sys

environment = {name: value for name, value in os.environ.items() if name != "GET_PIP"}
packages = [argument for argument in sys.argv[1:] if argument not in ("--no-setuptools", "--no-wheel")]
ensurepip.bootstrap(default_pip=True)
subprocess.check_call([sys.executable, "-m", "pip", "install"] + packages, env=environment)
'''


def pip_versions() -> set[str]:
    """Versions of pip that this ansible-test wants, over all Pythons that it knows."""
    pythons = [*REMOTE_ONLY_PYTHON_VERSIONS, *CONTROLLER_PYTHON_VERSIONS]
    return {get_venv_packages(SimpleNamespace(version=python))["pip"] for python in pythons}


def is_downloadable(url: str) -> bool:
    """Whether the server answers for this file."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10):
            return True
    except (urllib.error.URLError, OSError):
        return False


def main() -> None:
    """Write the stand-in for each version that is neither cached nor to be had."""
    for version in sorted(pip_versions()):
        file = CACHE / f"get_pip_{version.replace('.', '_')}.py"
        if file.exists() or is_downloadable(f"{SERVER}get-pip-{version}.py"):
            continue
        print(f"sanity: get-pip {version} cannot be downloaded from {SERVER}; ensurepip stands in for it: {file}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(STAND_IN, encoding="utf-8")


if __name__ == "__main__":
    main()
