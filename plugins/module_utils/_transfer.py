# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies files from one host to another without the controller in between. Private to the collection gpufleet.vllm.

Runs on hosts: Python 3.8, standard library only, because hosts have neither rsync nor keys for each other as a rule.

* The host that has the files calls `serve`: a process of its own listens for a while, on the addresses that the other
  host reaches and on no other, hands out the named files and nothing else, to whoever knows the token, and ends by
  itself. The answer is an *offer*: ``{"urls": [...], "token": str, "pid": int}``.
* The host that wants them calls `fetch` with the offer: it asks for what it does not have yet, so a copy that was
  interrupted goes on where it stopped. Afterwards it calls `withdraw`.

The bytes cross the network in the clear. What they must be is known from sizes and hashes that came through Ansible's
own connection, so they cannot be exchanged on the way; who can listen on that network can read them, and the token.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CHUNK = 4 * 1024 * 1024
IDLE_SECONDS = 900
"""The server ends when nobody asked for that long. Longer than the hashing of a large shard between two requests."""
CONNECT_SECONDS = 10
STALL_SECONDS = 60
PATIENCE = 5
"""Broken connections in a row, without a byte in between, that `fetch` puts up with."""

_OWN_INTERFACES = re.compile(r"^(lo|docker|br-|veth|virbr|cni|cali|flannel|cilium|podman|lxc|tun)")
_RANGE = re.compile(r"^bytes=(\d+)-(\d+)?$")


class TransferError(Exception):
    """A copy between two hosts that could not be made; says what is wrong and what to do."""


# --- addresses


def addresses():
    """Addresses at which other hosts may reach this one: not loopback, not those of container networks."""
    ip = shutil.which("ip", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if ip:
        told = subprocess.run([ip, "-o", "addr", "show", "scope", "global"], stdout=subprocess.PIPE, check=False)
        found = _parse_addresses(told.stdout.decode("utf-8", "replace"))
        if found:
            return found
    return _addresses_of_name()


def _parse_addresses(text):
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) > 3 and words[2] in ("inet", "inet6") and not _OWN_INTERFACES.match(words[1]):
            found.append(words[3].split("/")[0])
    return found


def _addresses_of_name():
    try:
        told = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({entry[4][0] for entry in told if not entry[4][0].startswith(("127.", "::1", "fe80"))})


def addresses_towards(destinations):
    """Own addresses from which this host would send to ``destinations``, in their order. Nothing is sent."""
    found = []
    for destination in destinations:
        address = _address_towards(destination)
        if address and address not in found:
            found.append(address)
    return found


