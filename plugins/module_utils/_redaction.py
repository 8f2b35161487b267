# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes secrets and the names of users out of logs and files. Private to the collection.

What is a secret is known by the name before it, by the place where it stands (a header, a URL) or by its shape. A
secret that is known, such as the key of an engine, is taken out wherever it stands, also as JSON, URLs, HTML and
base64 write it. Text within JSON within JSON has backslashes before its quotes: quotes are looked for with any number.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
import urllib.parse

HIDDEN = "***"
# A shorter value is too likely to be a part of something else.
_SHORTEST_VALUE = 6
_SHORTEST_BASE64 = 8

# "token" alone is mostly one of a language model: max_tokens, pad_token, tokenizer. "pass" is one of a compiler.
_NAME = (
    r"(?:[\w-]*(?:api[ _-]?keys?|passwords?|passwd|passphrase|secrets?|credentials?"
    r"|(?:access|account|private|secret|signing|encryption)[_-]?(?:access[_-]?)?key(?:[_-]?id)?)"
    r"|[\w-]*(?<!num)[_-](?:pass|pwd)|(?<![\w-])pass(?==)"
    r"|[\w-]*(?:hf|hub|auth|access|api|bearer|refresh|session|identity|git\w*|registry|personal)[ _-]?tokens?"
    r"|(?<![\w/-])token)"
)
# No more backslashes than a program writes: without a limit, a long row of them would take forever.
_QUOTE = r"""\\{0,15}['"]"""
_OPENED = rf"(?:b?{_QUOTE})?"
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|(?P<quote>\\{1,15}['"])(?:(?!(?<!\\)(?P=quote))[\s\S])*(?P=quote)"""
# What stands in quotes, a list, a dictionary, or the word that follows.
_VALUE = (
    r"""(?P<value>\[(?:[^\]'"\\]|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\\+(?:(?!\\)['"]|(?![\\'"])))*\]|\{[^{}]*\}|"""
    + _QUOTED
    + r"""|[^\s\0,;&}'"\[\])\\{<]+)"""
)
# A name may end in a quote, and Python writes bytes as b'...' and some values as SecretStr('...').
_IS = rf"""(?:{_QUOTE})?(?:[ \t]*(?:=>|[:=])(?:[ \t]*|\s*(?={_QUOTE}|[\[{{])))(?:(?:[A-Za-z]\w*\(|b)(?={_QUOTE}))?"""
_NOTHING = r"(?!(?:None|null|true|false)\b)"
_IN_QUERY = r"(?:[?&]|%3F|%26|\\u0026)"


def _hidden(match):
    """The match with its value hidden in the same quotes: what was JSON is JSON."""
    before, value = match.group(1), match.group("value")
    quotes = re.findall(_QUOTE, value)
    if quotes and value.endswith(quotes[-1]):
        return before + quotes[0] + HIDDEN + quotes[0]
    if value[0] == "[":
        quote = quotes[0] if quotes else '"'
        return before + "[" + quote + HIDDEN + quote + "]"
    name = re.search(rf"({_QUOTE})[ \t]*:\s*\Z", before)
    return before + (name.group(1) + HIDDEN + name.group(1) if name else HIDDEN)


_PATTERNS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # colours would stand between a name and its value
        (r"\x1b\[[0-9;]*m", ""),
        (r"-----BEGIN [A-Z ]*PRIVATE KEY[A-Z ]*-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY[A-Z ]*-----|\Z)", HIDDEN),
        # headers, also as a dictionary or a tuple of bytes shows them
        (rf"(?i)(authorization(?:{_QUOTE})?\s*[:=,]\s*{_OPENED}(?:digest|aws4\S*)\s)[^\n]+", r"\1" + HIDDEN),
        (
            rf"(?i)(authorization(?:{_QUOTE})?\s*[:=,]\s*{_OPENED}(?:(?:bearer|basic|token|apikey)\\?\s+)?)"
            r"""[^\s'",\\]+""",
            r"\1" + HIDDEN,
        ),
        (r"(?i)(\bbearer\s+)[\w.~+/-]+=*", r"\1" + HIDDEN),
        (
            rf"""(?i)(\b(?:x-api-key|x-auth-token|(?:set-)?cookie)(?:{_QUOTE})?\s*[:=,]\s*{_OPENED})[^\n'"\\]+""",
            r"\1" + HIDDEN,
        ),
        # URLs
        (r"(\b[a-zA-Z][\w+.-]*:(?:\\?/){2})[^\s/'\"\\]+@", r"\1" + HIDDEN + "@"),
        (r"(?i)(%3A%2F%2F)(?:(?!%2F)[^\s/'\"])+%40", r"\1" + HIDDEN + "%40"),
        (
            rf"(?i)({_IN_QUERY}(?:[\w-]*token|[\w-]*key|sig|signature|x-amz-[\w-]+|x-goog-[\w-]+|password)(?:=|%3D))"
            r"""(?:(?!%26)[^&\s'"\\])+""",
            r"\1" + HIDDEN,
        ),
        # options; `vllm serve --api-key` takes as many words as there are before the next option
        (r"(?i)(--api-key(?:=|[ \t]+))" + _VALUE + r"(?:[ \t]+(?!-)\S+)*", _hidden),
        (rf"(?i)((?<![\w-])--(?=\w){_NAME}(?:=|[\s\0]+|{_QUOTE}\s*,\s*))" + _VALUE, _hidden),
        (r"""(\s(?:-u|--user|--proxy-user)[ =]?['"]?(?!\d+:)[^\s:'"]+:)[^\s'"]+""", r"\1" + HIDDEN),
        (r"(\blogin\b[^\n]{0,200}?\s-p[ =]?|\bsshpass\s+-p\s*)\S+", r"\1" + HIDDEN),
        (r"(?i)(\blogin\s+\S+\s+password\s+)\S+", r"\1" + HIDDEN),
        # YAML below a name
        (
            rf"(?im)^(([ \t]*)(?:- )?['\"]?{_NAME}['\"]?:)[ \t]*(?:[|>][-+\d]*)?[ \t]*\n"
            r"(?:(?:\2[ \t]+|\2- )\S.*(?:\n|\Z))+",
            r"\1 " + HIDDEN + "\n",
        ),
        # environment: what follows reaches to the next blank
        (r"(\b[A-Z][A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD|PASS|PWD)=)(?!['\"\\])[^\s'\"\\]+", r"\1" + HIDDEN),
        # dictionaries, assignments, tuples, XML
        (rf"(?i)((?:{_QUOTE})?(?<![\w-]){_NAME}{_IS}){_NOTHING}" + _VALUE, _hidden),
        (rf"(?i)({_QUOTE}auth{_QUOTE}\s*:\s*)(?P<value>{_QUOTED})", _hidden),
        (rf"(?i)(\(\s*b?{_QUOTE}{_NAME}{_QUOTE}\s*,\s*b?)(?P<value>{_QUOTED})", _hidden),
        (rf"(?i)(<{_NAME}>)[^<]+", r"\1" + HIDDEN),
        (r"(?i)(\bapi key provided: )\S+", r"\1" + HIDDEN),
        # shapes: Hugging Face, OpenAI, GitHub, GitLab, NVIDIA, Docker, Slack, AWS, Google, JSON web tokens
        (
            r"(?<![A-Za-z0-9])(?:hf_(?:oauth_)?[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}"
            r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|nvapi-[\w-]{16,}|dckr_pat_[\w-]{16,}"
            r"|xox[a-z]-[\w-]{10,}|A[KS]IA[A-Z0-9]{16}|AIza[\w-]{30,}|ya29\.[\w-]{20,}"
            r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)",
            HIDDEN,
        ),
    )
]
# Base64 without slashes at word boundaries would cut it; with them, paths are looked at, and are no text.
_BASE64 = re.compile(r"(?<![\w+/-])[\w+/-]{12,}={0,2}(?![\w+/=-])", re.ASCII)
_ACCOUNT = re.compile(r"[\w.@-]{1,64}:[^\s:]{4,}")

