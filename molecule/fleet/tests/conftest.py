"""What the tests of the scenario share: three hosts that serve the old release before each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet import INVENTORY, Deployment, Host


@pytest.fixture(scope="session")
def all_hosts() -> list[Host]:
    return [Host(name) for name in INVENTORY["vllm"]["hosts"]]


class Playbooks:
    """Starts playbooks on the scenario's hosts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Deployment] = []

    def start(self, *hosts: Host, playbook: str = "deploy_vllm", **variables: Any) -> Deployment:
        log = self._folder / f"{playbook}-{len(self._started)}.log"
        self._started.append(Deployment(log, list(hosts), playbook, variables))
        return self._started[-1]

    def run(self, *hosts: Host, **variables: Any) -> Deployment:
        return self.start(*hosts, **variables).finish()

    def kill(self) -> None:
        for deployment in self._started:
            deployment.kill()


@pytest.fixture
def playbooks(tmp_path: Path) -> Playbooks:
    return Playbooks(tmp_path)


@pytest.fixture
def start(playbooks: Playbooks) -> Callable[..., Deployment]:
    """Starts a playbook: start(host, ..., variable=value)."""
    return playbooks.start


@pytest.fixture
def deploy(playbooks: Playbooks) -> Callable[..., Deployment]:
    """Runs a playbook to its end: deploy(host, ..., variable=value)."""
    return playbooks.run


@pytest.fixture
def fleet(all_hosts: list[Host], playbooks: Playbooks) -> Iterator[list[Host]]:
    """The hosts, each serving the old release; whatever a test did to them is undone."""
    _put_back(all_hosts, playbooks)
    yield all_hosts
    playbooks.kill()
    _put_back(all_hosts, playbooks)


def _put_back(hosts: list[Host], playbooks: Playbooks) -> None:
    ill = [host for host in hosts if not host.heal()]
    if ill:
        playbooks.run(*ill).succeeded()
    assert [host.name for host in hosts if not host.heal()] == []


@pytest.fixture
def host(fleet: list[Host]) -> Host:
    """The first host, for what one is enough for."""
    return fleet[0]
