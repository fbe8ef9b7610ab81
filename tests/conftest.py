"""Fixtures of more than one file, and markers that follow from fixtures: `browser`, `postgres`, `ray`; and `gpu`."""

import contextlib
import functools
import signal
import sqlite3
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from private_postgres import PrivatePostgres, leave_out, programs


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C be heard: a run started in the background was told to ignore it, and what it starts inherits that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.version_info < (3, 13):
        connect = functools.partial(sqlite3.connect, factory=WatchedConnection)
        sqlite3.connect = sqlite3.dbapi2.connect = connect  # type: ignore[attr-defined]


class WatchedConnection(sqlite3.Connection):
    """A connection that warns if nobody closes it, as those of Python 3.13 do."""

    def __del__(self) -> None:
        with contextlib.suppress(sqlite3.ProgrammingError):  # it is closed
            _ = self.total_changes
            warnings.warn(f"unclosed database in {self!r}", ResourceWarning, stacklevel=1, source=self)


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the fixtures they use; leave out those marked `gpu` where there is no CUDA device."""
    by_fixture = {"chromium": "browser", "postgres": "postgres", "cluster": "ray"}
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in by_fixture:
                item.add_marker(by_fixture[fixture])
        if getattr(getattr(item, "callspec", None), "params", {}).get("new_store_url") == "postgresql":
            item.add_marker("postgres")
        if "shards/ray" in item.nodeid:
            item.add_marker("ray")
    if any(item.get_closest_marker("gpu") for item in items):
        import torch

        for item in items:
            if item.get_closest_marker("gpu") and not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PrivatePostgres]:
    """A PostgreSQL of this test run's own."""
    found = programs()
    if found is None:
        leave_out("PostgreSQL's programs (initdb, pg_ctl) are not installed: apt-get install postgresql")
        return
    server = PrivatePostgres(found)
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def new_store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Addresses of stores that are not there yet; each test that asks for this runs against both databases."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgres").url
    numbers = iter(range(1000))
    return lambda: f"sqlite:///{tmp_path}/store{next(numbers)}.db"


@pytest.fixture
def store_url(new_store_url: Callable[[], str]) -> str:
    """The address of one store that is not there yet."""
    return new_store_url()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of this machine alone, with two CPUs whatever the machine has."""
    ray = pytest.importorskip("ray")
    from labelwise.shards.ray import Ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray warns of its own future defaults
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
        yield Ray(workers=2)
        ray.shutdown()
