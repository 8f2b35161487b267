# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings an image into the engine, by pull or from an archive, and lets its tag mean it. Private to the collection.

Nothing here stops a container, and a tag means the new image only when that was shown to be the right one: whatever
goes wrong, engines that run go on serving, and a restart of theirs finds the image that it found before.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import subprocess
import time

from . import _docker_archive as archives
from . import _docker_image as images
from . import _docker_space as space
from ._docker_credentials import registry_headers
from ._docker_engine import DockerError
from ._job import JobError

_BLOCK = 1 << 20
_MANIFEST_SECONDS = 40
# Waits before a pull that broke off is tried again. The engine keeps the layers that it has. A registry that never gave
# a byte is asked less often.
_PAUSES_SECONDS = (2, 4, 8, 16, 32)
_TRIES_WITHOUT_A_BYTE = 2
_TRANSIENT = re.compile(
    r"timeout|timed out|connection reset|connection refused|unexpected EOF|\bEOF\b|broken pipe|handshake|"
    r"temporary failure|server misbehaving|\b50[0-9]\b|connection to the Docker engine ended|No Docker engine answers|"
    r"ended in the middle",
    re.IGNORECASE,
)
_UNTOUCHED = "Engines that run go on serving; nothing was changed."

# (what the engine says, what it means, what to do). The first that matches counts. {registry}, {image} and {root} are
# filled in.
_CAUSES = (
    (
        "no space left on device|disk quota exceeded",
        "the disk of {root} filled up ({free} are free now)",
        "docker system df; df -h {root}",
    ),
    (
        "manifest verification failed|digest mismatch|verification failed for digest|unexpected commit digest",
        "{registry} sent something else than what the digest says, so it was not taken",
        "compare with the digest that another registry shows; have the mirror fetch the image anew",
    ),
    (
        "no matching manifest",
        "{registry} has no such image for this kind of processor",
        "docker manifest inspect {image}; pin a tag for this machine's architecture",
    ),
    (
        "manifest unknown|not found|manifest for .* unknown|name unknown",
        "{registry} has no such image, or not with that digest",
        "docker manifest inspect {image}; then correct image in vllm_instances",
    ),
    ("toomanyrequests|rate limit", "{registry} limits pulls", "docker login, or set vllm_image_source to a mirror"),
    (
        "unauthorized|authentication required|access denied|denied:|no basic auth",
        "{registry} wants a login",
        "as the user that Ansible becomes on the host: docker login {registry}",
    ),
    (
        "gave HTTP response to HTTPS client",
        "{registry} speaks HTTP, which Docker allows only where it is told to",
        'add "{registry}" to insecure-registries in /etc/docker/daemon.json, or give it TLS',
    ),
    (
        "x509:|certificate",
        "{registry}'s certificate is not trusted",
        "put the certificate of its CA into /etc/docker/certs.d/{registry}/ca.crt",
    ),
    (
        "no such host|network is unreachable|no route to host|connection refused|timeout|timed out|misbehaving|"
        "temporary failure|request canceled|proxyconnect",
        "{registry} cannot be reached from this host",
        "set vllm_image_source: a mirror, archive or other host (ansible-doc -t role gpufleet.vllm.vllm_image)",
    ),
    ("No Docker engine answers|refuses this user|in the middle", "Docker does not answer", "systemctl status docker"),
)


def failure(doing, engine, reference, text):
    """Returns a JobError that names the cause of what the engine said."""
    cause, next_step = "", "journalctl -u docker -n 50 --no-pager"
    for pattern, meaning, advice in _CAUSES:
        if re.search(pattern, text, re.IGNORECASE):
            cause, next_step = meaning, advice
            break
    root, free = "Docker", "?"
    with contextlib.suppress(DockerError, OSError, KeyError):
        root = space.image_root(engine)
        free = space.gib(space.free_bytes(root))
    names = {"registry": reference.registry, "image": _pulled_name(reference), "root": root, "free": free}
    told = f": {cause.format(**names)}" if cause else ""
    return JobError(f"{doing} failed{told}. Docker says: {text.strip()}. {_UNTOUCHED}", next_step.format(**names))


