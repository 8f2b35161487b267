"""What the tests of the scenario share: an engine over two hosts that serves the old release before each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pair import Pair, playbook


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The engine over both hosts, serving the old release; whatever a test did to it is undone."""
    pair = Pair()
    _put_back(pair)
    yield pair
    _put_back(pair)


def _put_back(pair: Pair) -> None:
    if not pair.heal():
        playbook().succeeded()
    assert pair.heal(), pair.journals()
