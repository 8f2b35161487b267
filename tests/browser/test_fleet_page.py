# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of the fleet in a real browser. `make browser` installs one; without one these tests are skipped.

Screenshots are left in .build/browser for people to look at.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from chromium import CONTRASTS, DESKTOP, PHONE, ROOT, SCREENSHOTS, SIZES, TABLET, Browser, find

from ansible_collections.gpufleet.vllm.plugins.filter.explain import FilterModule
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning import plan_instances

HOSTS = ["gpu01", "gpu02", "gpu03", "gpu05", "gpu06", "gpu04", "a100-pair", "l4-single", "h100-pair", "rtx4090"]

pytestmark = pytest.mark.skipif(find() is None, reason="no Chromium on this machine; make browser installs one")

OPEN_ALL = "document.querySelectorAll('details').forEach(item => item.open = true)"


@pytest.fixture(scope="module", name="page")
def write_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page as a user gets it: plan_vllm.yml on the example fleet."""
    page = tmp_path_factory.mktemp("page") / "fleet.html"
    command = ["ansible-playbook", "-i", "inventories/example", "playbooks/plan_vllm.yml", "-e", f"vllm_report={page}"]
    result = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": f"{ROOT}/ansible.cfg"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, TABLET, DESKTOP], ids=["phone", "tablet", "desktop"])
def test_it_loads_alone_and_fits_the_screen(browser: Browser, page: Path, size: tuple[int, int], scheme: str) -> None:
    browser.open(page, *size, scheme)
    browser.screenshot(SCREENSHOTS / f"fleet-{size[0]}-{scheme}.png")
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]
    wide, visible = browser.run(SIZES)
    assert wide <= visible == size[0]
    browser.run(OPEN_ALL)
    browser.screenshot(SCREENSHOTS / f"fleet-{size[0]}-{scheme}-open.png")
    assert browser.run(SIZES)[0] <= size[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(browser: Browser, page: Path, scheme: str) -> None:
    browser.open(page, *DESKTOP, scheme)
    browser.run(OPEN_ALL)
    worst = browser.run(CONTRASTS)
    assert worst[0][0] >= 4.5, worst


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_not_understood_and_what_has_no_plan_can_be_read_too(
    browser: Browser, tmp_path: Path, scheme: str
) -> None:
    plans, hosts = large_fleet(1)
    unsure = [{**plan, "verdict": "unverified", "needs": ["start it and compare"]} for plan in plans]
    page = write(tmp_path, unsure, hosts={**hosts, "gone": {}}, failures={"gone": {"msg": "no route"}})
    browser.open(page, *DESKTOP, scheme)
    browser.run(OPEN_ALL)
    browser.screenshot(SCREENSHOTS / f"unverified-1280-{scheme}.png")
    assert "? Unverified" in browser.run("document.querySelector('.chip.unverified').innerText")
    worst = browser.run(CONTRASTS)
    assert worst[0][0] >= 4.5, worst


def test_light_and_dark_are_two(browser: Browser, page: Path) -> None:
    seen = []
    for scheme in ("light", "dark"):
        browser.open(page, *DESKTOP, scheme)
        seen.append(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert seen[0] != seen[1]


def test_warnings_are_first_and_the_worst_of_them_before_the_others(browser: Browser, page: Path) -> None:
    browser.open(page, *DESKTOP)
    titles = browser.run("[...document.querySelectorAll('h2')].map(title => title.innerText)")
    assert titles == ["Warnings", "Fleet", "Hosts", "Instances", "Plans", "How a size is known"]
    levels = browser.run("[...document.querySelectorAll('.attention > li')].map(item => item.className)")
    assert levels == sorted(levels) and set(levels) == {"bad", "fair"}
    assert browser.run("document.querySelector('.attention').getBoundingClientRect().bottom") <= DESKTOP[1]


def test_all_hosts_and_all_their_cards_are_there(browser: Browser, page: Path) -> None:
    browser.open(page, *DESKTOP)
    titles = browser.run("[...document.querySelectorAll('.host h3')].map(title => title.innerText)")
    assert titles == ["gpu01 and 1 host like it", *HOSTS[2:]]
    assert "gpu01, gpu02" in browser.run("document.querySelector('.host .more').textContent")
    labels = browser.run("[...document.querySelectorAll('.host .card span:first-child')].map(item => item.innerText)")
    assert labels[:3] == ["GPU 0: qwen", "GPUs 0-1: qwen-large", "GPUs 0-7: llama-405b"] and len(labels) == 9
    assert browser.run("document.querySelectorAll('.host .bar').length") == 9
    # The parts of a bar are as long as they say: the card of gpu01 is used to 92 percent, as the driver counts to 91.
    lengths = "[...document.querySelectorAll('.host .bar')[0].children].map(part => part.getBoundingClientRect().width)"
    whole = browser.run("document.querySelector('.host .bar').getBoundingClientRect().width")
    assert sum(browser.run(lengths)) / whole == pytest.approx(0.915, abs=0.01)


def test_a_derivation_unfolds(browser: Browser, page: Path) -> None:
    browser.open(page, *PHONE)
    table = "document.querySelector('.plan table.terms')"
    assert not browser.run(f"{table}.checkVisibility()")
    browser.run("document.querySelector('.plan details summary').click()")
    assert browser.run(f"{table}.checkVisibility()")
    assert "KV pool" in browser.run(f"{table}.innerText")


def test_links_lead_to_the_plans(browser: Browser, page: Path) -> None:
    browser.open(page, *DESKTOP)
    links = browser.run("[...document.querySelectorAll('a')].map(link => link.getAttribute('href'))")
    assert links
    assert browser.run(f"{json.dumps(links)}.filter(link => !document.querySelector(link))") == []


def test_on_a_phone_each_value_of_an_instance_has_its_title(browser: Browser, page: Path) -> None:
    browser.open(page, *PHONE)
    titles = browser.run(
        "[...document.querySelector('.rows tbody tr').cells].map(cell => getComputedStyle(cell, '::before').content)"
    )
    assert [title.strip('"') for title in titles][:3] == ["Instance", "Verdict", "Hosts"]
    assert browser.run("getComputedStyle(document.querySelector('.rows thead')).display") == "none"


@pytest.mark.parametrize("size", [PHONE, TABLET, DESKTOP], ids=["phone", "tablet", "desktop"])
def test_no_word_is_torn(browser: Browser, page: Path, size: tuple[int, int]) -> None:
    browser.open(page, *size)
    short = "[...document.querySelectorAll('.rows span, .figures dt, .chip, .host a')]"
    torn = f"{short}.filter(item => !/[ ,-]/.test(item.innerText) && item.getClientRects().length > 1)"
    assert browser.run(f"{torn}.map(item => item.innerText)") == []
    lines = "[...document.querySelectorAll('.figures dt')].map(title => title.offsetHeight)"
    assert len(set(browser.run(lines))) == 1


def write(folder: Path, *arguments: object, **named: object) -> Path:
    page = folder / "page.html"
    page.write_text(FilterModule().filters()["explain"](*arguments, format="html", **named), encoding="utf-8")
    return page


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_long_names_and_hosts_without_a_plan_break_nothing(
    browser: Browser, tmp_path: Path, size: tuple[int, int]
) -> None:
    name = "a-name-without-an-end-" * 12
    broken = {"gpus": [], "errors": [{"message": "driver/library version mismatch", "next_step": "reboot the host"}]}
    failures = {name: {"msg": "could not be reached: no route to host"}}
    page = write(tmp_path, [], hosts={name: {}, "gpu2": broken}, failures=failures)
    browser.open(page, *size)
    browser.screenshot(SCREENSHOTS / f"broken-{size[0]}.png")
    assert browser.run(SIZES) == [size[0], size[0]]
    assert browser.run("document.querySelector('.attention > li').innerText") == (
        f"No plan on {name}: could not be reached: no route to host"
    )
    assert "driver/library version mismatch reboot the host" in browser.run("document.body.innerText")


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_a_thousand_hosts_of_eight_cards_stay_usable(browser: Browser, tmp_path: Path, size: tuple[int, int]) -> None:
    """Every tenth host is used in a way of its own, every hundredth could not be reached."""
    plans, hosts = large_fleet(1000)
    failures = {host: {"msg": f"{host}: could not be reached: timed out"} for host in list(hosts)[::100]}
    plans = [plan for plan in plans if plan["hosts"][0] not in failures]
    hosts = {host: {} if host in failures else facts for host, facts in hosts.items()}
    page = write(tmp_path, plans, hosts=hosts, failures=failures)
    assert page.stat().st_size < 1_500_000
    started = time.monotonic()
    browser.open(page, *size)
    assert time.monotonic() - started < 5
    browser.screenshot(SCREENSHOTS / f"thousand-{size[0]}.png")
    assert browser.run(SIZES)[0] <= size[0]
    browser.run(OPEN_ALL)
    assert browser.run(SIZES)[0] <= size[0]
    first = browser.run("document.querySelector('.attention > li').innerText")
    assert first.startswith("No plan on gpu0000, gpu0100") and "timed out" in first
    shown = browser.run("document.body.textContent")
    assert [host for host in hosts if host not in shown] == []


def large_fleet(number: int) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Hosts with eight cards each: one engine on most, and on every tenth two, with their own free memory."""
    facts = json.loads((ROOT / "inventories/example_facts/gpu01.json").read_text(encoding="utf-8"))
    (gpu,), checkpoints = facts["gpu_info"]["gpus"], facts["checkpoints"]
    instance = {"name": "qwen", "image": "vllm/vllm-openai:v0.32.0", "checkpoint": next(iter(checkpoints))}
    plans, hosts = [], {}
    for index in range(number):
        name, less = f"gpu{index:04}", 100 * index if index % 10 == 0 else 0
        free = max(gpu["memory_free_mib"] - less, 20_000)
        gpus = [{**gpu, "index": slot, "uuid": f"GPU-{index}-{slot}", "memory_free_mib": free} for slot in range(8)]
        hosts[name] = {**facts["gpu_info"], "gpus": gpus}
        wanted = [instance, {**instance, "name": "second", "port": 8001}] if less else [instance]
        plans += plan_instances(wanted, [hosts[name]], checkpoints, [name])
    return plans, hosts
