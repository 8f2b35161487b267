# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""plan(): from an instance and the facts of its hosts to a plan. Private to the collection gpufleet.vllm."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from .._catalogue import format_releases, releases_with_architecture
from .arguments import arguments_of
from .case import Case, Goal, basis_of, fingerprint, read_case, strongest_cards
from .current import keep_current
from .decisions import decisions_of, needs_of, warnings_of
from .hosts import cards_without_memory
from .overhead import coefficients
from .parallelism import LARGEST_DIVISION, division_faults, divisors
from .search import Choice, choose, with_receipt
from .settings import PARTITION
from .shape import stage_slices
from .span_layouts import span_rules
from .verdicts import FITTING

Plan = dict[str, Any]

PLAN_KEYS = (
    "verdict",
    "release",
    "parallel",
    "budget",
    "kv",
    "arguments",
    "environment",
    "decisions",
    "warnings",
    "needs",
    "errors",
    "devices",
    "workload",
    "basis",
    "planner",
)


def plan(instance: dict[str, Any], hosts: list[dict[str, Any]]) -> Plan:
    """Predicts what vLLM will do with the memory of every GPU and chooses what the instance leaves open.

    Args:
        instance: one entry of `vllm_instances`, its `checkpoint` replaced by what describe_checkpoint() returned;
            `current_plan` (optional) is the plan that runs now.
        hosts: what gpu_info returns, in rank order; `name` (optional) is the inventory name.

    Returns: the plan: `verdict` (one of VERDICTS), `release`, `parallel`, `budget` (GiB of each GPU, each term with
        value, low, high and source), `kv` (`bytes_per_token` of one GPU; `tokens` and `max_concurrency` as vLLM logs
        them, with `_low` and `_high`), `arguments`, `environment`, `decisions`, `warnings`, `needs`, `errors`
        (arguments that the release does not take), `devices` (host name to UUIDs), `workload` (what is kept of the
        promise), `basis` (a fingerprint of what was asked for), `planner` (one of the planner's coefficients).

    Raises: InstanceError for an instance that nobody can plan with (no tag, a value of the wrong type).
    """
    case = read_case(instance, hosts)
    strongest = case if case.spans else strongest_cards(case)
    first = _plan(strongest, instance)
    if strongest is case or first["verdict"] in ("fits", "unverified"):
        return first
    # With the weaker cards, precision is lower: only where that keeps the whole promise.
    second = _plan(case, instance)
    return second if second["verdict"] == "fits" or first["verdict"] not in FITTING else first


def _plan(case: Case, instance: Mapping[str, Any]) -> Plan:
    rules = unsupported_rules(case)
    if rules:
        return _describe(case, predicted(case), "unsupported", rules)
    case = with_receipt(case)
    refused_length = length_rule(case)
    if refused_length:
        return _describe(case, choose(case), "unsupported", [refused_length])
    current = instance.get("current_plan")
    kept = keep_current(case, current)
    choice = kept or choose(case)
    if choice is None:
        return _describe(case, None, "does_not_fit", needs_of(case, None))
    if kept and current and current.get("planner") == planner():
        return _as_it_was(current)
    verdict = verdict_of(case, choice)
    needs = needs_of(case, choice) if verdict == "does_not_fit" or is_cut(case, choice) else []
    return _describe(case, choice, verdict, needs)


def verdict_of(case: Case, choice: Choice) -> str:
    """unverified: the low end of what is not understood holds the promise, or what is kept of it."""
    if not choice.fits:
        return "does_not_fit"
    if case.model.unverified:
        return "unverified"
    return "fits_reduced" if is_cut(case, choice) else "fits"


def is_cut(case: Case, choice: Choice) -> bool:
    """Whether a promise of the workload is kept in part only."""
    return case.workload.stated and (choice.reduced or bool(case.cuts))


def predicted(case: Case) -> Choice | None:
    """What the memory would do where a rule of driver or card forbids the start, if the division is pinned: another
    build of the release may run there. None where the rule leaves nothing to predict."""
    pinned = "tensor_parallel_size" in case.pins and not case.spans
    if not pinned or not knows_architecture(case) or case.errors or division_rules(case):
        return None
    return choose(case) if any(host.gpus for host in case.hosts) else None


def knows_architecture(case: Case) -> bool:
    return case.release.supports_architecture(case.shape.architecture) or bool(case.pins.text("model_impl"))