def _pulled_name(reference):
    return f"{reference.repository}@{reference.digest}" if reference.digest else reference.tagged


# --- pull


def pull(engine, reference, report, mirror=None, expected_id=None, needed_bytes=None):
    """Pulls an image and lets its tag mean it; returns what proves it. Raises JobError."""
    wanted = reference.at(mirror) if mirror else reference
    name = _pulled_name(wanted)
    try:
        report({"phase": f"asking {wanted.registry} for its size"})
        sizes = _layer_sizes(engine, wanted)
        compressed = sum(sizes.values()) if sizes else None
        room = needed_bytes or space.bytes_to_pull(compressed, wanted.path)
        space.require_room([(space.image_root(engine), room)], f"pulling {name}")
        before = engine.image(reference.tagged)
        _pull_patiently(engine, wanted, PullProgress(report, sizes))
        return _settle(engine, reference, engine.image(name), before, expected_id, name)
    except DockerError as error:
        raise failure(f"Pulling {name}", engine, wanted, str(error)) from error


def _pull_patiently(engine, wanted, progress):
    query = {"fromImage": wanted.repository, "tag": wanted.digest or wanted.tag}

    def attempt():
        ended = False
        for message in engine.messages("POST", "/images/create", query, registry_headers(wanted.registry)):
            progress.update(message)
            ended = ended or message.get("status", "").startswith("Status:")
        # An engine that is stopped ends its answer as if all were done.
        if not ended and not engine.image(_pulled_name(wanted)):
            raise DockerError("the pull ended in the middle, as when Docker is stopped")

    _try_patiently(attempt, progress)


def _try_patiently(attempt, progress):
    """Tries again what broke off, less often where nothing was ever gained."""
    failures = 0
    while True:
        known = progress.done_bytes
        try:
            return attempt()
        except DockerError as error:
            failures = failures + 1 if progress.done_bytes <= known else 1
            allowed = len(_PAUSES_SECONDS) if progress.done_bytes else _TRIES_WITHOUT_A_BYTE
            if not _TRANSIENT.search(str(error)) or failures > allowed:
                raise
            progress.interrupted()
            time.sleep(_PAUSES_SECONDS[failures - 1])


class PullProgress:
    """Adds up what the engine tells of the layers.

    sizes: {first 12 digits of a layer's digest: bytes to download}, {} where the registry did not tell.
    """

    def __init__(self, report, sizes=None):
        self._report = report
        self._sizes = sizes or {}
        self._layers = {}

    @property
    def done_bytes(self):
        return sum(layer["downloaded"] + layer["extracted"] for layer in self._layers.values())

    def update(self, message):
        name, status = message.get("id"), message.get("status", "")
        if not name or status.startswith("Pulling from"):
            return
        size = self._sizes.get(name[:12])
        layer = self._layers.setdefault(name, {"size": size, "downloaded": 0, "extracted": 0, "is_here": False})
        detail = message.get("progressDetail") or {}
        layer["size"] = detail.get("total") or layer["size"]
        if status == "Downloading":
            layer["downloaded"] = detail.get("current") or layer["downloaded"]
        elif status == "Extracting":
            self._has_downloaded(layer)
            layer["extracted"] = detail.get("current") or layer["extracted"]
        elif status in ("Verifying Checksum", "Download complete"):
            self._has_downloaded(layer)
        elif status in ("Pull complete", "Already exists"):
            self._has_downloaded(layer)
            layer["extracted"] = layer["size"] or 0
        self._report(self._progress())

    def interrupted(self):
        self._report({**self._progress(), "phase": "interrupted, trying again"})

    @staticmethod
    def _has_downloaded(layer):
        layer["is_here"] = True
        layer["downloaded"] = layer["size"] or layer["downloaded"]

    def _progress(self):
        layers = list(self._layers.values())
        # Layers are announced before any of them is loaded.
        if all(layer["is_here"] for layer in layers):
            total = sum(layer["size"] or 0 for layer in layers)
            done = sum(layer["extracted"] for layer in layers)
            return {"phase": "extracting", "done_bytes": done, "total_bytes": total}
        done = sum(layer["downloaded"] for layer in layers)
        known = all(layer["size"] for layer in layers)
        total = sum(self._sizes.values()) or (sum(layer["size"] for layer in layers) if known else None)
        return {"phase": "downloading", "done_bytes": done, "total_bytes": total}


