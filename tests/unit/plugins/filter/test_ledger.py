# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.gpufleet.vllm.plugins.filter.ledger import ledger


def test_a_line_that_was_cut_is_passed_over():
    assert ledger('{"release": 1}\n{"kind": "tune", "num\n3\n\n{"release": 2}\n') == [{"release": 1}, {"release": 2}]


def test_no_ledger_has_no_rows():
    assert ledger("") == []
