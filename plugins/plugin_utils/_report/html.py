# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plans of a fleet as one self-contained page: no script, no network, light and dark. Private to gpufleet.vllm."""

from __future__ import annotations

import functools
import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .difference import written
from .fleet import RUNNING, Attention, Card, Group, attention_of, cards_of, groups_of, verdicts_of
from .text import STEPS, TERMS, VERDICTS, alike, needs_title, summary

TITLE = "vLLM plans of the fleet"

LABELLED_SHARE = 0.09
"""Parts of a bar that are smaller have no room for their number; it is in the tooltip and in the derivation."""

SIGNS = {"fits": "✓", "fits_reduced": "▾", "does_not_fit": "✕", "unsupported": "✕"}
COLOURS = {"fits": "good", "fits_reduced": "fair", "does_not_fit": "bad", "unsupported": "bad"}


@dataclass(frozen=True)
class Page:
    """What the page is made of."""

    plans: Sequence[Mapping[str, Any]]
    hosts: Mapping[str, Mapping[str, Any]]
    groups: Sequence[Group]
    cards: Mapping[str, Sequence[Card]]

    @functools.cached_property
    def anchors(self) -> dict[tuple[str, str], str]:
        """Where the plan of an instance on a host is told: by both names."""
        return {(group.name, host): group.anchor for group in self.groups for host in group.hosts}


