"""One store for all tests of a worker; each test has a folder of its own in it."""

import pytest

from tests.stores.store import denied, object_store


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    with object_store(tmp_path_factory.mktemp("moto")) as found:
        yield found


@pytest.fixture
def refusing():
    """Where a store answers that takes no keys."""
    with denied() as endpoint:
        yield endpoint
