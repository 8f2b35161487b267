# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of each vLLM release (private to the collection).

* :func:`release` finds a release by version, image tag or whole image reference,
* :func:`matrix` says what of an image, a host and a checkpoint fits together,
* :func:`serve_args` renders a plan's arguments for the release's entrypoint and refuses what the release does not know,
* :func:`changes` says what differs between two releases, :func:`upgrade_report` what of it matters to an instance.
"""

from __future__ import annotations

from .changes import changes
from .matrix import matrix
from .releases import (
    Argument,
    Release,
    UnknownRelease,
    format_releases,
    known_releases,
    release,
    releases_with_architecture,
)
from .serve_args import ArgumentProblem, serve_args
from .upgrade_report import upgrade_report

__all__ = [
    "Argument",
    "ArgumentProblem",
    "Release",
    "UnknownRelease",
    "changes",
    "format_releases",
    "known_releases",
    "matrix",
    "release",
    "releases_with_architecture",
    "serve_args",
    "upgrade_report",
]
