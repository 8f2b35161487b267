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
from .fleet import (
    Attention,
    Card,
    Group,
    alike_cards,
    alike_hosts,
    anywhere,
    attention_of,
    cards_of,
    groups_of,
    replicas_told,
    unplanned,
    verdicts_of,
)
from .words import (
    DECISIONS,
    RUNNING,
    SOURCES,
    STEPS,
    TERMS,
    VERDICTS,
    Budget,
    Plan,
    alike,
    arguments_title,
    cards_named,
    count,
    decisions_of,
    merged,
    named,
    needs_title,
    numbered,
    summary,
)

TITLE = "vLLM plans of the fleet"

LABELLED_SHARE = 0.09
"""Parts of a bar that are smaller have no room for their number; it is in the tooltip and in the derivation."""

SIGNS = {"fits": "✓", "fits_reduced": "▾", "unverified": "?", "does_not_fit": "✕", "unsupported": "✕"}
COLOURS = {"fits": "good", "fits_reduced": "fair", "unverified": "open", "does_not_fit": "bad", "unsupported": "bad"}

MOST_NAMES_OF_A_WARNING = 12
MOST_TILES = 24
"""Hosts that differ are shown in so many tiles; the others unfold."""


@dataclass(frozen=True)
class Page:
    """What the page is made of. reasons: why hosts have no plan, by host."""

    plans: Sequence[Plan]
    hosts: Mapping[str, Mapping[str, Any]]
    groups: Sequence[Group]
    cards: Mapping[str, Sequence[Card]]
    reasons: Mapping[str, str]

    @functools.cached_property
    def groups_by_host(self) -> dict[str, list[Group]]:
        found: dict[str, list[Group]] = {}
        for group in self.groups:
            for host in dict.fromkeys(group.hosts):
                found.setdefault(host, []).append(group)
        return found

    def anchor(self, name: str, host: str) -> str:
        """Where the plan of an instance on a host is told."""
        return next(group.anchor for group in self.groups_by_host[host] if group.name == name)


def fleet_page(
    plans: Sequence[Plan], hosts: Mapping[str, Mapping[str, Any]], failures: Mapping[str, Any] | None = None
) -> str:
    """The page: what needs attention, the fleet in numbers, every card of every host, all instances, each plan.

    plans: items of what plan() returned, of all hosts. hosts: what gpu_info returned, by inventory name; empty for a
    host that could not be read. failures: what Ansible returned for the task that failed, by host. The same input gives
    the same bytes.
    """
    reasons = unplanned(plans, hosts, failures or {})
    known = {**{host: {} for host in reasons}, **hosts}
    page = Page(plans, hosts, groups_of(plans), cards_of(plans, known), reasons)
    body = [
        f"<h1>{TITLE}</h1>",
        _attention(attention_of(page.groups, hosts, reasons)),
        f"<h2>Fleet</h2>{_figures(page)}",
        _hosts(page),
        _instances(page.groups),
        *([f"<h2>Plans</h2>{_legend(uncertain=True)}", *map(_plan, page.groups), _sources()] if page.groups else []),
    ]
    return document(TITLE, body)


def document(title: str, body: Iterable[str], *styles: str) -> str:
    """A whole page of its parts. styles: files with more rules, beside page.css."""
    rules = "".join(map(_style, ("page.css", *styles)))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>\n{rules}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


