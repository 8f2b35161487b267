# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of a tuning in a real browser, with long names, large figures and every kind of step."""

from __future__ import annotations

from pathlib import Path

import pytest
from chromium import CONTRASTS, DESKTOP, PHONE, SCREENSHOTS, SIZES, Browser, find
from tuning_examples import tuned

from ansible_collections.gpufleet.vllm.plugins.filter.explain_tuning import explain_tuning

pytestmark = pytest.mark.skipif(find() is None, reason="no Chromium on this machine; make browser installs one")

# Of each curve, how many labels are cut off or lie on each other, and the height of the lowest in pixels.
LABELS = """
[...document.querySelectorAll('.curves svg')].map(curve => {
  const edge = curve.getBoundingClientRect();
  const boxes = [...curve.querySelectorAll('text')].map(label => label.getBoundingClientRect());
  const below = [...curve.querySelectorAll('.value')].map(label => label.getBoundingClientRect());
  return [
    boxes.filter(box => box.left < edge.left || box.right > edge.right).length,
    below.slice(1).filter((box, index) => box.left < below[index].right).length,
    Math.min(...boxes.map(box => box.height)),
  ];
})
"""


@pytest.fixture(scope="module", name="page")
def write_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = tuned()
    for row in rows:
        for run in row.get("runs", ()):
            run["output_throughput"] *= 123.4
    page = tmp_path_factory.mktemp("page") / "tuning.html"
    name, host = "qwen3-235b-a22b-instruct-production-chat", "gpu-node-017.rack-04.datacenter-east.example"
    page.write_text(explain_tuning(rows, host, name, format="html"), encoding="utf-8")
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_it_fits_the_screen_and_can_be_read(browser: Browser, page: Path, size: tuple[int, int], scheme: str) -> None:
    browser.open(page, *size, scheme)
    browser.screenshot(SCREENSHOTS / f"tuning-{size[0]}-{scheme}.png")
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]
    assert browser.run(SIZES) == [size[0], size[0]]
    worst = browser.run(CONTRASTS)
    assert worst[0][0] >= 4.5, worst
    curves = browser.run(LABELS)
    assert len(curves) == 2
    for cut_off, on_each_other, height in curves:
        assert (cut_off, on_each_other) == (0, 0)
        assert height >= 10