_SLASH = r"(?:\\{0,4}/|%2F){1,2}"
_PERSON = r"""(?!\*\*\*)(?:(?!%2F)[^/\s'":,;)\]}\\])+"""
_USERS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (rf"(?i)({_SLASH}(?:home\d*|Users|people|staff|scratch{_SLASH}users?){_SLASH}){_PERSON}", r"\1" + HIDDEN),
        (r"(?i)([A-Z]:\\+Users\\+)[^\\'\":,;\n]+(?=\\)", r"\1" + HIDDEN),
        (r"(?i)([A-Z]:\\+Users\\+)(?!\*\*\*)[^\\\s'\":,;]+", r"\1" + HIDDEN),
        (r"(\b(?:SUDO_USER|LOGNAME|USER|USERNAME)=['\"]?)(?!root\b|\*\*\*)[\w.-]+", r"\1" + HIDDEN),
        (r"((?<![\w/.])~)[a-z_][\w.-]*(?=/)", r"\1" + HIDDEN),
        (r"(\bsudo(?:\[\d+\])?:\s+)(?!root\b|\*\*\*)\S+(?= : )", r"\1" + HIDDEN),
        (r"(\bAccepted \S+ for )(?!root\b|\*\*\*)\S+", r"\1" + HIDDEN),
        (r"((?m:^)[-dlrwxsStT]{10}[.+@]?\s+\d+\s+)(?!root\b|\*\*\*)[a-zA-Z_][\w.-]*", r"\1" + HIDDEN),
        (r"\b[\w.+-]+@(?=[\w-]+(?:\.[\w-]+)+\b)", HIDDEN + "@"),
        (r"\b[\w.+-]+@(?=[\w-]+:[~/])", HIDDEN + "@"),
    )
]


