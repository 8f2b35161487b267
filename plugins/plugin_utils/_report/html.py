# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plans of a fleet as one self-contained page: no script, no network, light and dark. Private to gpufleet.vllm."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .text import STEPS, TERMS, VERDICTS

TITLE = "vLLM plans of the fleet"

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --page: #ffffff; --soft: #f3f5f7; --line: #d5dae0; --muted: #59636e;
  --others: #8a8f98; --weights: #2f6fb5; --activation: #b5662f; --non-torch: #8a5fb0; --cuda-graphs: #a08a1c;
  --kv-pool: #2f8f5b; --good: #1f7a4a; --fair: #8a6d00; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ec; --page: #14171a; --soft: #1e2328; --line: #3a4149;
  --muted: #a3adb8; --others: #767c85; --weights: #5b9bdc; --activation: #d98b53; --non-torch: #b08ad6;
  --cuda-graphs: #c9b13f; --kv-pool: #55b982; --good: #5fc48e; --fair: #d9b84a; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 70rem; font: 1rem/1.5 system-ui, sans-serif; color: var(--text);
  background: var(--page); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-bottom: .25rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .35rem .75rem .35rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top; } td.number, th.number { text-align: right; }
.fits { color: var(--good); } .fits_reduced { color: var(--fair); } .does_not_fit, .unsupported { color: var(--bad); }
.verdict { font-weight: 600; white-space: nowrap; }
.plan { border-top: 2px solid var(--line); margin-top: 2rem; padding-top: .5rem; }
.bar { display: flex; height: 1.5rem; border-radius: .25rem; overflow: hidden; background: var(--soft);
  border: 1px solid var(--line); margin: .25rem 0 .75rem; } .bar span { min-width: 2px; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1rem; color: var(--muted); font-size: .9rem; }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem; margin-right: .35rem; }
