# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import base64
import json

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._docker_credentials import registry_headers

LOGIN = {"auth": base64.b64encode(b"gpu:p:w").decode()}


def headers(folder, registry, config):
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    sent = registry_headers(registry, str(folder)).get("X-Registry-Auth")
    return sent and json.loads(base64.urlsafe_b64decode(sent))


def test_what_docker_login_wrote(tmp_path):
    config = {"auths": {"registry.example:5000": LOGIN, "https://index.docker.io/v1/": {"identitytoken": "t"}}}
    assert headers(tmp_path, "registry.example:5000", config) == {
        "username": "gpu",
        "password": "p:w",
        "serveraddress": "registry.example:5000",
    }
    told = headers(tmp_path, "docker.io", config)
    assert told == {"identitytoken": "t", "serveraddress": "https://index.docker.io/v1/"}
    assert headers(tmp_path, "another.example", config) is None


@pytest.mark.parametrize("user", ["gpu", "<token>"])
def test_a_credential_helper_is_asked(tmp_path, monkeypatch, user):
    helper = tmp_path / "docker-credential-vault"
    helper.write_text(
        f'#!/bin/sh\nread key\necho \'{{"Username": "{user}", "Secret": "\'"$key"\'"}}\'\n', encoding="utf-8"
    )
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    told = headers(tmp_path, "r.example", {"credHelpers": {"r.example": "vault"}, "auths": {"r.example": {}}})
    secret = {"identitytoken": "r.example"} if user == "<token>" else {"username": user, "password": "r.example"}
    assert told == {**secret, "serveraddress": "r.example"}


@pytest.mark.parametrize("config", [{}, {"credsStore": "is-not-installed"}, {"auths": {"r.example": {"auth": "%"}}}])
def test_nobody_logged_in(tmp_path, config):
    assert headers(tmp_path, "r.example", config) is None


def test_there_is_no_config(tmp_path):
    assert registry_headers("r.example", str(tmp_path)) == {}
