# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes secrets and the names of users out of logs and files. Private to the collection.

What is a secret is known by the name before it, by the place where it stands (a header, a URL) or by its shape. A
secret that is known, such as the key of an engine, is taken out wherever it stands.
"""

from __future__ import annotations

import re

HIDDEN = "***"
# A shorter value is too likely to be a part of something else.
_SHORTEST_VALUE = 6

# "token" alone is mostly one of a language model: max_tokens, pad_token, tokenizer.
_NAME = (
    r"(?:[\w-]*(?:api[_-]?keys?|passwords?|passwd|secrets?|secret[_-]?access[_-]?key|access[_-]?key(?:[_-]?id)?"
    r"|private[_-]?key|credentials?)|[\w-]*(?:hf|hub|auth|access|api|bearer|refresh|session|git\w*|registry|personal)"
    r"[_-]?tokens?|(?<![\w-])token)"
)
_VALUE = r"""(?P<value>\[[^\]]*\]|'[^']*'|"(?:[^"\\]|\\.)*"|[^\s,;&}'"\[\])]+)"""


def _hidden(match):
    """The match with its value hidden in the same quotes: what was JSON is JSON."""
    before, value = match.group(1), match.group("value")
    if value[0] in "'\"":
        return before + value[0] + HIDDEN + value[0]
    if value[0] == "[":
        quote = "'" if "'" in value else '"'
        return before + "[" + quote + HIDDEN + quote + "]"
    return before + ('"' + HIDDEN + '"' if re.search(r'":\s*\Z', before) else HIDDEN)


_PATTERNS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", HIDDEN),
        # headers, also as a dictionary shows them
        (
            r"""(?i)((?:proxy-)?authorization['"]?\s*[:=]\s*['"]?(?:(?:bearer|basic|token|digest)\s+)?)[^\s'",]+""",
            r"\1" + HIDDEN,
        ),
        (r"(?i)(\bbearer\s+)[\w.~+/-]+=*", r"\1" + HIDDEN),
        (r"""(?i)(\b(?:x-api-key|x-auth-token|set-cookie|cookie)['"]?\s*[:=]\s*['"]?)[^\s'",]+""", r"\1" + HIDDEN),
        # URLs
        (r"(\b[a-zA-Z][\w+.-]*://)[^\s/@'\"]+@", r"\1" + HIDDEN + "@"),
        (
            r"(?i)([?&](?:[\w-]*token|[\w-]*key|sig|signature|x-amz-[\w-]+|x-goog-[\w-]+|password)=)[^&\s'\"]+",
            r"\1" + HIDDEN,
        ),
        # options, environment, dictionaries
        # `vllm serve --api-key` takes as many words as there are before the next option
        (r"(?i)(--api-key(?:=|[ \t]+))" + _VALUE + r"(?:[ \t]+(?!-)\S+)*", _hidden),
        (r"(?i)(--" + _NAME + r"(?:=|\s+|['\"]\s*,\s*))" + _VALUE, _hidden),
        (r"(?i)(['\"]?" + _NAME + r"['\"]?\s*[:=]\s*)(?!None\b|null\b|true\b|false\b)" + _VALUE, _hidden),
        # shapes: Hugging Face, OpenAI, GitHub, GitLab, NVIDIA, AWS, JSON web tokens
        (
            r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|glpat-[\w-]{16,}|nvapi-[\w-]{16,}"
            r"|AKIA[A-Z0-9]{16}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)",
            HIDDEN,
        ),
    )
]
_USERS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"((?:/export)?/(?:home|Users)/)(?!\*\*\*)[^/\s'\":,;)\]}]+", r"\1" + HIDDEN),
        (r"(/(?:users|people|staff|scratch/users?)/)(?!\*\*\*)[^/\s'\":,;)\]}]+", r"\1" + HIDDEN),
        (r"([A-Za-z]:\\\\?Users\\\\?)[^\\\s'\":,;]+", r"\1" + HIDDEN),
        (r"\b[\w.+-]+@(?=[\w-]+(?:\.[\w-]+)+\b)", HIDDEN + "@"),
    )
]


def redact(text, values=()):
    """Returns ``text`` without the values of API keys, tokens and passwords. ``values``: secrets that are known."""
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _SHORTEST_VALUE:
            text = text.replace(value, HIDDEN)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def redact_users(text):
    """Returns ``text`` without the names of users in paths and addresses."""
    for pattern, replacement in _USERS:
        text = pattern.sub(replacement, text)
    return text