def unsupported_rules(case: Case) -> list[str]:
    """The rules that the instance breaks whatever the memory: arguments, architecture, cards, division."""
    rules = [str(error["message"]) for error in case.errors]
    if not knows_architecture(case):
        rules.append(_unknown_architecture(case, case.shape.architecture))
    rules += [rule for rule in case.precision.rules if rule not in rules and not rule.startswith("architecture")]
    rules += [*division_rules(case), *span_rules(case), *batch_rules(case)]
    if not any(host.gpus for host in case.hosts):
        rules.append(_no_gpu(case))
    return rules


def _no_gpu(case: Case) -> str:
    unknown = [f"{name} on {host.name}" for host in case.hosts for name in cards_without_memory(host.facts)]
    if unknown:
        return (
            f"the memory of {', '.join(unknown)} is not known: nvidia-smi does not tell that of unified memory; "
            "gpufleet.vllm.gpu_info takes it from the host: run it there"
        )
    names = ", ".join(host.name for host in case.hosts) or "no host"
    return f"no usable GPU on {names}: run nvidia-smi there, and compare with the instance's gpus"


LENGTH_SWITCH = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
STRETCHING_PINS = ("hf_overrides", "rope_scaling", "rope_theta")
"""They change what vLLM takes for the model's maximum."""


def length_rule(case: Case) -> str | None:
    """vLLM refuses a max_model_len above the model's own (vllm/config/model.py, _get_and_verify_max_len)."""
    pinned, most = case.pins.integer("max_model_len"), case.shape.max_model_len
    environment = case.instance.get("environment") or {}
    allowed = str(environment.get(LENGTH_SWITCH, "")).strip().lower() in ("1", "true")
    stretched = any(name in case.pins for name in STRETCHING_PINS)
    if not pinned or not most or pinned <= most or allowed or stretched:
        return None
    return (
        f"max_model_len {pinned:,}: vLLM {case.release} refuses more than the model's {most:,}; take at most that, "
        f"stretch the model with {'rope_scaling' if case.release.argument('rope_scaling') else 'hf_overrides'}, or set "
        f"environment.{LENGTH_SWITCH}: '1' and check the answers"
    )


def division_rules(case: Case) -> list[str]:
    """The pinned sizes by which the model cannot be divided, each with the sizes by which it can."""
    rules = []
    tensor, pipeline = case.pins.integer("tensor_parallel_size"), case.pins.integer("pipeline_parallel_size")
    expert_parallel = bool(case.pins.flag("enable_expert_parallel"))
    faults = division_faults(case.shape, tensor or 1, expert_parallel, case.engines)
    if faults:
        right = ", ".join(str(size) for size in divisors(case.shape, LARGEST_DIVISION, expert_parallel, case.engines))
        engines = f" with data_parallel_size {case.engines}" if case.engines > 1 else ""
        rules.append(
            f"tensor_parallel_size {tensor or 1}{engines}: {'; '.join(faults)}; sizes that divide it: {right or 'none'}"
        )
    if expert_parallel and case.shape.experts is None:
        rules.append("enable_expert_parallel: the model has no experts, and vLLM refuses to start; leave it out")
    contexts = case.pins.integer("decode_context_parallel_size")
    if contexts and (tensor or 1) % contexts:
        rules.append(
            f"decode_context_parallel_size {contexts}: it divides the GPUs of tensor_parallel_size, now {tensor or 1}; "
            f"pin tensor_parallel_size to a multiple of {contexts}"
        )
    layers = case.shape.num_layers
    if pipeline and layers and pipeline > layers:
        rules.append(f"pipeline_parallel_size {pipeline}: the model has {layers} layers; 1 to {layers} divide them")
    return rules + partition_rules(case)


def partition_rules(case: Case) -> list[str]:
    """What vLLM refuses of VLLM_PP_LAYER_PARTITION (vllm/distributed/utils.py, get_pp_indices)."""
    parts, layers = case.layer_partition, case.shape.num_layers
    told = f"{PARTITION} {','.join(map(str, parts))}"
    rules = []
    if parts and layers and sum(parts) != layers:
        rules.append(f"{told}: the model has {layers} layers, not {sum(parts)}")
    if parts and (case.pins.integer("pipeline_parallel_size") or 1) != len(parts):
        rules.append(f"{told}: it is for {len(parts)} stages; pin engine_args.pipeline_parallel_size to {len(parts)}")
    return rules


