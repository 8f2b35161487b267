# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs inside an environment with vLLM: answers what its own ``vllm serve`` parser knows and accepts.

Reads ``{"lines": [[word, ...], ...]}`` from standard input and prints one JSON document:
``{"version", "arguments": {dest: {...}}, "results": [{"values": {dest: value}} or {"error": message}, ...]}``.
"""

import argparse
import contextlib
import io
import json
import sys

lines = json.load(sys.stdin)["lines"]
sys.argv = ["vllm", "serve"]

with contextlib.redirect_stdout(sys.stderr):
    import vllm
    from vllm.entrypoints.cli.serve import ServeSubcommand

    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    serve = ServeSubcommand().subparser_init(parser.add_subparsers(required=False, dest="subparser"))


def describe(action):
    negative = {"--no-" + flag[2:] for flag in action.option_strings}
    return {
        "flags": [flag for flag in action.option_strings if flag not in negative],
        "kind": type(action).__name__,
        "nargs": action.nargs,
        "choices": [plain(choice) for choice in action.choices or []],
        "default": plain(action.default),
    }


def plain(value):
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    return {"object": repr(getattr(value, "value", value))}


def parse(words):
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return {"values": {key: plain(value) for key, value in vars(parser.parse_args(["serve", *words])).items()}}
    except SystemExit:
        return {"error": errors.getvalue().strip().splitlines()[-1]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


json.dump(
    {
        "version": vllm.__version__.split("+")[0],
        "arguments": {
            action.dest: describe(action) for action in serve._actions if not isinstance(action, argparse._HelpAction)
        },
        "results": [parse(words) for words in lines],
    },
    sys.stdout,
)
