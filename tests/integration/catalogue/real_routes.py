# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs inside an environment with vLLM: asks its own server, without an engine and without a key, for paths.

Reads ``{"method": METHOD, "paths": [path, ...]}`` from standard input and prints one JSON document: ``{"version",
"statuses": {path: status}, "methods": [every method of a route]}``.
"""

import contextlib
import json
import sys

asked = json.load(sys.stdin)
sys.argv = ["vllm", "serve"]

with contextlib.redirect_stdout(sys.stderr):
    import vllm
    from fastapi.testclient import TestClient

    try:
        from vllm.entrypoints.launchers.app import build_app
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    except ImportError:
        from vllm.entrypoints.openai.api_server import build_app
        from vllm.entrypoints.openai.cli_args import make_arg_parser
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser

    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", "none", "--api-key", "a-key"])
    app = build_app(arguments, ("generate",))
    # Not entered, so that nothing of the engine is started.
    client = TestClient(app, follow_redirects=False)
    statuses = {path: client.request(asked["method"], path).status_code for path in asked["paths"]}

methods = sorted({method for route in app.routes for method in getattr(route, "methods", None) or ()})
print(json.dumps({"version": vllm.__version__, "statuses": statuses, "methods": methods}))