def _address_towards(destination):
    try:
        family, kind, _protocol, _name, target = socket.getaddrinfo(destination, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            own = probe.getsockname()[0]
    except OSError:
        return None
    is_loopback = own.startswith("127.") or own == "::1"
    # What leads to loopback is an address of this very host, unless loopback was asked for.
    return None if is_loopback and destination not in ("localhost", own) else own


# --- the host that has the files


def serve(files, listen, port=0, idle_seconds=IDLE_SECONDS):
    """Starts a process that hands out files, and returns at once.

    Args:
        files: {name: absolute path}; a name may have slashes.
        listen: own addresses to listen on.
        port: TCP port, or 0 for any that is free.
        idle_seconds: the process ends when nobody asked for that long.
    Returns: the offer, {"urls": [one for each address], "token": str, "pid": int}.
    Raises: TransferError where it cannot listen on any of the addresses.
    """
    token = secrets.token_urlsafe(32)
    activity = _Activity(idle_seconds)
    servers, problems = [], []
    for address in listen:
        try:
            servers.append(_Server(address, port, dict(files), token, activity))
        except OSError as error:
            problems.append(f"{_bracketed(address)}:{port}: {error.strerror or error}")
    if not servers:
        raise TransferError("No address to hand files out from: {}.".format("; ".join(problems) or "none given"))
    urls = [server.url for server in servers]
    pid = _detach(lambda: _run(servers, activity))
    for server in servers:
        server.socket.close()
    return {"urls": urls, "token": token, "pid": pid}


def _bracketed(address):
    return f"[{address}]" if ":" in address else address


class _Activity:
    """When somebody last got a byte, and whether the files are still wanted."""

    def __init__(self, idle_seconds):
        self.idle_seconds = idle_seconds
        self.withdrawn = threading.Event()
        self.seen()

    def seen(self):
        self.at = time.monotonic()

    def wait(self):
        """Returns when the files are no longer wanted."""
        while time.monotonic() - self.at < self.idle_seconds:
            if self.withdrawn.wait(min(1.0, self.idle_seconds)):
                return


class _Server(ThreadingHTTPServer):
    """Hands out ``files`` to whoever knows the token."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address, port, files, token, activity):
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.files, self.token, self.activity = files, token, activity
        super().__init__((address, port), _Handler)

    def server_bind(self):
        # Not HTTPServer's: it asks the name service for a name that nobody needs.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    @property
    def url(self):
        return f"http://{_bracketed(self.server_address[0])}:{self.server_address[1]}/"

    def handle_error(self, request, client_address):
        """A client that went away is no event."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = STALL_SECONDS

    def do_GET(self):
        name = urllib.parse.unquote(self.path.lstrip("/"))
        if not self._is_allowed():
            return
        if not name:
            self._answer(204)
        elif name not in self.server.files:
            self._answer(404)
        else:
            self._send(self.server.files[name])

    def do_DELETE(self):
        if self._is_allowed():
            self._answer(204)
            self.server.activity.withdrawn.set()

    def _is_allowed(self):
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if hmac.compare_digest(given, f"Bearer {self.server.token}".encode()):
            self.server.activity.seen()
            return True
        self._answer(401)
        return False

    def _send(self, path):
        try:
            with open(path, "rb") as handle:
                size = os.fstat(handle.fileno()).st_size
                first, last = self._range(size)
                if first > last:
                    self._answer(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
                self.send_header("Content-Length", str(last - first + 1))
                self.end_headers()
                self._send_bytes(handle, first, last + 1)
        except FileNotFoundError:
            self._answer(404)
        except PermissionError:
            self._answer(403)

    def _range(self, size):
        found = _RANGE.match(self.headers.get("Range", "bytes=0-"))
        first, last = (int(found.group(1)), found.group(2)) if found else (0, None)
        return first, min(int(last) if last else size - 1, size - 1)

    def _send_bytes(self, handle, first, end):
        while first < end:
            sent = self.connection.sendfile(handle, first, min(CHUNK, end - first))
            if not sent:
                # The file became shorter: the answer cannot be what was promised.
                self.close_connection = True
                return
            first += sent
            self.server.activity.seen()

    def _answer(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format, *arguments):
        """Nobody reads it."""


def _run(servers, activity):
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    activity.wait()


def _detach(work):
    """Runs ``work`` in a process that outlives this one and its session; returns its process id."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        os.setsid()
        if os.fork() == 0:
            os.write(writing, str(os.getpid()).encode())
            os.close(writing)
            _let_go_of_the_caller()
            with contextlib.suppress(BaseException):
                work()
        os._exit(0)
    os.close(writing)
    os.wait()
    with os.fdopen(reading) as told:
        return int(told.read())


def _let_go_of_the_caller():
    """SSH waits for everybody who holds its pipes."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


# --- the host that wants them


def fetch(offer, entries, folder, advance=None, streams=4):
    """Brings files into a folder; what is there of a file already is kept, and only the rest is asked for.

    Args:
        offer: what `serve` returned.
        entries: [{"path": name, "size": bytes}].
        folder: where they go, each under its name.
        advance: called with the bytes of every chunk, from several threads.
        streams: files at a time.
    Raises: TransferError where the other host cannot be reached or does not give a file; OSError where the disk fails.
    """
    source = Source(offer)
    in_parallel(
        lambda entry: fetch_file(source, entry, os.path.join(folder, entry["path"]), advance or (lambda size: None)),
        entries,
        streams,
    )


def in_parallel(work, entries, streams=4):
    """Does the work for every entry, several at a time; the first that fails ends all of it."""
    failed = threading.Event()

    def guarded(entry):
        if failed.is_set():
            return
        try:
            work(entry)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(max_workers=streams) as pool:
        for future in [pool.submit(guarded, entry) for entry in entries]:
            future.result()


class Source:
    """The other host, at the first of its addresses that answers."""

    def __init__(self, offer):
        # Never through a proxy: the addresses are of the hosts' own network.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._token = offer["token"]
        self._url = self._reachable(offer["urls"])

    def _reachable(self, urls):
        problems = []
        for url in urls:
            try:
                self._request(url, CONNECT_SECONDS).close()
            except (OSError, HTTPException) as error:
                problems.append(f"{url} ({_reason(error)})")
            else:
                return url
        raise TransferError(
            "The host that has the files cannot be reached from here: {}. Let this host connect to it (a firewall "
            "needs a fixed port: transfer_port), or name the address that it listens on "
            "(transfer_address).".format("; ".join(problems))
        )

    def open(self, name, first, last):
        """The answer with the bytes from ``first`` to ``last``."""
        url = self._url + urllib.parse.quote(name)
        return self._request(url, STALL_SECONDS, {"Range": f"bytes={first}-{last}"})

    def _request(self, url, timeout, headers=None, method="GET"):
        told = dict(headers or {}, Authorization=f"Bearer {self._token}")
        return self._opener.open(urllib.request.Request(url, headers=told, method=method), timeout=timeout)

    def withdraw(self):
        self._request(self._url, CONNECT_SECONDS, method="DELETE").close()


def _reason(error):
    return str(getattr(error, "reason", None) or error)


def fetch_file(source, entry, path, advance):
    """Brings what is missing of one file, {"path": name, "size": bytes}; raises as `fetch` does."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "ab") as handle:
        if handle.tell() > entry["size"]:
            handle.truncate(entry["size"])
        broken = 0
        while handle.tell() < entry["size"]:
            before = handle.tell()
            try:
                _receive(source, entry, handle, advance)
            except urllib.error.HTTPError as error:
                raise TransferError(_refusal(entry, error.code)) from None
            except (OSError, HTTPException) as error:
                if _is_of_the_disk(error):
                    raise
                broken = broken + 1 if handle.tell() == before else 1
                if broken > PATIENCE:
                    raise TransferError(
                        "The copy of {} broke off at {} of {} bytes ({}). What is there is kept: run the same command "
                        "again, it goes on from there.".format(entry["path"], before, entry["size"], _reason(error))
                    ) from None
                time.sleep(broken)
        handle.flush()
        os.fsync(handle.fileno())


def _receive(source, entry, handle, advance):
    with source.open(entry["path"], handle.tell(), entry["size"] - 1) as answer:
        while handle.tell() < entry["size"]:
            chunk = answer.read(min(CHUNK, entry["size"] - handle.tell()))
            if not chunk:
                raise HTTPException("the other host ended the connection")
            handle.write(chunk)
            advance(len(chunk))


def _is_of_the_disk(error):
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)


def _refusal(entry, status):
    reasons = {
        401: "the token is not the one that it was started with",
        403: "it may not read the file",
        404: "the file is not there any more",
        416: "the file there is shorter than it was",
    }
    return "The host that has {} does not give it: {} (HTTP {}).".format(
        entry["path"], reasons.get(status, "it answered with an error"), status
    )


def withdraw(offer):
    """Ends the process that hands the files out. It ends by itself if this does not reach it."""
    with contextlib.suppress(TransferError, OSError, HTTPException):
        Source(offer).withdraw()
