# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._catalogue import release
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning.settings import read_pins

RELEASE = release("v0.32.0")


def read(**instance):
    pins, errors = read_pins({"name": "chat", **instance}, RELEASE)
    return pins, [error["message"] for error in errors]


def test_an_unknown_argument_is_refused_and_says_how_to_force_it():
    _pins, messages = read(engine_args={"my_argument": 1})
    assert len(messages) == 1
    assert "force_args: [my_argument]" in messages[0]


@pytest.mark.parametrize("spelled", ["my_argument", "--my-argument"])
def test_a_forced_argument_is_passed_on(spelled):
    pins, messages = read(engine_args={"my_argument": 1}, force_args=[spelled])
    assert messages == []
    assert pins.values["my_argument"] == 1


def test_forcing_one_argument_forces_no_other():
    _pins, messages = read(extra_args=["--my-argument", "1", "--other", "2"], force_args=["my_argument"])
    assert len(messages) == 1
    assert "--other" in messages[0]


def test_a_secret_cannot_be_forced():
    _pins, messages = read(engine_args={"api_key": "x"}, force_args=["api_key"])
    assert messages == [
        "--api-key on the command line shows the secret to everyone who can list processes; set vllm_api_key instead"
    ]
