# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The numbered releases of an instance on its host: begun, proven, gone back to. Private to the collection.

``/var/lib/vllm/NAME/releases/NNNN/`` holds the files of a release and ``release.json``: ``{"number", "state", "made"
(UTC), "previous" (the release to go back to, or None), "image", "image_id", "model_manifest", "restart", "reasons",
"why", "failure"}``. States: ``deploying`` (its files are in use, nothing proves it yet), ``served``, ``failed`` (it did
not serve), ``restored`` (gone back to, not proven again yet). ``releases/current`` points to the release whose files
are in use. Every step may be cut off: it is repeated, or undone, from what is there.

The file is also put on the host as a program that goes back without a controller (see ``main``): standard library only,
and no import from the collection.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time

#: The unit that goes back without a controller, one for all instances.
ROLLBACK_UNIT = "vllm-rollback@.service"

#: The unit that keeps the members of an engine over several hosts together, one for all instances.
MEMBERS_UNIT = "vllm-members@.service"

#: Held by who deploys, see the module deploy_lock.
DEPLOY_LOCK = "run/vllm/deploy.lock"

#: Seconds that a controller, which may be gone, has to go back by itself before the host does.
GRACE = 600


class ReleaseError(Exception):
    """A release that is not there. The message says which are."""


class Instance:
    """Where everything of an instance is on the host."""

    def __init__(self, name, root="/"):
        etc = os.path.join(root, "etc/vllm", name)
        systemd = os.path.join(root, "etc/systemd/system")
        self.name = name
        self.unit = "vllm-" + name + ".service"
        self.state_directory = os.path.join(root, "var/lib/vllm", name)
        self.releases = os.path.join(self.state_directory, "releases")
        self.current = os.path.join(self.releases, "current")
        self.ledger = os.path.join(self.state_directory, "ledger.jsonl")
        self.receipt = os.path.join(self.state_directory, "receipt.json")
        self.environment = os.path.join(etc, "engine.env")
        self.previous_environment = os.path.join(etc, "engine.env.previous")
        self.deploy_lock = os.path.join(root, DEPLOY_LOCK)
        # What a release consists of: name -> (where it is in use, mode).
        self.files = {
            "plan.json": (os.path.join(etc, "plan.json"), 0o644),
            self.unit: (os.path.join(systemd, self.unit), 0o644),
            "smoke.sh": (os.path.join(etc, "smoke.sh"), 0o700),
            "archive.sh": (os.path.join(etc, "archive.sh"), 0o700),
        }
        # What works without a controller. It belongs to no release: the newest one serves all.
        self.tools = {
            "release.py": (os.path.join(etc, "release.py"), 0o700),
            ROLLBACK_UNIT: (os.path.join(systemd, ROLLBACK_UNIT), 0o644),
            "members.py": (os.path.join(etc, "members.py"), 0o700),
            MEMBERS_UNIT: (os.path.join(systemd, MEMBERS_UNIT), 0o644),
        }

    def folder(self, number):
        """The folder of a release."""
        return os.path.join(self.releases, f"{number:04d}")


# --- reading ------------------------------------------------------------------------------------------------------


def read_text(path):
    """The content of a file, or None where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def read_releases(instance):
    """{number: release.json} of every release that can be read."""
    found = {}
    for entry in sorted(os.listdir(instance.releases)) if os.path.isdir(instance.releases) else ():
        with contextlib.suppress(OSError, ValueError):
            if entry.isdigit():
                with open(os.path.join(instance.releases, entry, "release.json"), encoding="utf-8") as file:
                    found[int(entry)] = json.load(file)
    return found


def current_release(instance):
    """release.json of the release whose files are in use, or None."""
    with contextlib.suppress(OSError, ValueError):
        return read_releases(instance).get(int(os.readlink(instance.current)))
    return None


def last_served(release):
    """The number of the last release that served, as seen from the current one; None if none did."""
    if release is None:
        return None
    return release["number"] if release["state"] in ("served", "restored") else release["previous"]


def _next_number(instance):
    entries = os.listdir(instance.releases) if os.path.isdir(instance.releases) else ()
    return max([0] + [int(entry) for entry in entries if entry.isdigit()]) + 1


# --- writing ------------------------------------------------------------------------------------------------------


def make_directory(path):
    """Make a folder with what is above it, readable by all whatever the umask. One that is there stays as it is."""
    if not os.path.isdir(path):
        make_directory(os.path.dirname(path))
        os.mkdir(path)
        os.chmod(path, 0o755)


def write(path, text, mode):
    """Write a file as a whole or not at all, even if the host loses power."""
    make_directory(os.path.dirname(path))
    unfinished = f"{path}.{os.getpid()}.tmp"
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if os.geteuid() == 0:
                os.fchown(file.fileno(), 0, 0)
            os.fsync(file.fileno())
        os.rename(unfinished, path)
    except OSError:
        remove(unfinished)
        raise
    _sync(os.path.dirname(path))


def remove(path):
    """Remove a file. Returns whether there was one."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def _sync(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_record(instance, release, **changes):
    release.update(changes)
    text = json.dumps(release, indent=2) + "\n"
    write(os.path.join(instance.folder(release["number"]), "release.json"), text, 0o644)