def redact(text, values=()):
    """Returns ``text`` without the values of API keys, tokens and passwords. ``values``: secrets that are known."""
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _SHORTEST_VALUE:
            text = _without(text, value)
    text = _hide(text)
    return _BASE64.sub(_decoded, text)


def _hide(text):
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def _without(text, value):
    """The text without a value, however it is written."""
    for written in sorted(_spellings(value), key=len, reverse=True):
        text = text.replace(written, HIDDEN)
    for middle in _base64_middles(value):
        if middle in text:
            text = re.sub(r"[\w+/-]*" + re.escape(middle) + r"[\w+/-]*={0,2}", HIDDEN, text)
    return text


def _spellings(value):
    once = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    once |= {repr(value.encode())[2:-1], html.escape(value), value.replace("'", "'\\''")}
    once |= {re.sub(r'([\\"$`])', r"\\\1", value)}
    once |= {urllib.parse.quote(value, safe=safe) for safe in ("/", "")} | {urllib.parse.quote_plus(value)}
    twice = {json.dumps(written)[1:-1] for written in once | {value}}
    return once | twice | {json.dumps(written)[1:-1] for written in twice} | {value, value.encode().hex()}


def _base64_middles(value):
    """What base64 makes of a value wherever it begins in three bytes: the characters that depend on nothing else."""
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + value.encode()).decode()
        middle = encoded.rstrip("=")[-(-8 * before // 6) : (before + len(value.encode())) * 8 // 6]
        if len(middle) >= _SHORTEST_BASE64:
            yield middle
            yield middle.replace("+", "-").replace("/", "_")


def _decoded(match):
    """A word that is text in base64 is hidden if the text has a secret, or an account with its password."""
    word = match.group()
    try:
        raw = base64.b64decode(
            word.rstrip("=").translate(_STANDARD) + "=" * (-len(word.rstrip("=")) % 4), validate=True
        )
        text = raw.decode("ascii")
    except (binascii.Error, UnicodeDecodeError):
        return word
    if not text.isprintable() and "\n" not in text:
        return word
    return HIDDEN if _ACCOUNT.fullmatch(text.strip()) or _hide(text) != text else word


_STANDARD = str.maketrans("-_", "+/")


def redact_users(text):
    """Returns ``text`` without the names of users in paths and addresses."""
    for pattern, replacement in _USERS:
        text = pattern.sub(replacement, text)
    return text
