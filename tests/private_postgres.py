"""A PostgreSQL of the tests' own, from Debian's package: a unix socket in a temporary folder, no port."""

from __future__ import annotations

import getpass
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import quote

import pytest

# What makes leaving a test out a failure: CI installs everything that the tests can use.
STRICT = "LABELWISE_CI"


def leave_out(reason: str) -> None:
    """Skip the test; in CI, where nothing may be left out, fail."""
    if os.environ.get(STRICT):
        pytest.fail(f"{reason}; {STRICT} is set, so nothing may be left out", pytrace=False)
    pytest.skip(reason)


def programs() -> Path | None:
    """The folder of the newest initdb and pg_ctl, if there is one."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name.split(".")[0]))
    folders += [Path(found).parent for found in [shutil.which("initdb")] if found]
    usable = [folder for folder in folders if (folder / "initdb").exists() and (folder / "pg_ctl").exists()]
    return usable[-1] if usable else None


class PrivatePostgres:
    """A server; each `url()` is an empty schema in it. fsync is off: what is killed here are clients alone."""

    def __init__(self, programs: Path, fsync: bool = False) -> None:
        self._programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="lwpg", dir="/tmp"))  # short: the path of a socket is
        self._user = _user()
        if os.getuid() == 0:
            shutil.chown(self.folder, self._user)
        self._numbers = itertools.count(1)
        self._run("initdb", "-D", str(self._data), "-U", "labelwise", "-A", "trust", "-E", "UTF8", "--no-locale", "-N")
        options = f"-c listen_addresses='' -c fsync={'on' if fsync else 'off'} -c max_connections=200 -k {self.folder}"
        log = str(self.folder / "log")
        self._run("pg_ctl", "-D", str(self._data), "-w", "-t", "180", "-l", log, "-o", options, "start")

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def url(self, schema: str | None = None) -> str:
        """The address of a fresh schema, or of the one named."""
        import psycopg

        name = schema or f"project{next(self._numbers)}"
        with psycopg.connect(host=str(self.folder), user="labelwise", dbname="postgres", autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name}")
        options = quote(f"-csearch_path={name}")
        return f"postgresql://labelwise@/postgres?host={quote(str(self.folder))}&options={options}"

    def stop(self) -> None:
        """Stop the server and remove its folder."""
        self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        # PostgreSQL refuses to run as root.
        as_whom = {"user": self._user, "group": self._user, "extra_groups": []} if os.getuid() == 0 else {}
        with tempfile.TemporaryFile("w+") as output:  # not a pipe: the server would keep it open
            done = subprocess.run(
                [str(self._programs / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"},
                timeout=200,  # seconds; two on a quiet machine
                **as_whom,
            )
            output.seek(0)
            assert done.returncode == 0, f"{program}: {output.read()}"


def _user() -> str:
    if os.getuid() != 0:
        return getpass.getuser()
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"
