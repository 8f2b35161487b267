# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scripts behind the make targets."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

MAKEFILE = """\
good:
\t@echo good ran
bad:
\t@false
"""


@pytest.fixture
def tools(repository: Path) -> Path:
    return repository / "tools/ci"


def run(directory: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("stages", "status"), [(["good"], 0), (["bad", "good"], 1)])
def test_stages_go_on_after_a_failure_and_report_it(
    tools: Path, tmp_path: Path, stages: list[str], status: int
) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE, encoding="utf-8")
    result = run(tmp_path, sys.executable, tools / "stages.py", *stages)
    assert result.returncode == status
    assert "good ran" in result.stdout
    for stage in stages:
        assert re.search(rf"^{stage} +{'passed' if stage == 'good' else 'FAILED'} +\d+$", result.stdout, re.MULTILINE)
    assert ("make bad" in result.stdout) == ("bad" in stages)


def test_a_stage_beside_the_others_is_tried_once_more(tools: Path, tmp_path: Path) -> None:
    flaky = "flaky:\n\t@test -e tried || { touch tried; exit 1; }\n"
    (tmp_path / "Makefile").write_text(MAKEFILE + flaky, encoding="utf-8")
    result = run(tmp_path, sys.executable, tools / "stages.py", "good", "--beside", "flaky")
    assert result.returncode == 0
    assert re.search(r"^flaky +passed at the second try +\d+$", result.stdout, re.MULTILINE)
    result = run(tmp_path, sys.executable, tools / "stages.py", "good", "--beside", "bad")
    assert result.returncode == 1
    assert re.search(r"^bad +FAILED at the second try +\d+$", result.stdout, re.MULTILINE)


def test_python_finds_the_version_that_is_asked_for(tools: Path, tmp_path: Path) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = run(tmp_path, tools / "python.sh", "9.9", version)
    assert found.returncode == 0
    answer = run(tmp_path, found.stdout.strip(), "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    assert answer.stdout.strip() == version


def test_python_fails_where_no_version_is_there(tools: Path, tmp_path: Path) -> None:
    result = run(tmp_path, tools / "python.sh", "9.9")
    assert (result.returncode, result.stdout) == (1, "")


def test_export_copies_what_git_would_take(tools: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / ".collections").mkdir(parents=True)
    (source / ".collections/vllm").symlink_to("..")
    for name in ("tracked", "deleted", "new file", "ignored"):
        (source / name).write_text(name, encoding="utf-8")
    (source / ".gitignore").write_text("ignored\n", encoding="utf-8")
    run(source, "git", "init", "--quiet")
    run(source, "git", "add", "tracked", "deleted", ".collections")
    (source / "deleted").unlink()
    assert run(source, tools / "export.sh", tmp_path / "copy").returncode == 0
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == [".gitignore", "new file", "tracked"]


def test_shell_files_are_found_by_name_and_by_first_line(tools: Path, tmp_path: Path) -> None:
    run(tmp_path, "git", "init", "--quiet")
    (tmp_path / "named.sh").write_text("true\n", encoding="utf-8")
    (tmp_path / "run").write_text("#!/usr/bin/env bash\n", encoding="utf-8")
    (tmp_path / "notes").write_text("no shell\n", encoding="utf-8")
    (tmp_path / "tool").write_text("#!/usr/bin/env python3\n", encoding="utf-8")
    assert run(tmp_path, tools / "shell_files.sh").stdout.split() == ["named.sh", "run"]
