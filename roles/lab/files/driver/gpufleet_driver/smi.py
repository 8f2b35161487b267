# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command nvidia-smi of the simulated driver: options, errors and exit codes as the real one has them."""

from __future__ import annotations

import datetime
import sys
import time
from typing import Sequence

from . import smi_csv, smi_text, smi_xml
from .profile import ERRORS, Device, Profile, load

NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
WRONG_ARGUMENTS = "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n"

# Options that take a value -> the name under which it is kept
WITH_VALUE = {
    "-i": "id",
    "--id": "id",
    "-f": "file",
    "--filename": "file",
    "-d": "display",
    "--display": "display",
    "--format": "format",
    "--query-gpu": "query_gpu",
    "--query-compute-apps": "query_compute_apps",
}
FLAGS = {
    "-q": "query",
    "--query": "query",
    "-x": "xml",
    "--xml-format": "xml",
    "-L": "list",
    "--list-gpus": "list",
    "--version": "version",
    "-h": "help",
    "--help": "help",
    "--help-query-gpu": "help_query_gpu",
}

USAGE = """NVIDIA System Management Interface, simulated by the lab of gpufleet.vllm

  nvidia-smi [-i ID] [-f FILE]
  nvidia-smi -q -x | -L | --version | --help-query-gpu
  nvidia-smi --query-gpu=FIELDS --format=csv[,noheader][,nounits]
  nvidia-smi --query-compute-apps=FIELDS --format=csv[,noheader][,nounits]
  nvidia-smi topo -m | nvlink --status
"""


class Failure(Exception):
    """What goes to stdout, as the real command does with its errors, and the exit code."""

    def __init__(self, text: str, code: int):
        super().__init__(text)
        self.text = text
        self.code = code


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    output = None
    try:
        options = parse(arguments)
        output = options.get("file")
        text, code = run(options), 0
    except Failure as failure:
        text, code = failure.text, failure.code
    if output:
        with open(output, "w", encoding="utf-8") as stream:
            stream.write(text)
    else:
        sys.stdout.write(text)
    return code


def parse(arguments: Sequence[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    rest = list(arguments)
    if rest and rest[0] in ("topo", "nvlink"):
        options["command"] = rest.pop(0)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name in WITH_VALUE and (equals or rest):
            options[WITH_VALUE[name]] = value if equals else rest.pop(0)
        elif name in FLAGS and not equals:
            options[FLAGS[name]] = "yes"
        elif options.get("command") and name in ("-m", "--matrix", "-s", "--status"):
            options["command"] += " " + name.lstrip("-")[0]
        else:
            raise Failure(f"Invalid argument: {name}\n{WRONG_ARGUMENTS}", 2)
    return options


def run(options: dict[str, str]) -> str:
    if "help" in options:
        return USAGE
    if options.get("command", "").startswith("topo") and "id" in options:
        raise Failure("The -i command line argument must be used in conjunction with -n or -p.\n", 2)
    profile = connect()
    if "version" in options:
        return smi_text.version(profile)
    if "help_query_gpu" in options:
        return 'List of valid properties to query for the switch "--query-gpu":\n\n' + "".join(
            name + "\n\n" for name in smi_csv.field_names(profile)
        )
    gpus = select(profile, options.get("id"))
    for gpu in gpus:
        check_handle(gpu)
    return show(profile, gpus, options)


def connect() -> Profile:
    """NVML starts, or the failure that the real command reports."""
    profile = load()
    if profile is None or profile.error == "not_loaded":
        raise Failure(NO_DRIVER + "\n", 9)
    time.sleep(float(profile.driver("hang_seconds", 0)))
    if profile.error:
        code, words = ERRORS.get(profile.error, ERRORS["unknown"])
        text = f"Failed to initialize NVML: {words}\n"
        if profile.error == "mismatch" and profile.version_tuple >= (535,):
            text += f"NVML library version: {'.'.join(profile.library_version.split('.')[:2])}\n"
        raise Failure(text, min(code, 255))
    return profile


def select(profile: Profile, wanted: str | None) -> list[Device]:
    """The GPUs of -i: indexes, UUIDs, serial numbers or bus ids, with commas between."""
    gpus = profile.gpus
    if wanted is not None:
        names = [name.strip().lower() for name in wanted.split(",")]
        gpus = [gpu for gpu in gpus if set(_names(gpu)) & set(names)]
    if not gpus:
        raise Failure("No devices were found\n", 6)
    return gpus


def _names(gpu: Device) -> list[str]:
    domain, bus, device = gpu.bus_id
    names = [str(gpu.index), str(gpu.identity("uuid")), str(gpu.identity("serial"))]
    names += [f"{domain:08x}:{bus:02x}:{device:02x}.0", f"{domain:04x}:{bus:02x}:{device:02x}.0"]
    return [name.lower() for name in names]


def check_handle(gpu: Device) -> None:
    """One GPU without a handle spoils the whole answer, even where the others are well."""
    error = gpu.fault("handle")
    if not error:
        return
    domain, bus, device = gpu.bus_id
    version = gpu.profile.version_tuple
    label = f"GPU{gpu.index}: " if version >= (545,) else "GPU" if version >= (510,) else "GPU "
    code, words = ERRORS.get(error, ERRORS["unknown"])
    if error == "gpu_is_lost":
        words += ".  Reboot the system to recover this GPU"
    place = f"{domain:04X}:{bus:02X}:{device:02X}.0"
    raise Failure(f"Unable to determine the device handle for {label}{place}: {words}\n", min(code, 255))


def show(profile: Profile, gpus: list[Device], options: dict[str, str]) -> str:
    if options.get("command") == "topo m":
        return smi_text.topology(profile)
    if options.get("command") == "nvlink s":
        return smi_text.nvlink_status(gpus)
    if "command" in options:
        raise Failure(WRONG_ARGUMENTS, 2)
    if "list" in options:
        return smi_text.list_gpus(gpus)
    if "query" in options:
        if "xml" not in options:
            raise Failure("nvidia-smi -q is simulated with -x only (lab of gpufleet.vllm)\n", 2)
        return smi_xml.document(profile, gpus, time.strftime("%a %b %e %H:%M:%S %Y"))
    if "query_gpu" in options or "query_compute_apps" in options:
        return query(profile, gpus, options)
    return smi_text.table(profile, gpus)


def query(profile: Profile, gpus: list[Device], options: dict[str, str]) -> str:
    formats = options.get("format", "").split(",")
    if formats[0] != "csv":
        raise Failure("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n", 2)
    stamp = datetime.datetime.now().strftime("%Y/%m/%d %H:%M:%S.%f")[:-3]
    function = smi_csv.query_gpu if "query_gpu" in options else smi_csv.query_compute_apps
    names = (options.get("query_gpu") or options.get("query_compute_apps") or "").split(",")
    try:
        return function(profile, gpus, [name.strip() for name in names], formats, stamp)
    except smi_csv.UnknownField as error:
        raise Failure(f"{error}\n", 2) from None
