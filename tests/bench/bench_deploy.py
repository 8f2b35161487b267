# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What deploying through the collection costs on top of the same `docker run` by hand, in one run.

    PYTHONPATH=.collections python tests/bench/bench_deploy.py

Brings up the hosts of the scenario molecule/default and deploys its instance once, which fills the compile cache. Then,
on the same host with a warm cache: the unit's own `docker run` by hand with a loop that waits for /health; a deployment
that starts the engine anew; and one that changes nothing. Prints seconds, the difference and the number of tasks; ends
with 1 if the collection takes more than 20 s longer, or a run without change more than 15 s or 25 tasks.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
INVENTORY = REPOSITORY / "molecule" / "default" / "inventory"
MORE_SECONDS, NO_CHANGE_SECONDS, NO_CHANGE_TASKS = 20.0, 15.0, 25
# What the unit runs, without systemd's quoting; the engine is ready when /health answers.
BY_HAND = r"""
set -eu
command=$(python3 - <<'PYTHON'
import re, shlex
unit = open("/etc/systemd/system/vllm-demo.service").read()
text = re.search(r"^ExecStart=(.*?)(?<!\\)\n", unit, re.S | re.M).group(1).replace("\\\n", " ")
print(shlex.join(shlex.split(text.replace("%%", "%").replace("$$", "$"))))
PYTHON
)
docker rm --force vllm-demo >/dev/null 2>&1 || true
eval "$command" >/tmp/by-hand.log 2>&1 &
until curl --silent --fail --max-time 2 http://127.0.0.1:8000/health; do
  kill -0 $! || { tail -5 /tmp/by-hand.log; exit 1; }
  sleep 1
done
docker stop --time 30 vllm-demo >/dev/null
docker rm --force vllm-demo >/dev/null 2>&1 || true
"""


def ansible(program: str, *arguments: str) -> str:
    """Runs a program of Ansible on the hosts of the scenario; its output."""
    done = subprocess.run(
        [program, "--inventory", str(INVENTORY), *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{program} {' '.join(arguments)} failed:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def timed(program: str, *arguments: str) -> tuple[float, str]:
    """The seconds that it took, and the output."""
    start = time.perf_counter()
    output = ansible(program, *arguments)
    return time.perf_counter() - start, output


def on_host(script: str) -> float:
    """The seconds that a script takes on the host."""
    return timed("ansible", "vllm", "--become", "--module-name", "ansible.builtin.shell", "--args", script)[0]


def main() -> int:
    ansible("ansible-playbook", "playbooks/lab_up.yml")
    try:
        return measure()
    finally:
        ansible("ansible-playbook", "playbooks/lab_down.yml")


def measure() -> int:
    deploy = ("ansible-playbook", "playbooks/deploy_vllm.yml")
    ansible(*deploy)
    on_host("systemctl stop vllm-demo")
    by_hand = on_host(BY_HAND)
    restarted, _output = timed(*deploy, "--extra-vars", '{"vllm_api_key": "another-key-of-the-bench"}')
    ansible(*deploy)
    unchanged, output = timed(*deploy)
    tasks = len(re.findall(r"^TASK \[", output, re.MULTILINE))
    if not re.search(r"changed=0 ", output):
        sys.exit(f"the last run changed something:\n{output[-3000:]}")
    print(f"docker run by hand, until /health, and stopped again  {by_hand:6.1f} s")
    print(f"deploy_vllm with a restart, until proven              {restarted:6.1f} s  ({restarted - by_hand:+.1f} s)")
    print(f"deploy_vllm without a change                          {unchanged:6.1f} s  ({tasks} tasks)")
    slow = restarted - by_hand > MORE_SECONDS or unchanged > NO_CHANGE_SECONDS or tasks > NO_CHANGE_TASKS
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
