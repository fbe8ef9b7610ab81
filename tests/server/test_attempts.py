"""Wrong tokens: a few are free, then an address waits longer and longer; others do not."""

import pytest

from fake_project import Browser, fake_project, running
from labelwise.server import Auth
from labelwise.server.attempts import FORGOTTEN, FREE, LONGEST, REMEMBERED, Attempts

TOKEN = "0123456789abcdef"


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def attempts(clock):
    return Attempts(clock)


def test_waits_double_up_to_a_limit_and_are_forgotten(attempts, clock):
    waits = []
    for _ in range(FREE + 9):
        attempts.fail("10.0.0.1")
        waits.append(attempts.wait("10.0.0.1"))
    assert waits == [0.0] * FREE + [1, 2, 4, 8, 16, 32, LONGEST, LONGEST, LONGEST]
    assert attempts.wait("10.0.0.2") == 0
    clock.now += 50
    assert attempts.wait("10.0.0.1") == LONGEST - 50
    clock.now += FORGOTTEN
    assert attempts.wait("10.0.0.1") == 0
    attempts.fail("10.0.0.1")
    assert attempts.wait("10.0.0.1") == 0


def test_the_right_token_ends_the_count(attempts):
    for _ in range(FREE + 3):
        attempts.fail("10.0.0.1")
    attempts.succeed("10.0.0.1")
    assert attempts.wait("10.0.0.1") == 0


def test_a_network_of_ipv6_is_one_address_and_memory_is_bounded(attempts):
    for number in range(FREE + 2):
        attempts.fail(f"2001:db8::{number:x}")
    assert attempts.wait("2001:db8::ffff") > 0
    assert attempts.wait("2001:db8:0:1::1") == 0
    for number in range(REMEMBERED + 10):
        attempts.fail(f"10.1.{number // 256}.{number % 256}")
    assert len(attempts._failed) == REMEMBERED


def test_guessing_tokens_is_slowed_down_and_people_who_are_in_stay_in(tmp_path):
    project = fake_project(tmp_path / "project", ["one", "two"])
    auth = Auth.make(project.folder, token=TOKEN)
    with running(project, auth) as address, Browser(address, auth) as anna, Browser(address, auth, None) as thief:
        for guess in range(FREE + 1):
            assert thief.get("/", params={"token": f"{guess:016}"}).status_code == 401
        reply = thief.get("/", params={"token": f"{FREE + 1:016}"})
        assert reply.status_code == 429
        assert int(reply.headers["retry-after"]) >= 1
        assert "wrong tokens" in reply.text
        assert thief.get("/", params={"token": TOKEN}).status_code == 429  # else a guess would be tested all the same
        assert thief.get("/").status_code == 401
        assert anna.get("/card").status_code == 200
        assert anna.get("/", params={"token": TOKEN}).status_code == 200
    project.close()


def test_addresses_behind_a_trusted_proxy_are_told_apart(tmp_path):
    from labelwise.server.connections import Limits

    project = fake_project(tmp_path / "project", ["one", "two"])
    auth = Auth.make(project.folder, token=TOKEN)
    for proxies, expected in ((frozenset({"127.0.0.1"}), 200), (frozenset(), 429)):
        with running(project, auth, Limits(proxies=proxies)) as address, Browser(address, auth, None) as browser:
            for _ in range(FREE + 1):
                browser.get("/?token=wrong", headers={"x-forwarded-for": "10.9.9.9"})
            assert browser.get("/?token=wrong", headers={"x-forwarded-for": "10.9.9.9"}).status_code == 429
            reply = browser.get(
                f"/?token={TOKEN}", headers={"x-forwarded-for": "10.8.8.8", "x-forwarded-proto": "https"}
            )
            assert reply.status_code == expected
            assert ("Secure" in reply.headers.get("set-cookie", "")) == bool(proxies)
    project.close()