def _make_release(instance, release, texts):
    """Make the folder of a release. It appears complete, or not at all."""
    unfinished = instance.folder(release["number"]) + ".tmp"
    shutil.rmtree(unfinished, ignore_errors=True)
    make_directory(unfinished)
    try:
        for name, text in texts.items():
            write(os.path.join(unfinished, name), text, instance.files[name][1])
        write(os.path.join(unfinished, "release.json"), json.dumps(release, indent=2) + "\n", 0o644)
        os.rename(unfinished, instance.folder(release["number"]))
    except OSError:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _point_to(instance, number):
    unfinished = instance.current + ".tmp"
    remove(unfinished)
    os.symlink(os.path.basename(instance.folder(number)), unfinished)
    os.rename(unfinished, instance.current)
    _sync(instance.releases)


def _now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _note(instance, release, outcome, why):
    """Append a row to the ledger."""
    row = {"time": _now(), "release": release["number"], "change": release["reasons"], "outcome": outcome, "why": why}
    with open(instance.ledger, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


@contextlib.contextmanager
def locked(instance):
    """One at a time changes the releases of an instance: a controller's module, or the host by itself."""
    make_directory(instance.releases)
    descriptor = os.open(instance.releases, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# --- what happens to releases -------------------------------------------------------------------------------------


def adopt(instance, check=False):
    """Make what was deployed before there were releases the first one. It is taken for one that served.

    Returns its release.json. With check nothing is written, here and below.
    """
    texts = {name: read_text(path) for name, (path, _mode) in instance.files.items()}
    texts = {name: text for name, text in texts.items() if text is not None}
    made = os.stat(instance.files[instance.unit][0]).st_mtime
    release = {
        "number": 1,
        "state": "served",
        "made": datetime.datetime.fromtimestamp(made, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "previous": None,
        "image": _image(texts.get("plan.json")),
        "image_id": None,
        "model_manifest": None,
        "restart": True,
        "reasons": ["deployed before releases were kept"],
        "why": "",
        "failure": "",
    }
    if not check:
        _make_release(instance, release, texts)
        _point_to(instance, 1)
    return release


def _image(plan_text):
    with contextlib.suppress(TypeError, ValueError, AttributeError):
        return json.loads(plan_text).get("image")
    return None


def begin(instance, current, texts, environment, record, check=False):
    """Make a release of the texts and put them in use. Returns its release.json.

    current: release.json of the release before, or None. texts: {name: text} of the files of a release. environment:
    text of engine.env. record: "image", "image_id", "model_manifest", "restart", "reasons" and "why" of release.json.
    """
    number = max(_next_number(instance), current["number"] + 1 if current else 1)
    release = {"number": number, "state": "deploying", "made": _now(), "previous": last_served(current)}
    release.update(record, failure="")
    if check:
        return release
    if current and current["state"] in ("served", "restored"):
        _keep_environment(instance)
    if current and current["state"] == "deploying":
        _write_record(instance, current, state="failed", failure="its deployment was cut off")
    _make_release(instance, release, texts)
    # First the pointer: whoever comes after a cut must see that what is in use is not proven.
    _point_to(instance, number)
    _use(instance, texts)
    write(instance.environment, environment, 0o600)
    return release


def _keep_environment(instance):
    text = read_text(instance.environment)
    if text is not None:
        write(instance.previous_environment, text, 0o600)


def _use(instance, texts):
    for name, text in texts.items():
        path, mode = instance.files[name]
        write(path, text, mode)


def serve(instance, keep, why="", check=False):
    """The current release serves: say so, forget the key before it, prune. Returns {"changed", "release", "pruned"}."""
    current = current_release(instance)
    if current is None:
        raise ReleaseError(f"{instance.name} has no release in {instance.releases}. Deploy it: deploy_vllm.yml.")
    needed = {current["number"], current["previous"]}
    numbers = sorted(read_releases(instance))
    pruned = [number for number in numbers[: max(0, len(numbers) - keep)] if number not in needed]
    state = current["state"]
    changed = state != "served" or bool(pruned) or os.path.exists(instance.previous_environment)
    if changed and not check:
        _write_record(instance, current, state="served", failure="")
        if state == "deploying":
            _note(instance, current, "kept", why or current["why"])
        remove(instance.previous_environment)
        for number in pruned:
            shutil.rmtree(instance.folder(number))
    return {"changed": changed, "release": current["number"], "pruned": pruned}


def restore(instance, number=None, why="", check=False, unproven=False):
    """Go back to a release: without number to the last that served before the current one.

    With unproven, only from a release that is still deploying; any other stays.
    Returns {"changed", "restored" (its number, or None where there is none to go back to), "restart", "plan",
    "replaced" (number of the release that was in use), "image_id", "model_manifest" (what it served with)}. Without
    number the key that a release still deploying brought is undone, too. Who went back already stays there.
    """
    releases, current = read_releases(instance), current_release(instance)
    stays = ("restored", "served") if unproven else ("restored",)
    if number is None and current and current["state"] in stays:
        return _restored(instance, current, current, changed=False)
    undo = number is None
    number = current["previous"] if undo and current else number
    if number is None:
        return _nothing_to_restore(instance, current, why, check)
    if number not in releases:
        raise ReleaseError(_not_there(instance, number, releases))
    if not check:
        _go_back(instance, current, releases[number], undo, why)
    return _restored(instance, releases[number], current, changed=True)


def _go_back(instance, current, target, undo, why):
    """In this order it can be cut off anywhere: until the pointer moves, the same call does it all again."""
    _use(instance, _texts(instance, target["number"]))
    before = read_text(instance.previous_environment) if undo else None
    if before is not None:
        write(instance.environment, before, 0o600)
    _write_record(instance, target, state="restored")
    if current and current["number"] != target["number"]:
        if current["state"] in ("deploying", "restored"):
            _write_record(instance, current, state="failed", failure=why)
        _note(instance, current, "rolled back", why)
    _point_to(instance, target["number"])
    remove(instance.previous_environment)


def _texts(instance, number):
    """The files of a release; one of an older version of the collection may lack some."""
    texts = {name: read_text(os.path.join(instance.folder(number), name)) for name in instance.files}
    return {name: text for name, text in texts.items() if text is not None}


def _restored(instance, release, current, changed):
    number = release["number"]
    plan = json.loads(read_text(os.path.join(instance.folder(number), "plan.json")) or "null")
    told = {"changed": changed, "restored": number, "restart": True, "plan": plan}
    told["replaced"] = current["number"] if current else None
    return dict(told, **{name: release.get(name) for name in ("image_id", "model_manifest")})


def _nothing_to_restore(instance, current, why, check):
    changed = current is not None and current["state"] == "deploying"
    if changed and not check:
        _write_record(instance, current, state="failed", failure=why)
        _note(instance, current, "failed", why)
    nothing = dict.fromkeys(("restored", "plan", "replaced", "image_id", "model_manifest"))
    return dict(nothing, changed=changed, restart=False)


def _not_there(instance, number, releases):
    there = ", ".join(f"{release['number']} ({release['state']}, {release['made']})" for release in releases.values())
    return (
        f"{instance.name} has no release {number} to go back to in {instance.releases}. "
        f"There are: {there or 'none'}. Name one of them, or none for the last that served before."
    )


# --- without a controller -----------------------------------------------------------------------------------------


def tell(text):
    """A line for the journal."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(name, root="/", grace=GRACE, run=subprocess.call, sleep=time.sleep):
    """Run by vllm-rollback@NAME.service when the unit of the instance has failed for good.

    Goes back if the failed release is still deploying and no controller does so: at once if nobody deploys, else when
    the grace is over. A controller that comes later finds it done.
    """
    instance = Instance(name, root)
    deadline = time.monotonic() + grace
    while os.path.exists(instance.deploy_lock) and time.monotonic() < deadline and _waits(instance, run):
        sleep(5)
    with locked(instance):
        if not _waits(instance, run):
            tell(f"vllm-{name}: nothing to go back from: the unit has not failed, or its release served.")
            return 0
        failed = current_release(instance)["number"]
        result = restore(instance, why=f"{instance.unit} failed for good and no controller was there")
    if result["restored"] is None:
        tell(f"vllm-{name}: release {failed} failed, and none served before that one could go back to.")
        return 1
    tell(f"vllm-{name}: release {failed} failed and no controller was there: back to release {result['restored']}.")
    run(["systemctl", "daemon-reload"])
    run(["systemctl", "reset-failed", instance.unit])
    return run(["systemctl", "start", "--no-block", instance.unit])


def _waits(instance, run):
    current = current_release(instance)
    deploying = current is not None and current["state"] == "deploying"
    return deploying and run(["systemctl", "is-failed", "--quiet", instance.unit]) == 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
