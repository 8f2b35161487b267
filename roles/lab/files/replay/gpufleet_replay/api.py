# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP API: the routes, answers, errors and the guard of vLLM's API server."""

from __future__ import annotations

import hmac
import json
import socket
import socketserver
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from . import metrics, wording
from .engine import Dead, Engine, count_tokens, tokens_of
from .faults import Faults
from .processes import Processes
from .settings import Settings

# The paths below which the API key is asked for (AuthenticationMiddleware).
_GUARDED = (
    ["0.9.0", ["/v1"]],
    ["0.22.0", ["/v1", "/v2", "/inference"]],
    ["0.27.0", ["/v1", "/v2", "/inference", "/cohere"]],
)
_NO_TEMPLATE = (
    "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template if the "
    "tokenizer does not define one."
)
_LONGEST_BODY = 16 << 20
_COMPLETION_TOKENS = 16


class Refused(Exception):
    """A request gets an error for an answer."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind


class Api:
    """What the handler of a request needs to know. engine: None until the engine serves."""

    def __init__(self, release: str, settings: Settings, processes: Processes, keys: list[str]) -> None:
        self.release = release
        self.settings = settings
        self.processes = processes
        self.engine: Engine
        self.faults: Faults
        self.completions = 0
        self._keys = keys
        self._guarded = wording.of_release(list(_GUARDED), release)[0]

    def asked(self, *names: str) -> bool:
        """Whether one of these faults is asked for while serving."""
        return any(fault["fault"] in names for fault in self.faults.due("serving"))

    def admits(self, path: str, authorization: str | None) -> bool:
        """Whether a request may pass without a key, or has one."""
        if not self._keys or not path.startswith(tuple(self._guarded)) or self.asked("no_key_check"):
            return True
        scheme, _space, key = (authorization or "").partition(" ")
        return scheme.lower() == "bearer" and any(hmac.compare_digest(key.encode(), own.encode()) for own in self._keys)

    def error(self, refused: Refused) -> dict[str, Any]:
        """The body of an error as the release writes it."""
        body = {"message": refused.message, "type": refused.kind, "param": None, "code": refused.status}
        return {"error": body} if wording.since(self.release, "0.10.1") else {"object": "error", **body}


class Server(ThreadingHTTPServer):
    """Takes its port when it is told to, and listens later, as vLLM's does."""

    daemon_threads = True
    request_queue_size = 128
    api: Api

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), Handler, bind_and_activate=False)

    def server_bind(self) -> None:
        """Does not ask the DNS for the name of the address, as http.server would: hosts of the lab have none."""
        socketserver.TCPServer.server_bind(self)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_REPORT(self) -> None:
        """vLLM's server takes any method, and no route of it has this one."""
        self._serve("REPORT")

    def log_message(self, format: str, *args: Any) -> None:
        """The access log is written with the status, in _answer."""

    def _serve(self, method: str) -> None:
        api = self.server.api
        path = self.path.partition("?")[0]
        body = self.rfile.read(min(int(self.headers.get("Content-Length") or 0), _LONGEST_BODY))
        try:
            if not api.admits(path, self.headers.get("Authorization")):
                self._answer(401, {"error": "Unauthorized"})
            elif path not in routes(api):
                self._answer(404, {"detail": "Not Found"})
            elif method not in routes(api)[path]:
                self._answer(405, {"detail": "Method Not Allowed"})
            else:
                self._call(routes(api)[path][method], body)
        except Refused as refused:
            self._answer(refused.status, api.error(refused))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _call(self, handle: Callable[[Api, dict[str, Any]], Any], body: bytes) -> None:
        """Answers with what the route's function returns: JSON, a text, nothing, or the chunks of a stream."""
        try:
            answer = handle(self.server.api, _object(body) if body else {})
            if isinstance(answer, Iterator):
                self._stream(answer)
            else:
                self._answer(200, answer)
        except Dead:
            self._answer(
                500, self.server.api.error(Refused(500, "EngineCore encountered an issue.", "InternalServerError"))
            )

    def _answer(self, status: int, answer: Any) -> None:
        is_text = isinstance(answer, str)
        content = b"" if answer is None else answer.encode() if is_text else json.dumps(answer).encode()
        self._access(status)
        self.send_response(status)
        if answer is not None:
            self.send_header("Content-Type", "text/plain; version=0.0.4" if is_text else "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, chunks: Iterator[dict[str, Any]]) -> None:
        self._access(200)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for chunk in chunks:
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def _access(self, status: int) -> None:
        host, port = self.client_address[:2]
        phrase = HTTPStatus(status).phrase
        line = f'INFO:     {host}:{port} - "{self.command} {self.path} HTTP/1.1" {status} {phrase}'
        self.server.api.processes.api.raw(line)

    def version_string(self) -> str:
        return "uvicorn"


def routes(api: Api) -> dict[str, dict[str, Callable[[Api, dict[str, Any]], Any]]]:
    """Path -> method -> function, of what an engine for this task offers."""
    offered: dict[str, dict[str, Callable[[Api, dict[str, Any]], Any]]] = {
        "/health": {"GET": _health},
        "/ping": {"GET": _health, "POST": _health},
        "/version": {"GET": lambda api, request: {"version": api.release}},
        "/load": {"GET": lambda api, request: {"server_load": api.engine.counts.running}},
        "/metrics": {"GET": lambda api, request: metrics.text(api.engine, api.release, api.settings["metrics"])},
        "/openapi.json": {"GET": _openapi},
        "/tokenize": {"POST": _tokenize},
        "/v1/models": {"GET": _models},
        "/invocations": {"POST": _invocations},
    }
    if api.engine.config["task"] == "generate":
        offered.update({"/v1/chat/completions": {"POST": _chat}, "/v1/completions": {"POST": _complete}})
    else:
        offered["/v1/embeddings"] = {"POST": _embed}
    return offered


def _object(body: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError:
        raise Refused(400, "[{'type': 'json_invalid', 'msg': 'JSON decode error'}]", "Bad Request") from None
    if not isinstance(parsed, dict):
        raise Refused(400, "[{'type': 'model_attributes_type'}]", "Bad Request")
    return parsed


def _health(api: Api, request: dict[str, Any]) -> None:
    if api.engine.dead.is_set() or api.asked("unhealthy"):
        raise Refused(503, "Service Unavailable", "ServiceUnavailable")


def _openapi(api: Api, request: dict[str, Any]) -> dict[str, Any]:
    paths: dict[str, Any] = {path: {method.lower(): {} for method in methods} for path, methods in routes(api).items()}
    return {"openapi": "3.1.0", "info": {"title": "FastAPI", "version": "0.1.0"}, "paths": paths}


def _models(api: Api, request: dict[str, Any]) -> dict[str, Any]:
    config = api.engine.config
    models = [
        {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": config["model"],
            "parent": None,
            "max_model_len": config["max_model_len"],
        }
        for name in config["served_model_name"]
    ]
    return {"object": "list", "data": models}


def _tokenize(api: Api, request: dict[str, Any]) -> dict[str, Any]:
    tokens = tokens_of(request.get("prompt") or _prompt(request))
    return {"count": len(tokens), "max_model_len": api.engine.config["max_model_len"], "tokens": tokens}


def _invocations(api: Api, request: dict[str, Any]) -> Any:
    """SageMaker's route: whatever the request looks like, and without a key."""
    if "messages" in request:
        return _chat(api, request)
    return _embed(api, request) if "input" in request else _complete(api, request)


def _chat(api: Api, request: dict[str, Any]) -> Any:
    _begin(api, request, "Chat Completions")
    if api.asked("chat_template_missing"):
        api.processes.api.say(
            "ERROR",
            "serving_chat.py:257",
            f"Error in preprocessing prompt inputs\nTraceback (most recent call last):\nValueError: {_NO_TEMPLATE}",
        )
        raise Refused(400, _NO_TEMPLATE)
    prompt = _prompt(request)
    longest = request.get("max_completion_tokens") or request.get("max_tokens")
    return _respond(api, request, prompt, longest, chat=True)


def _complete(api: Api, request: dict[str, Any]) -> Any:
    _begin(api, request, "Completions")
    prompt = request.get("prompt")
    text = prompt if isinstance(prompt, str) else json.dumps(prompt)
    return _respond(api, request, text, request.get("max_tokens", _COMPLETION_TOKENS), chat=False)


def _embed(api: Api, request: dict[str, Any]) -> dict[str, Any]:
    _begin(api, request, "Embeddings")
    given = request.get("input")
    texts = [str(one) for one in given] if isinstance(given, list) else [str(given)]
    data = [
        {"object": "embedding", "index": index, "embedding": api.engine.embed(text)} for index, text in enumerate(texts)
    ]
    usage = {"prompt_tokens": sum(map(count_tokens, texts)), "completion_tokens": 0}
    usage["total_tokens"] = usage["prompt_tokens"]
    name = api.engine.config["served_model_name"][0]
    return {
        "id": _id("embd"),
        "object": "list",
        "created": int(time.time()),
        "model": name,
        "data": data,
        "usage": usage,
    }


def _begin(api: Api, request: dict[str, Any], what: str) -> None:
    """Counts a request for the model, and refuses what vLLM refuses, or what a fault asks to fail."""
    config = api.engine.config
    api.completions += 1
    if api.asked("hang"):
        api.engine.dead.wait()
        raise Dead
    if api.asked("request_error"):
        raise Refused(500, "Internal server error", "InternalServerError")
    model = request.get("model")
    if model is not None and model not in config["served_model_name"]:
        raise Refused(404, f"The model `{model}` does not exist.", "NotFoundError")
    if (what == "Embeddings") != (config["task"] == "embed"):
        raise Refused(400, f"The model does not support {what} API")


def _prompt(request: dict[str, Any]) -> str:
    return "\n".join(f"{message.get('role')}: {message.get('content')}" for message in request.get("messages") or [])


def _respond(api: Api, request: dict[str, Any], prompt: str, longest: int | None, chat: bool) -> Any:
    config = api.engine.config
    prompt_tokens = count_tokens(prompt)
    room = config["max_model_len"] - prompt_tokens
    if room < 1 or (longest or 1) > room:
        raise Refused(
            400,
            f"This model's maximum context length is {config['max_model_len']} tokens. However, you requested "
            f"{longest or 1} output tokens and your prompt contains {prompt_tokens} input tokens, for a total of "
            f"{prompt_tokens + (longest or 1)} tokens. Please reduce the length of the input prompt or the number of "
            "requested output tokens.",
        )
    longest = longest or room
    words = api.engine.answer(prompt, longest, bool(request.get("ignore_eos")))
    frame = _Frame(config["served_model_name"][0], chat, prompt_tokens, longest, api.asked("empty_answer"))
    if request.get("stream"):
        return frame.stream(words, bool((request.get("stream_options") or {}).get("include_usage")))
    return frame.whole(list(words))


class _Frame:
    """What stands around the words of an answer. silent: the words are left out."""

    def __init__(self, model: str, chat: bool, prompt_tokens: int, longest: int, silent: bool) -> None:
        self._chat = chat
        self._prompt_tokens = prompt_tokens
        self._longest = longest
        self._silent = silent
        kind = "chat.completion" if chat else "text_completion"
        self._head = {
            "id": _id("chatcmpl" if chat else "cmpl"),
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, words: list[str]) -> dict[str, Any]:
        text = "" if self._silent else " ".join(words)
        said = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": self._reason(len(words))}
        return {**self._head, "choices": [choice], "usage": self._usage(len(words))}

    def stream(self, words: Iterator[str], with_usage: bool) -> Iterator[dict[str, Any]]:
        head = {**self._head, "object": "chat.completion.chunk"} if self._chat else self._head
        count = 0
        for count, word in enumerate(words, 1):
            text = "" if self._silent else word if count == 1 else f" {word}"
            yield {**head, "choices": [{"index": 0, **self._piece(text), "finish_reason": None}]}
        yield {**head, "choices": [{"index": 0, **self._piece(""), "finish_reason": self._reason(count)}]}
        if with_usage:
            yield {**head, "choices": [], "usage": self._usage(count)}

    def _piece(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}} if self._chat else {"text": text}

    def _reason(self, count: int) -> str:
        return "length" if count >= self._longest else "stop"

    def _usage(self, count: int) -> dict[str, int]:
        total = self._prompt_tokens + count
        return {"prompt_tokens": self._prompt_tokens, "completion_tokens": count, "total_tokens": total}


def _id(kind: str) -> str:
    return f"{kind}-{time.monotonic_ns():032x}"
