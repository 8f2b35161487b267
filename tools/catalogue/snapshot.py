"""Everything that the catalogue holds of one release, read from its wheel."""

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path
from typing import Any

from arguments import arguments
from plugin_names import known_names
from registries import (
    architectures,
    batch_defaults,
    compressed_tensors_schemes,
    environment_variables,
    float16_refused,
    quantization_methods,
)
from release_source import open_release
from routes import guarded, routes


def snapshot(root: Path) -> dict[str, Any]:
    """The snapshot of the unpacked wheel in ``root``, without what only the CUDA wheel's metadata tell."""
    interpreter = open_release(root)
    found = arguments(interpreter)
    for name, names in known_names(interpreter).items():
        if name in found and "choices" not in found[name]:
            found[name]["known"] = names
    return {
        "arguments": found,
        "environment": environment_variables(interpreter),
        "architectures": architectures(interpreter),
        "quantization": {
            "methods": quantization_methods(interpreter),
            "compressed_tensors": compressed_tensors_schemes(interpreter),
        },
        "batch_defaults": batch_defaults(interpreter),
        "float16_refused": float16_refused(interpreter),
        "routes": routes(interpreter),
        "guarded_prefixes": list(guarded(interpreter)),
    }