.others { background: var(--others); } .weights { background: var(--weights); }
.activation { background: var(--activation); }
.non-torch { background: var(--non-torch); } .cuda-graphs { background: var(--cuda-graphs); }
.kv-pool { background: var(--kv-pool); }
.warnings { border-left: .25rem solid var(--fair); background: var(--soft); padding: .5rem 1rem; }
.muted { color: var(--muted); } code { overflow-wrap: anywhere; } summary { cursor: pointer; }
""".strip()


def fleet_page(plans: Sequence[Mapping[str, Any]], hosts: Mapping[str, Any]) -> str:
    """The page: warnings first, then all instances in a table, then each plan with its memory and its derivation."""
    body = "\n".join([f"<h1>{TITLE}</h1>", _warnings(plans), _overview(plans), _legend(), *map(_plan, plans)])
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{TITLE}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _text(value: object) -> str:
    return html.escape(str(value))


def _name(plan: Mapping[str, Any]) -> str:
    return str(plan.get("name") or "instance")


def _anchor(plan: Mapping[str, Any]) -> str:
    where = "-".join(sorted(plan.get("devices") or {}))
    return html.escape(f"{_name(plan)}-{where}".replace(" ", "_"))


def _warnings(plans: Sequence[Mapping[str, Any]]) -> str:
    items = [
        f"<li><b>{_text(_name(plan))}</b>: {_text(text)}</li>"
        for plan in plans
        for text in [*(plan["needs"] if plan["verdict"] in ("does_not_fit", "unsupported") else ()), *plan["warnings"]]
    ]
    if not items:
        return '<p class="muted">No warnings.</p>'
    return f'<section class="warnings"><h2>Warnings</h2><ul>{"".join(items)}</ul></section>'


def _overview(plans: Sequence[Mapping[str, Any]]) -> str:
    head = ("Instance", "Verdict", "Hosts", "GPUs", "Release", "KV tokens", "Requests at once")
    rows = "".join(f"<tr>{''.join(_overview_cells(plan))}</tr>" for plan in plans)
    titles = "".join(f"<th{' class=number' if index > 4 else ''}>{title}</th>" for index, title in enumerate(head))
    table = f"<table><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<h2>Instances</h2><div class="wide">{table}</div>'


def _overview_cells(plan: Mapping[str, Any]) -> Iterator[str]:
    yield f'<td><a href="#{_anchor(plan)}">{_text(_name(plan))}</a></td>'
    yield f"<td>{_verdict(plan)}</td>"
    yield f"<td>{_text(', '.join(plan['devices']) or '-')}</td>"
    yield f"<td>{sum(map(len, plan['devices'].values())) or '-'}</td>"
    yield f"<td>{_text(plan['release']['version'])}</td>"
    for figure in ("tokens", "max_concurrency"):
        value = plan["kv"].get(figure)
        yield f'<td class="number">{f"{value:,}" if value else "-"}</td>'


def _verdict(plan: Mapping[str, Any]) -> str:
    return f'<span class="verdict {plan["verdict"]}">{VERDICTS[plan["verdict"]].capitalize()}</span>'


def _class(title: str) -> str:
    return title.lower().replace(" ", "-")


def _legend() -> str:
    items = "".join(f'<span><i class="{_class(title)}"></i>{title}</span>' for _, _, title in TERMS)
    return f'<p class="legend">{items}</p>'


def _plan(plan: Mapping[str, Any]) -> str:
    parts = [
        f'<section class="plan" id="{_anchor(plan)}"><h2>{_text(_name(plan))}: {_verdict(plan)}</h2>',
        *(_card(budget) for budget in plan["budget"]),
        _details("Arguments", [_argument(argument) for argument in plan["arguments"]]),
        _details("Decisions", [_decision(decision) for decision in plan["decisions"]]),
        _details("What would make it fit", [f"<li>{_text(need)}</li>" for need in plan["needs"]]),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _card(budget: Mapping[str, Any]) -> str:
    whole = budget["total_gib"]["value"] or 1.0
    shares = [(title, max(0.0, budget[key]["value"])) for key, _, title in TERMS]
    # Terms of an engine that does not fit are longer than the card: then the bar shows their proportions.
    longest = max(whole, sum(size for _, size in shares))
    bar = "".join(
        f'<span class="{_class(title)}" style="width:{100 * size / longest:.2f}%" '
        f'title="{title} {size:.2f} GiB"></span>'
        for title, size in shares
        if size > 0
    )
    pool = budget["kv_pool_gib"]
    label = (
        f"{_text(budget['host'])} GPU {budget['gpu']} <span class=muted>{_text(budget['name'])}, {whole:.2f} GiB; "
        f"KV pool {pool['value']:.2f} GiB ({pool['low']:.2f} to {pool['high']:.2f})</span>"
    )
    image = f'<div class="bar" role="img" aria-label="Memory of GPU {budget["gpu"]}">{bar}</div>'
    return f"<div>{label}{image}<details><summary>Derivation</summary>{_derivation(budget)}</details></div>"


def _derivation(budget: Mapping[str, Any]) -> str:
    terms = [("total_gib", "total"), ("free_gib", "free before the start"), ("requested_gib", "requested")]
    terms += [(key, title) for key, _, title in TERMS] + [("headroom_gib", "left free")]
    numbers = "".join(f'<th class="number">{title}</th>' for title in ("GiB", "from", "to"))
    head = f"<tr><th>Term</th>{numbers}<th>Source</th></tr>"
    rows = "".join(
        f"<tr><td>{title}</td>"
        + "".join(f'<td class="number">{budget[key][bound]:.2f}</td>' for bound in ("value", "low", "high"))
        + f"<td>{_text(budget[key]['source'])}</td></tr>"
        for key, title in terms
    )
    return f'<div class="wide"><table>{head}{rows}</table></div>'


def _details(title: str, items: Iterable[str]) -> str:
    inner = "".join(items)
    return f"<details open><summary>{title}</summary><ul>{inner}</ul></details>" if inner else ""


def _argument(argument: Mapping[str, Any]) -> str:
    value = argument["value"] if isinstance(argument["value"], str) else json.dumps(argument["value"])
    return (
        f"<li><code>{_text(argument['name'])} = {_text(value)}</code><br>{_text(argument['why'])}"
        f'<br><span class="muted">Cost: {_text(argument["cost"])}</span></li>'
    )


def _decision(decision: Mapping[str, Any]) -> str:
    return (
        f"<li>{_text(STEPS.get(decision['step'], 'Given'))}: {_text(decision['decision'])}<br>{_text(decision['why'])}"
        f'<br><span class="muted">Cost: {_text(decision["cost"])}</span></li>'
    )
