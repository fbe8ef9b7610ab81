"""A second page of one project says which process serves the first, and joins only when told to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from labelwise.errors import StoreError
from labelwise.project.page_lock import FILE, check_page, page_lock

LINK = "http://127.0.0.1:8765/"


def test_a_second_page_is_refused_with_the_address_and_process_of_the_first(tmp_path: Path) -> None:
    check_page(tmp_path, join=False)
    assert not (tmp_path / FILE).exists()
    said = rf"runs already, at {LINK} \(process {os.getpid()}\)\. Open that address; .* --join"
    with page_lock(tmp_path, LINK):
        with pytest.raises(StoreError, match=said), page_lock(tmp_path, "http://127.0.0.1:8766/"):
            pass
        with pytest.raises(StoreError, match=said):
            check_page(tmp_path, join=False)
        check_page(tmp_path, join=True)
    check_page(tmp_path, join=False)
    with page_lock(tmp_path, LINK):
        pass


def test_a_page_that_joins_says_whom(tmp_path: Path) -> None:
    said: list[str] = []
    with page_lock(tmp_path, LINK), page_lock(tmp_path, "http://127.0.0.1:8766/", join=True, say=said.append):
        assert said == [
            f"Joining the page that runs already, at {LINK} (process {os.getpid()}). Its worker trains and chooses for "
            "both."
        ]
    with page_lock(tmp_path, LINK, join=True, say=said.append):  # there is none to join
        assert len(said) == 1
        (tmp_path / FILE).write_text(f'{{"pid": 7, "host": "other", "link": "{LINK}"}}')
        with pytest.raises(StoreError, match=rf"at {LINK} \(process 7 on other\)"):
            check_page(tmp_path, join=False)
        (tmp_path / FILE).write_text("{")
        with pytest.raises(StoreError, match="runs already, in another process"):
            check_page(tmp_path, join=False)


@pytest.mark.slow
def test_the_lock_of_a_killed_page_is_free(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from labelwise.project.page_lock import page_lock\n"
        f"with page_lock(Path(sys.argv[1]), {LINK!r}):\n    print('ready', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as page:
        assert page.stdout is not None
        assert page.stdout.readline() == b"ready\n"
        with pytest.raises(StoreError, match=rf"process {page.pid}\)"):
            check_page(tmp_path, join=False)
        page.kill()
    check_page(tmp_path, join=False)
    assert socket.gethostname() in (tmp_path / FILE).read_text()  # a name that means nothing any more