@functools.cache
def _style(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


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
    if page.reasons:
        figures.append(("No plan", len(page.reasons), "bad", "hosts"))
    items = "".join(
        f'<div class="surface"><dt>{title}</dt><dd class="{colour}">{number}<small>{note}</small></dd></div>'
        for title, number, colour, note in figures
    )
    return f'<dl class="figures">{items}</dl>'


def _attention(found: Sequence[Attention]) -> str:
    if not found:
        return '<h2>Warnings</h2><p class="calm">None. Every instance fits as asked.</p>'
    items = "".join(
        f'<li class="{item.level}"><b>{_text(item.subject)}</b> on {_names(item.hosts)}'
        f"{': ' if item.title else ''}{_text(item.title)}{_list(item.texts)}</li>"
        for item in found
    )
    return f'<h2>Warnings</h2><ul class="attention">{items}</ul>'


def _names(hosts: Sequence[str], most: int = MOST_NAMES_OF_A_WARNING) -> str:
    """The names of hosts; of very many, the first, and the others to unfold."""
    several = list(dict.fromkeys(hosts))
    if len(several) <= most:
        return _text(", ".join(several) or "no host")
    return (
        f'{_text(", ".join(several[:most]))} <details class="more"><summary>and {len(several) - most:,} more</summary>'
        f"{_text(', '.join(several[most:]))}</details>"
    )


def _hosts(page: Page) -> str:
    also = {
        host: [anywhere(page.reasons.get(host, ""), host), _driver(page, host), _stopped(page, host)]
        for host in page.cards
    }
    tiles = [_host(page, hosts) for hosts in alike_hosts(page.cards, also)]
    shown, more = "".join(tiles[:MOST_TILES]), "".join(tiles[MOST_TILES:])
    folded = _details(f"{len(tiles) - MOST_TILES:,} more", f'<div class="hosts">{more}</div>') if more else ""
    return f'<h2>Hosts</h2><div class="hosts">{shown}</div>{folded}{_legend()}'


def _driver(page: Page, host: str) -> str:
    version = (page.hosts.get(host) or {}).get("driver_version")
    return f", driver {version}" if version else ""


def _stopped(page: Page, host: str) -> str:
    """The instances of a host that cannot run as asked."""
    return "".join(
        f'<p><a href="#{group.anchor}">{_text(group.name)}</a> {_chip(group.verdict)}</p>'
        for group in page.groups_by_host.get(host, ())
        if group.verdict not in RUNNING
    )


def _host(page: Page, hosts: Sequence[str]) -> str:
    """One tile for hosts that look the same."""
    host, cards = hosts[0], page.cards[hosts[0]]
    title = f"<h3>{_text(host)}</h3>"
    if len(hosts) > 1:
        title = (
            f"<h3>{_text(host)} <small>and {count(len(hosts) - 1, 'host')} like it</small></h3>"
            f'<details class="more"><summary>Names</summary>{_text(", ".join(hosts))}</details>'
        )
    if not cards:
        why = "No plan." if host in page.reasons else "No GPU that works."
        inner = f'<p class="muted">{why}</p>{_stopped(page, host)}'
        return f'<div class="host surface unread">{title}{inner}</div>'
    kinds = [card.name for card in cards]
    told = ", ".join(f"{kinds.count(kind)} × {kind}" for kind in dict.fromkeys(kinds))
    head = f'{title}<p class="muted">{_text(told + _driver(page, host))}</p>'
    lost = '<p class="muted">No plan.</p>' if host in page.reasons else ""
    bars = "".join(_host_cards(page, several) for several in alike_cards(cards))
    return f'<div class="host surface">{head}{lost}{bars}{_stopped(page, host)}</div>'


def _host_cards(page: Page, cards: Sequence[Card]) -> str:
    """One bar for cards that look the same."""
    card = cards[0]
    names = [str(plan.get("name") or "instance") for plan, _budget in card.takers]
    takers = ", ".join(f'<a href="#{page.anchor(name, card.host)}">{_text(name)}</a>' for name in names)
    state = takers or ("idle" if card.idle else "used by others")
    free = card.total_gib - card.others_gib - sum(_engine_gib(budget) for _plan, budget in card.takers)
    return (
        f'<div class="card"><span>{numbered([one.index or 0 for one in cards])}: {state}</span><span class="muted">'
        f"{max(0.0, free):.1f} of {card.total_gib:.1f} GiB free{' each' if len(cards) > 1 else ''}</span></div>"
        f"{_small_bar(card)}"
    )


def _parts(budget: Budget) -> list[tuple[str, float]]:
    """Title and GiB of what an engine takes of a card."""
    return [(title, max(0.0, budget[key]["value"])) for key, _letter, title in TERMS if key != "others_gib"]


def _engine_gib(budget: Budget) -> float:
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
    if not groups:
        return '<h2>Instances</h2><p class="muted">None.</p>'
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
    works = group.verdict in RUNNING
    yield f'<a href="#{group.anchor}">{_text(group.name)}</a>'
    yield _chip(plan["verdict"])
    yield _names(group.hosts)
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
        f"<header><h3>{_text(group.name)}</h3>{_chip(group.verdict)}"
        f'<span class="muted">vLLM {_text(plan["release"]["version"])} on {_text(named(group.hosts))}</span></header>'
    )
    shown = f"; shown is {named(list(plan['devices']) or group.hosts[:1])}"
    told = [*summary(plan), *([replicas_told(group) + shown] if replicas_told(group) else [])]
    parts = [
        f'<section class="plan surface" id="{group.anchor}">{head}',
        *(f"<p>{_text(line)}.</p>" for line in told),
        *(_card(cards, budget) for cards, budget in alike(plan["budget"])),
        _details(needs_title(plan), _list(merged(plan["needs"], plan["budget"])), opened=True),
        _details("Warnings", _list(merged(plan["warnings"], plan["budget"])), opened=True),
        _details(
            f"{arguments_title(plan)}: {', '.join(argument['name'] for argument in plan['arguments'])}",
            _reasons(map(_argument, plan["arguments"])),
        ),
        _details(DECISIONS, _reasons(map(_decision, decisions_of(plan)))),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _card(cards: Sequence[Budget], budget: Budget) -> str:
    shares = [(title, max(0.0, budget[key]["value"])) for key, _letter, title in TERMS]
    whole = budget["total_gib"]["value"] or 1.0
    # What does not fit is longer than the card: then the bar shows all of it, and where the card ends.
    longest = max(whole, sum(size for _title, size in shares))
    spans = "".join(_part(title, size, longest) for title, size in shares if size > 0)
    spans += _between(budget, longest) if longest == whole else _beyond(whole / longest)
    pool = budget["kv_pool_gib"]["value"]
    outcome = f"{pool:.2f} GiB for the KV cache" if pool >= 0 else f"{-pool:.2f} GiB too little"
    label = (
        f'<div class="label"><span>{_text(cards_named(cards))} <span class="muted">{_text(budget["name"])}, '
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


def _between(budget: Budget, longest: float) -> str:
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


def _derivation(budget: Budget) -> str:
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


def _sources() -> str:
    items = "".join(f"<dt>{source}</dt><dd>{meaning}</dd>" for source, meaning in SOURCES.items())
    return f'<section class="sources"><h2>How a size is known</h2><dl>{items}</dl></section>'


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