def _layer_sizes(engine, wanted):
    """{first 12 digits of the digest: compressed bytes} of the image's layers; {} where the registry does not tell.

    Through the command line, which has the registry's credentials, proxies and certificates.
    """
    info = engine.get("/info")
    command = ["docker", "manifest", "inspect", "--verbose"]
    command += ["--insecure"] if _is_insecure(info, wanted.registry) else []
    try:
        told = subprocess.run(
            command + [_pulled_name(wanted)], capture_output=True, timeout=_MANIFEST_SECONDS, check=True
        )
        return layer_sizes(json.loads(told.stdout), info)
    except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError):
        return {}


def layer_sizes(manifests, info):
    """The same of what ``docker manifest inspect --verbose`` prints: an object, or a list for several platforms."""
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(info["Architecture"], info["Architecture"])
    for entry in manifests if isinstance(manifests, list) else [manifests]:
        platform = entry["Descriptor"].get("platform") or {}
        if platform.get("architecture", architecture) == architecture and platform.get("os", "linux") == "linux":
            manifest = entry.get("OCIManifest") or entry.get("SchemaV2Manifest") or {}
            return {layer["digest"].partition(":")[2][:12]: layer["size"] for layer in manifest.get("layers", [])}
    return {}


def _is_insecure(info, registry):
    """Whether the engine speaks HTTP with the registry, too: it is told so, or has an address for which it was."""
    config = info.get("RegistryConfig") or {}
    known = (config.get("IndexConfigs") or {}).get(registry)
    if known is not None:
        return not known.get("Secure", True)
    try:
        address = ipaddress.ip_address(registry.rpartition(":")[0].strip("[]") or registry)
    except ValueError:
        return registry.partition(":")[0] == "localhost"
    return any(address in ipaddress.ip_network(network) for network in config.get("InsecureRegistryCIDRs") or [])


# --- archive


def load(engine, reference, path, report, expected_id=None, needed_bytes=None):
    """Loads an image from an archive and lets its tag mean it; returns what proves it. Raises JobError."""
    try:
        report({"phase": "reading the archive's contents"})
        kind = archives.compression(path)
        content = None if kind else choose(path, archives.read_archive(path), reference, expected_id)
        size = os.path.getsize(path)
        room = space.bytes_to_load(size, bool(kind), bool(content and content.has_compressed_layers))
        space.require_room([(space.image_root(engine), needed_bytes or room)], f"loading {path}")
        before = engine.image(reference.tagged)
        progress = LoadProgress(report, size, None if kind else size)
        names = _try_patiently(lambda: _send(engine, path, size, progress), progress)
        image = engine.image(_choose_name(path, names, reference, content, expected_id))
        if content and image and (image.get("RootFS") or {}).get("Layers") == content.layers:
            # The archive's config was hashed: also where the engine numbers its images by something else.
            image = {**image, "RepoDigests": [*(image.get("RepoDigests") or []), f"config@{content.id}"]}
        return _settle(engine, reference, image, before, expected_id, path)
    except DockerError as error:
        raise failure(f"Loading {path}", engine, reference, str(error)) from error
    except OSError as error:
        raise JobError(f"{path} cannot be read: {error.strerror}.", f"ls -l {path}") from error


class LoadProgress:
    """What was sent of an archive and what the engine unpacked of it.

    unpacked_size: about that many bytes are unpacked, None if unknown.
    """

    def __init__(self, report, size, unpacked_size):
        self._report, self._size, self._unpacked_size = report, size, unpacked_size
        self._layers = {}
        self.done_bytes = 0

    def sent(self, count):
        self.done_bytes = count
        self._report({"phase": "loading", "done_bytes": count, "total_bytes": self._size})

    def unpacked(self, message):
        self._layers[message.get("id")] = message["progressDetail"].get("current") or 0
        done = sum(self._layers.values())
        self._report({"phase": "extracting", "done_bytes": done, "total_bytes": self._unpacked_size})

    def interrupted(self):
        self._layers = {}
        self._report({"phase": "interrupted, trying again", "done_bytes": 0, "total_bytes": self._size})


