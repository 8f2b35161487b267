#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Lists the routes of an engine that answer without the API key."""

from __future__ import annotations

DOCUMENTATION = r"""
module: route_probe
short_description: Lists the routes of an engine that answer without the API key
description:
  - Asks a running engine, without a key, for each path that its C(/openapi.json) names and for each of O(routes).
  - vLLM asks for the key before it looks for the route, and only below some prefixes, such as C(/v1). C(401) says that
    a path is guarded, and any other answer than C(404) says that it is not.
  - Nothing is run by it. The requests have the method C(REPORT) of WebDAV, which no route of vLLM has, and no body. A
    route that is not guarded answers C(405).
author:
  - gpufleet maintainers (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
  - gpufleet.vllm.attributes.info_module
options:
  address:
    description:
      - Address on which the instance is published. For an address that means all of them, loopback is asked.
    type: str
    default: 127.0.0.1
  port:
    description:
      - Port on which the instance is published.
    type: int
    default: 8000
  routes:
    description:
      - Paths to ask for beside those in C(/openapi.json), such as those of the catalogue. A parameter in braces stands
        for anything.
    type: list
    elements: str
    default: []
  timeout:
    description:
      - Seconds that everything together may take.
    type: float
    default: 10
notes:
  - WebSocket routes are not asked for.
seealso:
  - module: gpufleet.vllm.wait_ready
"""

EXAMPLES = r"""
- name: Which routes answer without the key?
  gpufleet.vllm.route_probe:
    address: 10.0.0.7
    port: 8000
    routes: [/health, /invocations, /v1/chat/completions]
  register: probe

- name: Show them
  ansible.builtin.debug:
    msg: "{{ probe.unguarded | map(attribute='path') | join(', ') }}"
"""

RETURN = r"""
unguarded:
  description: Paths that answer without the key, sorted.
  returned: always
  type: list
  elements: dict
  sample: [{path: /invocations, status: 405}]
  contains:
    path:
      description: The path, as it was listed.
      type: str
    status:
      description: HTTP status of the answer.
      type: int
guarded:
  description:
    - Paths that ask for the key, sorted, in the same form. The engine need not have them, as it asks for the key first.
  returned: always
  type: list
  elements: dict
unclear:
  description:
    - Paths whose answer does not tell, sorted, in the same form. That is a status of 500 or more, as of a server that
      does not know the method.
  returned: always
  type: list
  elements: dict
absent:
  description: Those of O(routes) that the engine does not have (C(404)), sorted.
  returned: always
  type: list
  elements: str
"""

import http.client
import json
import re
import time
from urllib.parse import urlsplit

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._engine_unit import health_url

#: RFC 3253. A server that knows it does not run anything for it on a route that was made for other methods.
METHOD = "REPORT"


class Engine:
    """A connection to an engine that is kept open from one request to the next, until the deadline."""

    def __init__(self, address, port, timeout):
        self._host = urlsplit(health_url(address, port)).hostname
        self._port = port
        self._deadline = time.monotonic() + timeout
        self._connection = None

    def ask(self, method, path):
        """(status, body). Raises OSError or HTTPException where there is no answer in time."""
        reused = self._connection is not None
        try:
            return self._ask(method, path)
        except (OSError, http.client.HTTPException):
            self._connection = None
            # A server may close a connection between two requests.
            if not reused or self._left() <= 0:
                raise
        return self._ask(method, path)

    def _ask(self, method, path):
        if self._left() <= 0:
            raise TimeoutError("the time is over")
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._host, self._port, timeout=self._left())
            self._connection.connect()
        self._connection.sock.settimeout(self._left())
        self._connection.request(method, path)
        response = self._connection.getresponse()
        body = response.read()
        if response.will_close:
            self._connection.close()
            self._connection = None
        return response.status, body

    def _left(self):
        return self._deadline - time.monotonic()


def probe(engine, routes):
    """Returns what the module returns. Raises OSError or HTTPException where the engine does not answer."""
    found = {"unguarded": [], "guarded": [], "unclear": [], "absent": []}
    for path in sorted(set(routes) | set(listed_paths(*engine.ask("GET", "/openapi.json")))):
        # What stands for a parameter matters to no guard.
        status, _body = engine.ask(METHOD, re.sub(r"\{[^}]*\}", "0", path))
        kind = judge(status)
        found[kind].append(path if kind == "absent" else {"path": path, "status": status})
    return found


def judge(status):
    """What the status of an answer without the key means."""
    if status in (401, 403):
        return "guarded"
    if status == 404:
        return "absent"
    return "unclear" if status >= 500 else "unguarded"


def listed_paths(status, body):
    """The paths that the engine lists itself; none where it does not say."""
    try:
        listed = json.loads(body.decode("utf-8"))["paths"] if status == 200 else {}
    except (ValueError, KeyError, TypeError):
        return []
    return [path for path in listed if path.startswith("/")]


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "address": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "default": 8000},
            "routes": {"type": "list", "elements": "str", "default": []},
            "timeout": {"type": "float", "default": 10},
        },
        supports_check_mode=True,
    )
    params = module.params
    url = health_url(params["address"], params["port"])
    try:
        found = probe(Engine(params["address"], params["port"], params["timeout"]), params["routes"])
    except (OSError, http.client.HTTPException) as error:
        module.fail_json(
            msg=f"The engine at {url} did not tell within {params['timeout']:g} s which routes it guards: {error!r}. "
            f"Next: curl --include {url}"
        )
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
