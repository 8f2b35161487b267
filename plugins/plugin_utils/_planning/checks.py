# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an instance may hold before anybody plans with it. Private to the collection gpufleet.vllm.

Names become paths, units and containers, ports and variables become words of a command line: what is wrong there is
said here, and not by systemd or Docker after the engine that served was stopped.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from .._catalogue.serve_args import as_boolean
from .errors import Faults, InstanceError

# Docker's rule for the name of a container (moby, daemon/names): it also keeps "..", "/" and spaces out of paths.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
# Folders below /var/lib/vllm that belong to no instance (state_folder() and RECORDS of module_utils, FOLDER of _job).
RESERVED_NAMES = {"downloads", "images", "jobs", "manifests"}
# The grammar of a reference (github.com/distribution/reference), of which the tag is asked for elsewhere.
IMAGE = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::\d+)?/)?[a-z0-9][a-z0-9._/-]*:\w[\w.-]*(?:@sha256:[0-9a-f]{64})?")
# Arguments that an instance has a variable of its own for.
OWN_VARIABLES = {
    "host": "address",
    "port": "port",
    "served_model_name": "served_model_name",
    "model": "checkpoint",
    "model_tag": "checkpoint",
}
# POSIX.1-2017, Base Definitions 8.1: the name of an environment variable.
ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SECRET_VARIABLES = {"VLLM_API_KEY": "vllm_api_key"}
LAST_PORT = 65535
# vLLM reads -1 of max_model_len as "as much as fits".
LEAST = {
    "max_model_len": -1,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "kv_cache_memory_bytes": 1,
    "data_parallel_size": 1,
}


def check_instance(instance: Mapping[str, Any]) -> None:
    """Raises InstanceError with every name, port, address, variable and pin that no engine could be started with."""
    faults = Faults()
    faults.attempt(_check_name, instance.get("name"))
    name = str(instance.get("name"))
    faults.attempt(_check_image, name, instance.get("image"))
    faults.attempt(_check_line, name, "served_model_name", instance.get("served_model_name"))
    # The last line break of a YAML block is none of the text's.
    faults.attempt(_check_line, name, "description", str(instance.get("description") or "").strip())
    faults.attempt(_check_port, name, instance.get("port"))
    faults.attempt(_check_address, name, instance.get("address"))
    faults.attempt(_check_exposure, name, instance.get("exposure"), instance.get("address"))
    faults.attempt(_check_endpoint, name, instance.get("endpoint"))
    faults.attempt(_check_switch, name, "trust_remote_code", instance.get("trust_remote_code"))
    for variable, value in mapping_of(instance, "environment").items():
        faults.attempt(_check_variable, name, str(variable), value)
    for argument, value in mapping_of(instance, "engine_args").items():
        faults.attempt(_check_pin, name, str(argument), value)
        faults.attempt(_check_own, name, f"engine_args.{argument}", str(argument), value)
    for word in instance.get("extra_args") or ():
        faults.attempt(_check_own, name, "extra_args", str(word).partition("=")[0], word)
    faults.refuse()


def check_trust(instance: Mapping[str, Any]) -> None:
    """Raises InstanceError where code of the checkpoint would run by an argument, and not by trust_remote_code."""
    pins, words = instance.get("engine_args"), instance.get("extra_args")
    given = [str(name) for name in pins] if isinstance(pins, Mapping) else []
    given += [str(word).partition("=")[0].lstrip("-") for word in words] if isinstance(words, list) else []
    if "trust_remote_code" in [name.replace("-", "_") for name in given]:
        raise InstanceError(
            str(instance.get("name")),
            "trust_remote_code",
            instance.get("trust_remote_code"),
            "is not what engine_args or extra_args say",
            "Write trust_remote_code: true of the instance, beside its name: deployments list the code then.",
        )


