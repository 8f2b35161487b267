# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The browser of all pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from chromium import SCREENSHOTS, Browser, find


@pytest.fixture(scope="session", name="browser")
def start_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with Browser(str(find()), tmp_path_factory.mktemp("profile")) as browser:
        yield browser
