"""What the tests of the scenario share: an engine over two hosts that serves the old release before each test."""

from __future__ import annotations

import pytest
from pair import OLD, Pair, playbook


@pytest.fixture(scope="session")
def engine() -> Pair:
    """The engine over both hosts, for tests that only look."""
    return Pair()


@pytest.fixture
def pair(engine: Pair) -> Pair:
    """The engine over both hosts, serving the old release; whatever the test before did to it is undone."""
    engine.heal()
    if not engine.serves_again(OLD):
        playbook().succeeded()
    assert engine.serves() == OLD, engine.journals()
    return engine