def fleet_page(plans: Sequence[Mapping[str, Any]], hosts: Mapping[str, Mapping[str, Any]]) -> str:
    """The page: the fleet in numbers, what needs attention, every card of every host, all instances, each plan.

    plans: items of what plan() returned, of all hosts. hosts: what gpu_info returned, by inventory name; empty for a
    host that could not be read. The same input gives the same bytes.
    """
    page = Page(plans, hosts, groups_of(plans), cards_of(plans, hosts))
    body = [
        f"<h1>{TITLE}</h1>",
        _figures(page),
        _attention(attention_of(page.groups, hosts)),
        _hosts(page),
        _instances(page.groups),
        f"<h2>Plans</h2>{_legend(uncertain=True)}",
        *map(_plan, page.groups),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{TITLE}</title>\n<style>\n{_style()}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


@functools.cache
def _style() -> str:
    return (Path(__file__).parent / "page.css").read_text(encoding="utf-8")


def _text(value: object) -> str:
    return html.escape(str(value))


def _figures(page: Page) -> str:
    every = [card for several in page.cards.values() for card in several]
    idle = sum(card.idle for card in every)
    figures = [
        ("Hosts", len(page.cards), "", ""),
        ("GPUs", len(every), "", f"{idle} idle" if idle else "none idle"),
        ("Instances", len(page.plans), "", ""),
    ]
    figures += [
        (VERDICTS[verdict].capitalize(), number, COLOURS[verdict], "")
        for verdict, number in reversed(verdicts_of(page.plans).items())
    ]
    items = "".join(
        f'<div class="surface"><dt>{title}</dt><dd class="{colour}">{number}<small>{note}</small></dd></div>'
        for title, number, colour, note in figures
    )
    return f'<dl class="figures">{items}</dl>'


def _attention(found: Sequence[Attention]) -> str:
    if not found:
        return '<h2>Warnings</h2><p class="calm">None. Every instance fits as asked.</p>'
    items = "".join(
        f'<li class="{item.level}"><b>{_text(item.subject)}</b> on {_text(_places(item.hosts))}'
        f"{': ' if item.title else ''}{_text(item.title)}{_list(item.texts)}</li>"
        for item in found
    )
    return f'<h2>Warnings</h2><ul class="attention">{items}</ul>'


def _places(hosts: Sequence[str], most: int = 12) -> str:
    """The names of hosts; of very many, the first and their number."""
    if len(hosts) <= most:
        return ", ".join(hosts) or "no host"
    return f"{', '.join(hosts[:most])} and {len(hosts) - most} more"


def _hosts(page: Page) -> str:
    tiles = "".join(_host(page, host, cards) for host, cards in page.cards.items())
    return f'<h2>Hosts</h2><div class="hosts">{tiles}</div>{_legend()}'


def _host(page: Page, host: str, cards: Sequence[Card]) -> str:
    facts = page.hosts.get(host)
    stopped = "".join(
        f'<p><a href="#{group.anchor}">{_text(group.name)}</a> {_chip(group.plan["verdict"])}</p>'
        for group in page.groups
        if host in group.hosts and group.plan["verdict"] not in RUNNING
    )
    if not cards:
        why = "No plan." if facts is not None and not facts else "No GPU that works."
        return f'<div class="host surface unread"><h3>{_text(host)}</h3><p class="muted">{why}</p>{stopped}</div>'
    kinds = [card.name for card in cards]
    named = ", ".join(f"{kinds.count(kind)} × {kind}" for kind in dict.fromkeys(kinds))
    driver = f", driver {facts['driver_version']}" if facts and facts.get("driver_version") else ""
    head = f'<h3>{_text(host)}</h3><p class="muted">{_text(named + driver)}</p>'
    return f'<div class="host surface">{head}{"".join(_host_card(page, card) for card in cards)}{stopped}</div>'


def _host_card(page: Page, card: Card) -> str:
    names = [str(plan.get("name") or "instance") for plan, _budget in card.takers]
    takers = ", ".join(f'<a href="#{page.anchors[name, card.host]}">{_text(name)}</a>' for name in names)
    state = takers or ("idle" if card.idle else "used by others")
    free = card.total_gib - card.others_gib - sum(_engine_gib(budget) for _plan, budget in card.takers)
    return (
        f'<div class="card"><span>GPU {_text(card.index)}: {state}</span>'
        f'<span class="muted">{max(0.0, free):.1f} of {card.total_gib:.1f} GiB free</span></div>{_small_bar(card)}'
    )


def _parts(budget: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Title and GiB of what an engine takes of a card."""
    return [(title, max(0.0, budget[key]["value"])) for key, _letter, title in TERMS if key != "others_gib"]


def _engine_gib(budget: Mapping[str, Any]) -> float:
    return sum(size for _title, size in _parts(budget))


def _small_bar(card: Card) -> str:
    parts = [("others", card.others_gib, "")]
    for plan, budget in card.takers:
        first = "next "
        for title, size in _parts(budget):
            parts.append((f"{plan.get('name')}: {title}", size, first))
            first = ""
    whole = max(card.total_gib, sum(size for _title, size, _extra in parts)) or 1.0
    spans = "".join(
        f'<span class="{extra}{_class(title.rpartition(": ")[2])}" style="width:{100 * size / whole:.2f}%" '
        f'title="{_text(title)} {size:.2f} GiB"></span>'
        for title, size, extra in parts
        if size > 0
    )
    told = "; ".join(f"{title} {size:.1f} GiB" for title, size, _extra in parts if size > 0) or "nothing in use"
    return f'<div class="bar small" role="img" aria-label="{_text(told)}">{spans}</div>'


def _class(title: str) -> str:
    return title.lower().replace(" ", "-")


def _legend(uncertain: bool = False) -> str:
    items = "".join(f'<span><i class="{_class(title)}"></i>{title}</span>' for _key, _letter, title in TERMS)
    items += '<span><i class="free"></i>free</span>'
    if uncertain:
        items += '<span><i class="range"></i>where the KV pool may begin</span>'
    return f'<p class="legend">{items}</p>'


def _instances(groups: Sequence[Group]) -> str:
    titles = (
        "Instance",
        "Verdict",
        "Hosts",
        "GPUs each",
        "Release",
        "Tokens a request",
        "Requests at once",
        "KV tokens",
    )
    head = "".join(f"<th{' class=number' if index > 4 else ''}>{title}</th>" for index, title in enumerate(titles))
    rows = "".join(
        "<tr>"
        + "".join(_cell(title, value, index > 4) for index, (title, value) in enumerate(zip(titles, row, strict=True)))
        + "</tr>"
        for row in map(_instance_row, groups)
    )
    table = f'<table class="rows"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<h2>Instances</h2><div class="surface">{table}</div>'


def _cell(title: str, value: str, number: bool) -> str:
    return f'<td data-title="{title}"{" class=number" if number else ""}><span>{value}</span></td>'


def _instance_row(group: Group) -> Iterator[str]:
    plan, kv = group.plan, group.plan["kv"]
    works = plan["verdict"] in ("fits", "fits_reduced")
    yield f'<a href="#{group.anchor}">{_text(group.name)}</a>'
    yield _chip(plan["verdict"])
    yield _text(_places(group.hosts))
    yield str(len(plan["budget"])) if plan["budget"] and works else "–"
    yield _text(plan["release"]["version"])
    yield f"{kv['max_model_len']:,}" if works and kv.get("max_model_len") else "–"
    yield f"{int(kv['max_concurrency_low']):,}" if works and kv.get("tokens") else "–"
    yield f"{kv['tokens']:,}" if works and kv.get("tokens") else "–"


def _chip(verdict: str) -> str:
    return f'<span class="chip {verdict}">{SIGNS[verdict]} {VERDICTS[verdict].capitalize()}</span>'


def _plan(group: Group) -> str:
    plan = group.plan
    head = (
        f"<header><h3>{_text(group.name)}</h3>{_chip(plan['verdict'])}"
        f'<span class="muted">vLLM {_text(plan["release"]["version"])} on {_text(_places(group.hosts))}</span></header>'
    )
    parts = [
        f'<section class="plan surface" id="{group.anchor}">{head}',
        *(f"<p>{_text(line)}.</p>" for line in [*summary(plan), *_replicas(group)]),
        *(_card(labels, budget) for labels, budget in alike(plan["budget"])),
        _details(needs_title(plan), _list(plan["needs"]), opened=True),
        _details("Warnings", _list(plan["warnings"]), opened=True),
        _details(
            f"Arguments: {', '.join(argument['name'] for argument in plan['arguments'])}",
            _reasons(map(_argument, plan["arguments"])),
        ),
        _details("What was decided, and why", _reasons(map(_decision, plan["decisions"]))),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _replicas(group: Group) -> Iterator[str]:
    shown = list(group.plan["devices"])
    if len(group.hosts) > max(1, len(shown)):
        yield f"The same on {len(group.hosts)} hosts; shown is {_places(shown or group.hosts[:1])}"


def _card(labels: Sequence[str], budget: Mapping[str, Any]) -> str:
    shares = [(title, max(0.0, budget[key]["value"])) for key, _letter, title in TERMS]
    whole = budget["total_gib"]["value"] or 1.0
    # What does not fit is longer than the card: then the bar shows all of it, and where the card ends.
    longest = max(whole, sum(size for _title, size in shares))
    spans = "".join(_part(title, size, longest) for title, size in shares if size > 0)
    spans += _between(budget, longest) if longest == whole else _beyond(whole / longest)
    pool = budget["kv_pool_gib"]["value"]
    outcome = f"{pool:.2f} GiB for the KV cache" if pool >= 0 else f"{-pool:.2f} GiB too little"
    label = (
        f'<div class="label"><span>{_text(", ".join(labels))} <span class="muted">{_text(budget["name"])}, '
        f"{whole:.1f} GiB</span></span><b>{outcome}</b></div>"
    )
    told = "; ".join(f"{title} {size:.2f} GiB" for title, size in shares if size > 0)
    image = f'<div class="bar" role="img" aria-label="{_text(told)}">{spans}</div>'
    return label + image + _details("How the memory is derived", _derivation(budget))


def _part(title: str, size: float, longest: float) -> str:
    share = size / longest
    number = f"<b>{title} {size:.1f}</b>" if share >= LABELLED_SHARE else ""
    return (
        f'<span class="{_class(title)}" style="width:{100 * share:.2f}%" title="{title} {size:.2f} GiB">{number}</span>'
    )


def _between(budget: Mapping[str, Any], longest: float) -> str:
    """The hatched range in which the KV pool begins: its end is fixed, what is before it is predicted."""
    pool = budget["kv_pool_gib"]
    end = sum(max(0.0, budget[key]["value"]) for key, _letter, _title in TERMS)
    left, width = (end - pool["high"]) / longest, (pool["high"] - pool["low"]) / longest
    if width <= 0:
        return ""
    return (
        f'<span class="between" style="left:{100 * left:.2f}%;width:{100 * width:.2f}%" '
        f'title="KV pool between {pool["low"]:.2f} and {pool["high"]:.2f} GiB"></span>'
    )


def _beyond(share: float) -> str:
    return f'<span class="beyond" style="left:{100 * share:.2f}%" title="more than the card has"></span>'


def _derivation(budget: Mapping[str, Any]) -> str:
    terms = [("total_gib", "card"), ("free_gib", "free before the start"), ("requested_gib", "for vLLM")]
    terms += [(key, title) for key, _letter, title in TERMS] + [("headroom_gib", "left free")]
    head = '<tr><th>GiB</th><th class="number">expected</th><th class="number">from</th><th class="number">to</th>'
    rows = "".join(
        f"<tr><td>{title}</td>"
        + "".join(f'<td class="number">{budget[key][bound]:.2f}</td>' for bound in ("value", "low", "high"))
        + f'<td class="muted">{_text(budget[key]["source"])}</td></tr>'
        for key, title in terms
        if key != "others_gib" or budget[key]["value"]
    )
    return f'<table class="terms"><thead>{head}<th>known as</th></tr></thead><tbody>{rows}</tbody></table>'


def _details(title: str, inner: str, opened: bool = False) -> str:
    return f"<details{' open' if opened else ''}><summary>{_text(title)}</summary>{inner}</details>" if inner else ""


def _list(texts: Iterable[str]) -> str:
    items = "".join(f"<li>{_text(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def _reasons(items: Iterable[tuple[str, str, str]]) -> str:
    entries = "".join(
        f'<div><dt>{title}</dt><dd>{_text(why)}</dd><dd class="muted">Cost: {_text(cost)}</dd></div>'
        for title, why, cost in items
    )
    return f'<dl class="reasons">{entries}</dl>' if entries else ""


def _argument(argument: Mapping[str, Any]) -> tuple[str, str, str]:
    title = f"<code>{_text(argument['name'])} = {_text(written(argument['value']))}</code>"
    return title, str(argument["why"]), str(argument["cost"])


def _decision(decision: Mapping[str, Any]) -> tuple[str, str, str]:
    step = STEPS.get(decision["step"], "Given")
    return f"{step}: {_text(decision['decision'])}", str(decision["why"]), str(decision["cost"])