def _send(engine, path, size, progress):
    """Returns the names and IDs of what was loaded."""

    def blocks():
        sent = 0
        with open(path, "rb") as stream:
            for block in iter(lambda: stream.read(_BLOCK), b""):
                yield block
                sent += len(block)
                progress.sent(sent)

    names = []
    for message in engine.messages("POST", "/images/load", {"quiet": "0"}, body=blocks(), size=size):
        loaded = re.match(r"Loaded image(?: ID)?: (\S+)", message.get("stream") or "")
        if loaded:
            names.append(loaded.group(1))
        elif message.get("progressDetail"):
            progress.unpacked(message)
    if not names:
        raise DockerError("the load ended in the middle, as when Docker is stopped")
    return names


def _is_same(tag, reference):
    """Whether a tag of an archive is the name, or that name in a mirror."""
    return tag == reference.tagged or tag.endswith("/" + reference.tagged)


def choose(path, contents, reference, expected_id):
    """The image of the archive that is wanted: by its ID where that is known, else by its tag."""
    named = [content for content in contents if any(_is_same(tag, reference) for tag in content.tags)]
    if expected_id:
        right = [content for content in contents if content.id == expected_id]
        if not right:
            held = ", ".join((named or contents)[0].tags + [(named or contents)[0].id]) if contents else "nothing"
            raise _wrong(path, held, reference, expected_id)
        return right[0]
    if not named:
        tags = ", ".join(tag for content in contents for tag in content.tags) or "no named image"
        raise JobError(f"{path} holds {tags}, not {reference.tagged}. {_UNTOUCHED}", _save_again(reference))
    return named[0]


def _choose_name(path, names, reference, content, expected_id):
    same = [name for name in names if _is_same(name, reference)]
    if same:
        return same[0]
    if (content or expected_id) and len(names) == 1:
        return names[0]
    raise JobError(f"{path} held {', '.join(names) or 'no image'}, not {reference.tagged}.", _save_again(reference))


def _save_again(reference):
    return f"where the image is: docker save --output FILE {reference.tagged}"


def _wrong(origin, held, reference, expected_id):
    wanted = [f"digest {reference.digest}"] if reference.digest else []
    wanted += [f"ID {expected_id}"] if expected_id else []
    return JobError(
        f"{origin} is not the pinned image: it is {held}, and {reference.tagged} must have {' and '.join(wanted)}. "
        f"{_UNTOUCHED}",
        "find out which of the two is right; then correct image in vllm_instances, or what the image comes from",
    )


# --- both


def _settle(engine, reference, image, before, expected_id, origin):
    """Lets the tag mean the right image; one that is wrong leaves the tag as it was."""
    if image is None:
        raise JobError(f"{origin}: Docker says that it has the image, and does not find it.", "docker image ls")
    if not images.is_proven(image, reference, expected_id):
        _undo(engine, reference, image, before)
        raise _wrong(origin, ", ".join([image["Id"], *images.digests(image)]), reference, expected_id)
    if _id(engine.image(reference.tagged)) != image["Id"]:
        engine.tag(image["Id"], reference.repository, reference.tag)
    return {"id": image["Id"], "proven": [proof for proof in (reference.digest, expected_id) if proof]}


def _undo(engine, reference, image, before):
    with contextlib.suppress(DockerError):
        if before is None:
            engine.remove_image(reference.tagged)
        elif before["Id"] != image["Id"]:
            engine.tag(before["Id"], reference.repository, reference.tag)
        left = engine.image(image["Id"])
        # Somebody may use it under another name; then it stays.
        if left and not left.get("RepoTags"):
            engine.remove_image(image["Id"])


def _id(image):
    return image["Id"] if image else None