def mapping_of(instance: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A variable that holds name: value pairs; empty where it is not given. Raises InstanceError."""
    value = instance.get(key)
    if value in (None, ""):
        return {}
    if not isinstance(value, Mapping):
        remedy = f"Write {key} as name: value pairs."
        raise InstanceError(str(instance.get("name") or ""), key, value, "is not a mapping", remedy)
    return value


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InstanceError(
            str(name),
            "name",
            name,
            "cannot be the name of a unit and a container",
            "Write letters, digits, '-', '_' and '.', and begin with a letter or digit, e.g. chat-1.",
        )

    if name in RESERVED_NAMES:
        fault = f"is taken: /var/lib/vllm/{name} is a folder of the collection"
        raise InstanceError(name, "name", name, fault, f"Take another name, e.g. {name}-1.")


def _check_image(name: str, image: Any) -> None:
    """What would be another word of a command. That it has a tag, and of which release, is asked for elsewhere."""
    if image is not None and ":" in str(image) and not IMAGE.fullmatch(str(image)):
        remedy = "Write [REGISTRY/]REPOSITORY:TAG[@sha256:DIGEST], e.g. vllm/vllm-openai:v0.32.0."
        raise InstanceError(name, "image", image, "is no name of an image", remedy)


def _check_line(name: str, variable: str, value: Any) -> None:
    """A line break would begin another line of the unit or of the smoke test."""
    if not str(value or "").isprintable():
        raise InstanceError(name, variable, value, "is not one printable line", "Write it in one line.")


def _check_own(name: str, where: str, argument: str, value: Any) -> None:
    """The engine, its port on the host, the smoke test and the route to it must speak of the same."""
    variable = OWN_VARIABLES.get(argument.lstrip("-").replace("-", "_"))
    is_flag = where != "extra_args" or argument.startswith("--")
    if variable and is_flag:
        remedy = f"Write {variable} of the instance, beside its name."
        raise InstanceError(name, where, value, f"is what the instance's {variable} says", remedy)


def _check_port(name: str, port: Any) -> None:
    if port is None:
        return
    if not str(port).isdecimal() or not 1 <= int(port) <= LAST_PORT:
        raise InstanceError(name, "port", port, "is no port", f"Write a number from 1 to {LAST_PORT}, e.g. 8000.")


def _check_address(name: str, address: Any) -> None:
    if address is None:
        return
    try:
        ipaddress.ip_address(str(address))
    except ValueError:
        remedy = "Write an IP address of the host, or 0.0.0.0 for all of them; without it, it is 127.0.0.1."
        raise InstanceError(name, "address", address, "is no IP address", remedy) from None


def _check_exposure(name: str, exposure: Any, address: Any) -> None:
    """Every release of vLLM answers some routes without the key (data/routes.json), so only loopback is strict."""
    if exposure not in (None, "open", "strict"):
        raise InstanceError(name, "exposure", exposure, "is no exposure", "Write strict or open.")
    if exposure != "strict" or address is None:
        return
    try:
        outside = not ipaddress.ip_address(str(address)).is_loopback
    except ValueError:
        return  # said of the address itself
    if outside:
        fault = (
            f"does not go with address {address}: vLLM answers routes such as /invocations and /metrics without a key"
        )
        remedy = "Leave address out (127.0.0.1) and put a proxy in front that lets only /v1 through, or write open."
        raise InstanceError(name, "exposure", exposure, fault, remedy)


def _check_endpoint(name: str, endpoint: Any) -> None:
    """Where clients reach the instance: a URL of scheme, host and port, to which paths such as /v1 are added."""
    if endpoint is None:
        return
    text = str(endpoint)
    try:
        url = urlsplit(text)
        good = url.scheme in ("http", "https") and url.hostname and (url.port is None or url.port > 0)
    except ValueError:
        good, url = False, urlsplit("")
    if (
        not good
        or re.search(r"\s", text)
        or url.path not in ("", "/")
        or url.query
        or url.fragment
        or "@" in url.netloc
    ):
        remedy = "Write http(s)://host[:port] without a path, e.g. https://llm.example.org or http://10.0.0.7:8000."
        # A URL may hold a password: what stands before the host is not shown.
        shown = re.sub(r"//.*@", "//...@", text) if isinstance(endpoint, str) else endpoint
        raise InstanceError(name, "endpoint", shown, "is no URL of a server", remedy)


def _check_switch(name: str, variable: str, value: Any) -> None:
    if value is not None and as_boolean(value) is None:
        raise InstanceError(name, variable, value, "is no boolean", "Write true or false.")


def _check_variable(name: str, variable: str, value: Any) -> None:
    where = f"environment.{variable}"
    if variable in SECRET_VARIABLES:
        remedy = f"Set {SECRET_VARIABLES[variable]} instead."
        raise InstanceError(name, where, "...", "is a secret, and the environment stands in the unit", remedy)
    if not ENVIRONMENT_NAME.fullmatch(variable):
        remedy = "Write letters, digits and '_', and do not begin with a digit."
        raise InstanceError(name, where, value, "is no name of an environment variable", remedy)
    if "\n" in str(value):
        raise InstanceError(name, where, value, "has more than one line", "Write it in one line.")


def _check_pin(name: str, argument: str, value: Any) -> None:
    where = f"engine_args.{argument}"
    if value is None:
        raise InstanceError(name, where, value, "is no value", "Give it one, or leave it out to have it planned.")
    number = _number(value)
    if argument == "gpu_memory_utilization" and number is not None and not 0 < number <= 1:
        raise InstanceError(name, where, value, "is no share of a card", "Write a number above 0, at most 1; e.g. 0.9.")
    least = LEAST.get(argument)
    if least is not None and number is not None and (number < least or number == 0):
        raise InstanceError(name, where, value, "is too small", f"Write a whole number of at least {max(least, 1)}.")


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