def batch_rules(case: Case) -> list[str]:
    """vLLM refuses a batch that could not hold one token of every sequence (vllm/config/scheduler.py)."""
    sequences, tokens = case.pins.integer("max_num_seqs"), case.pins.integer("max_num_batched_tokens")
    if not sequences or not tokens or sequences <= tokens:
        return []
    return [
        f"max_num_batched_tokens {tokens:,}: vLLM {case.release} refuses less than max_num_seqs, {sequences:,}; take "
        f"at least that, or max_num_seqs {tokens:,}"
    ]


def _unknown_architecture(case: Case, name: str) -> str:
    knowing = releases_with_architecture(name)
    known = f"known to {format_releases(knowing)}" if knowing else "no release of the catalogue does"
    return (
        f"architecture: vLLM {case.release} does not know {name} ({known}); take a release that does, or one with a "
        "Transformers fallback (model_impl: transformers)"
    )


def _describe(case: Case, choice: Choice | None, verdict: str, needs: Sequence[str]) -> Plan:
    described: Plan = {
        "verdict": verdict,
        "release": {
            "version": case.release.version,
            "image": case.instance.get("image"),
            "cuda": case.release.cuda,
            "min_driver": case.release.min_driver,
            "unguarded_routes": case.release.unguarded_routes,
        },
        "parallel": {},
        "budget": [],
        "kv": {},
        "arguments": [],
        "environment": {str(key): str(value) for key, value in (case.instance.get("environment") or {}).items()},
        "decisions": decisions_of(case, choice),
        "warnings": warnings_of(case, choice),
        "needs": list(needs),
        "errors": [dict(error) for error in case.errors],
        "devices": {},
        "workload": {},
        "basis": basis_of(case),
        "planner": planner(),
    }
    if choice is not None:
        described.update(_describe_choice(case, choice))
    return described


def _as_it_was(current: Mapping[str, Any]) -> Plan:
    """The running plan, word for word: a few MiB more or less free must not change a file on the host."""
    return {key: current[key] for key in PLAN_KEYS if key in current}


@functools.cache
def planner() -> str:
    """A fingerprint of the coefficients: a plan of other coefficients is described anew, with its arguments kept."""
    return fingerprint(coefficients())


def _describe_choice(case: Case, choice: Choice) -> Mapping[str, Any]:
    layout = choice.start.layout
    devices: dict[str, list[str]] = {}
    for gpu in layout.gpus:
        devices.setdefault(gpu.host, []).append(gpu.uuid or str(gpu.index))
    return {
        "parallel": {
            "tensor_parallel_size": layout.tensor_parallel_size,
            "pipeline_parallel_size": layout.pipeline_parallel_size,
            "data_parallel_size": choice.start.settings.data_parallel_size,
            "gpus_per_host": layout.size // max(1, layout.hosts),
            "hosts": list(devices),
        },
        "budget": [{**budget.as_dict(), **_describe_stage(choice, budget.stage)} for budget in choice.start.budgets],
        "kv": _describe_kv(choice),
        "arguments": arguments_of(case, choice),
        "devices": devices,
        "workload": _describe_goal(choice.goal),
    }


def _describe_stage(choice: Choice, stage: int) -> Mapping[str, Any]:
    """The pipeline stage of a GPU and the layers on it, both from 0 on; nothing where there is one stage."""
    stages, count = choice.start.layout.pipeline_parallel_size, choice.start.model.shape.num_layers
    if stages == 1:
        return {}
    layers = stage_slices(count, stages, choice.start.settings.layer_partition)[stage]
    return {"stage": stage, "layers": f"{layers.start}-{layers.stop - 1}"}


def _describe_kv(choice: Choice) -> Mapping[str, Any]:
    found = choice.start
    if not found.kv.groups:
        return {"bytes_per_token": 0, "tokens": 0, "max_concurrency": 0.0, "block_size": None}
    per_token = float(found.kv.bytes_per_token)
    described: dict[str, Any] = {
        "bytes_per_token": int(per_token) if per_token.is_integer() else round(per_token, 2),
        "block_size": found.kv.groups[0].cache.block_size,
        "max_model_len": found.settings.max_model_len,
    }
    for bound, suffix in (("value", ""), ("low", "_low"), ("high", "_high")):
        described[f"tokens{suffix}"] = found.tokens(bound)
        described[f"max_concurrency{suffix}"] = round(found.concurrency(bound), 2)
    return described


def _describe_goal(goal: Goal) -> Mapping[str, Any]:
    return {"context": goal.context, "sequences": goal.sequences, "typical_context": goal.typical_context}
