"""Hostile requests to the labelling page of a project with annotators: each must be refused, or be harmless.

    python benchmarks/probes.py                       # writes its part of docs/results/reliability.md
    python benchmarks/probes.py --postgres postgresql://user@/db --dry

It talks to a server of its own on 127.0.0.1 alone. A probe is wrong if it gets a reply that it must not get (a page, a
file, an answer saved, a server error), or none where the server should go on. At the end the history must hold what was
done on purpose, and nothing else.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import hmac
import itertools
import json
import re
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from annotators import Server, free_port, make_project
from labelwise.project import Project
from labelwise.server import Auth
from labelwise.server.auth import IDLE_SECONDS, Session
from labelwise.stats.environment import environment
from reliability_page import write_part

EVIL = "<img src=x onerror=alert(1)>\"'>{{7*7}}<script>alert(1)</script>"
ROLES = {"olga": "own", "rita": "review", "ann": "label", EVIL[:60]: "label"}
SECRETS = ("root:x:", "SQLite format", "from __future__", "Traceback")
PAGES = ("/", "/gallery", "/report", "/review", "/people", "/history")
READS = (*PAGES, "/card", "/status", "/image/0", "/neighbours/0", "/download/labels.csv", "/download/history.csv")
LEAST = {
    "/report": "review", "/review": "review", "/people": "own", "/history": "own", "/download/labels.csv": "own",
    "/download/history.csv": "own", "/download/predictions.csv": "own", "/download/model.zip": "own",
}  # fmt: skip
WRITES = {
    "/answer": {"token": "t" * 20, "kind": "label", "value": "left"},
    "/undo": {"token": "u" * 20},
    "/class": {"name": "new"},
    "/change": {"row": "0", "choice": "label:left", "token": "c" * 20},
    "/decide": {"row": "0", "choice": "label:left", "seen": "0", "token": "d" * 20},
    "/people": {"name": "eve", "role": "own"},
    "/who": {"name": "olga"},
}
ODD = (
    "", " ", "-1", "0", "1e309", "nan", "-inf", str(2**63), str(10**30), "1" * 5000, "\x00", "\x1b[31m", "ü猫",
    "\ud7ff", "../../etc/passwd", "=1+1", "%00", "' OR 1=1 --",
    '"; DROP TABLE labelwise_event; --', EVIL, "x" * 9000,
    "null",
    "[]", "{}", "true", "\r\nSet-Cookie: a=b",
)  # fmt: skip


@dataclass(frozen=True)
class Reply:
    """What came back; status 0 if the connection was closed without a reply."""

    status: int
    head: str
    body: str


@dataclass(frozen=True)
class Probe:
    """A request as bytes, and whether a reply to it is as it should be."""

    name: str
    sent: bytes
    good: Callable[[Reply], bool]


def refused(*statuses: int) -> Callable[[Reply], bool]:
    """The request is refused: by one of these statuses, or by any below 500; nothing of a file or a traceback."""

    def good(reply: Reply) -> bool:
        known = reply.status in statuses if statuses else 400 <= reply.status < 500
        return known and not any(secret in reply.body for secret in SECRETS)

    return good


def not_an_error(reply: Reply) -> bool:
    """Whatever the reply is, the server did not fail, and no header was injected."""
    return 0 < reply.status < 500 and "a=b" not in reply.head and not any(one in reply.body for one in SECRETS)


class Site:
    """The page under attack, with sessions of its annotators."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = make_project(folder, 400, 60, store)
        self.auth = Auth.make(self.folder)
        project = Project.open(self.folder)
        for name, role in ROLES.items():
            project.store.set_annotator(name, role, "probes")  # type: ignore[arg-type]
        project.store.set_annotator("gone", "own", "probes")
        project.store.set_annotator("gone", None, "probes")
        project.close()
        self.server = Server(self.folder, free_port(), folder / "server.log")
        self.server.wait()
        self.host = f"127.0.0.1:{self.server.port}"
        self.sessions = {name: self.auth.new(name, 1) for name in (*ROLES, "gone")}

    def request(
        self,
        method: str,
        path: str,
        who: str | None = None,
        data: dict[str, str] | None = None,
        headers: dict[str, str | None] | None = None,
        body: bytes | None = None,
    ) -> bytes:
        """A request as a browser would send it for this person, but for `headers`; None leaves one out."""
        lines: dict[str, str | None] = {"Host": self.host, "Connection": "close"}
        if who is not None:
            session = self.sessions[who]
            lines |= {"Cookie": f"{self.auth.cookie}={self.auth.sign(session)}"}
            if method != "GET":
                lines |= {"Origin": f"http://{self.host}", "X-CSRF-Token": self.auth.csrf(session)}
        if data is not None:
            body = urlencode(data, errors="surrogatepass").encode()
            lines |= {"Content-Type": "application/x-www-form-urlencoded"}
        if body is not None:
            lines["Content-Length"] = str(len(body))
        lines |= headers or {}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
        return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("utf-8", "surrogatepass") + (body or b"")

    def reply(self, sent: bytes) -> Reply:
        """What the server says; it may close before all was sent."""
        got = b""
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=30) as line:
            with contextlib.suppress(OSError):
                line.sendall(sent)
            with contextlib.suppress(OSError):
                while piece := line.recv(1 << 16):
                    got += piece
        head, _, body = got.partition(b"\r\n\r\n")
        status = re.match(rb"HTTP/1.1 (\d{3})", head)
        return Reply(int(status[1]) if status else 0, head.decode("latin-1"), body.decode("utf-8", "replace"))


# --- the probes ------------------------------------------------------------------------------------------------------


def paths(site: Site) -> Iterator[Probe]:
    """Paths that may lead to files of the machine, the package or the project."""
    ups = (
        "../",
        "..%2f",
        "%2e%2e/",
        "%2e%2e%2f",
        "..%5c",
        "..\\",
        "%252e%252e%252f",
        "..;/",
        "....//",
        "%c0%ae%c0%ae/",
    )
    targets = ("etc/passwd", "app.py", "store.db", "page.key", "project.yaml", "log.txt")
    for start, up, target in itertools.product(
        ("/static/", "/static/charts/", "/image/", "/neighbours/", "/"), ups, targets
    ):
        for depth in (1, 6):
            path = f"{start}{up * depth}{target}"
            yield Probe(path, site.request("GET", path, "olga"), refused())
    others = (
        "/static//etc/passwd", "/static/%00", "/static/page.css%00.png", "//etc/passwd", "/image/0%00", "/image/1e0",
        "/docs", "/openapi.json", "/redoc", "/.git/config", "/image/-1", f"/image/{10**30}", "/static",
    )  # fmt: skip
    for path in others:
        yield Probe(
            path, site.request("GET", path, "olga"), lambda reply: refused()(reply) or reply.status in (307, 308)
        )


def hosts(site: Site) -> Iterator[Probe]:
    """Names that are not those of the server, or no names; none, two, and headers of proxies that nobody trusts."""
    port = site.server.port
    bad = [
        "evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example", "0.0.0.0", "127.1",
        "2130706433", "0x7f000001", "[::1", "[::1]x", "::1", "", " ", "127.0.0.1 evil", "127.0.0.1,evil",
        "127.0.0.1:1:2",
        "user@127.0.0.1", "127.0.0.1/", "127.0.0.1?x", "127.0.0.1#", "[]", "[127.0.0.1]", "xn--nxasmq6b", "ⓛocalhost",
        "169.254.169.254", "*", "..", "-", "_", "evil.example\t",
    ]  # fmt: skip
    for host, path in itertools.product(bad, ("/", "/card", "/static/page.css", "/people")):
        yield Probe(f"Host {host!r}", site.request("GET", path, "olga", headers={"Host": host}), refused(400, 421))
    for path in ("/", "/card"):
        yield Probe("no Host", site.request("GET", path, "olga", headers={"Host": None}), refused(400))
        two = site.request("GET", path, "olga").replace(b"\r\n", b"\r\nHost: evil.example\r\n", 1)
        yield Probe("two Hosts", two, refused(400))
        target = site.request("GET", f"http://evil.example{path}", "olga")
        yield Probe("absolute target", target, refused(400, 404))
        for name in ("X-Forwarded-Host", "X-Host", "Forwarded", "X-Original-URL", "X-Rewrite-URL"):
            sent = site.request("GET", "/people", "olga", headers={name: "evil.example"})
            yield Probe(name, sent, lambda reply: reply.status == 200 and "evil.example" not in reply.body)


def sessions(site: Site) -> Iterator[Probe]:
    """Cookies and tokens that are forged, cut, expired, revoked or of another project."""
    auth, session = site.auth, site.sessions["olga"]
    value = auth.sign(session)
    text, _, code = value.partition(".")

    def packed(values: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")

    other = Auth(b"x" * 32)
    now = time.time()
    forged = packed(["id", "olga", 1, now, now])
    cookies = [
        "", ".", text, f"{text}.", f".{code}", f"{text}.{code[:-1]}", f"{text}.{code}0", f"{text[:-2]}.{code}",
        f"{forged}.{code}", f"{forged}.{'0' * 40}", other.sign(session), value.upper(), "x" * 7000, "ü", '"', "\\054",
        f"{forged}.{hmac.new(b'', forged.encode(), hashlib.sha256).hexdigest()[:40]}",
    ]  # fmt: skip
    for seconds in (IDLE_SECONDS + 60, 40 * 86400, -7200):  # over, or from the future
        old = packed([session.id, "olga", 1, now - seconds, now - seconds])
        cookies.append(f"{old}.{auth._code('session', old)}")
    for who, link in (("olga", 0), ("olga", 2), ("gone", 1), ("nobody", 1), ("", 1), ("ann", -1)):
        cookies.append(auth.sign(Session("id", who, link)))
    for cookie, path in itertools.product(cookies, ("/card", "/people", "/download/labels.csv", "/")):
        sent = site.request("GET", path, headers={"Cookie": f"{auth.cookie}={cookie}"})
        yield Probe(f"cookie {cookie[:30]!r} on {path}", sent, refused(401, 400))
    shared = Auth.make(site.folder, "0.0.0.0").token or ""
    tokens = [
        shared,
        auth.token_of("gone", 1),
        auth.token_of("olga", 2),
        other.token_of("olga", 1),
        "",
        "0" * 32,
        "%00",
    ]
    for token, path in itertools.product(tokens, PAGES):
        sent = site.request("GET", f"{path}?token={token}")
        yield Probe(
            f"token {token[:8]}",
            sent,
            lambda reply: refused(401, 429)(reply) and "set-cookie" not in reply.head.lower(),
        )


def forged_posts(site: Site) -> Iterator[Probe]:
    """Posts that another site could make a browser send."""
    wrong: list[dict[str, str | None]] = [
        {"Origin": None}, {"Origin": "null"}, {"Origin": ""}, {"Origin": "http://evil.example"},
        {"Origin": f"https://{site.host}"}, {"Origin": "http://127.0.0.1:1"},
        {"Origin": f"http://{site.host}.evil.example"},
        {"X-CSRF-Token": None}, {"X-CSRF-Token": ""}, {"X-CSRF-Token": "0" * 40},
        {"X-CSRF-Token": site.auth.csrf(site.sessions["rita"])}, {"X-CSRF-Token": "ü"},
    ]  # fmt: skip
    for (path, data), headers in itertools.product(WRITES.items(), wrong):
        yield Probe(f"{path} {headers}", site.request("POST", path, "olga", data, headers), refused(403, 400))
    for path, data in WRITES.items():
        yield Probe(f"GET {path}", site.request("GET", f"{path}?{urlencode(data)}", "ann"), refused(404, 405, 403))
        yield Probe(f"no session {path}", site.request("POST", path, None, data), refused(401))
        plain = site.request("POST", path, "olga", None, {"Content-Type": "text/plain"}, urlencode(data).encode())
        yield Probe(f"text/plain {path}", plain, refused(422, 403))


def roles(site: Site) -> Iterator[Probe]:
    """What a role may not do, and what a person without a valid link may not."""
    rank = ("label", "review", "own")
    for who, (path, least) in itertools.product(("ann", "rita", EVIL[:60]), LEAST.items()):
        if rank.index(ROLES[who]) < rank.index(least):
            yield Probe(f"{ROLES[who]} GET {path}", site.request("GET", path, who), refused(403))
    for who, path in itertools.product(("ann", EVIL[:60]), ("/class", "/decide", "/people")):
        yield Probe(f"label POST {path}", site.request("POST", path, who, WRITES[path]), refused(403))
    yield Probe("review POST /people", site.request("POST", "/people", "rita", WRITES["/people"]), refused(403))
    for who in ROLES:
        yield Probe("another name", site.request("POST", "/who", who, {"name": "olga"}), refused(403))
        change = {"row": "3", "choice": "label:left", "token": f"change of {len(who)}"}
        if ROLES[who] == "label":
            yield Probe("the answer of others", site.request("POST", "/change", who, change), refused(403))
    for path in READS:
        yield Probe(f"revoked GET {path}", site.request("GET", path, "gone"), refused(401))
    for path, data in WRITES.items():
        yield Probe(f"revoked POST {path}", site.request("POST", path, "gone", data), refused(401))


def protocol(site: Site) -> Iterator[Probe]:
    """Requests that are no proper HTTP, or that a proxy and the server may read differently."""
    host = f"Host: {site.host}\r\n".encode()
    cookie = f"Cookie: {site.auth.cookie}={site.auth.sign(site.sessions['olga'])}\r\n".encode()
    get = b"GET /card HTTP/1.1\r\n" + host + cookie
    hidden = b"GET /people HTTP/1.1\r\n" + host + cookie + b"\r\n"
    post = b"POST /undo HTTP/1.1\r\n" + host + cookie + f"Origin: http://{site.host}\r\n".encode()
    wrong = [
        post + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
        post + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        post + b"Content-Length: -1\r\n\r\n", post + b"Content-Length: 1e9\r\n\r\n",
        post + b"Content-Length: +5\r\n\r\nabcde",
        post + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        post + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        post + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\nx",
        post + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nx",
        get + b"X: " + b"a" * 1_000_000 + b"\r\n\r\n", b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n" + host + b"\r\n",
        get + b"X : y\r\n\r\n", get + b" folded: y\r\n\r\n", get + b"X\x00Y: z\r\n\r\n", get + b"X: a\rb\r\n\r\n",
        b"GET /card\r\n\r\n", b"GET /card HTTP/9.9\r\n" + host + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x00" * 2000, b"GET card HTTP/1.1\r\n" + host + b"\r\n",
        b"GET  /card  HTTP/1.1\r\n" + host + b"\r\n", b"CONNECT evil.example:443 HTTP/1.1\r\n" + host + b"\r\n",
    ]  # fmt: skip
    for sent in wrong:
        yield Probe(
            repr(sent[:20] + sent[-60:]),
            sent,
            lambda reply: reply.status in (0, 400, 401, 403, 404, 405, 408, 413, 422, 431),
        )
    upgrade = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    upgrade += b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
    for path in ("/", "/card", "/ws"):
        sent = f"GET {path} HTTP/1.1\r\n".encode() + host + upgrade
        yield Probe(f"websocket {path}", sent, lambda reply: reply.status not in (0, 101) and reply.status < 500)
    h2c = (
        get + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n"
    )
    yield Probe("h2c", h2c, lambda reply: reply.status == 200)
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "get", "HEAD"):
        sent = site.request(method, "/people", "ann")
        yield Probe(method, sent, lambda reply: reply.status in (401, 403, 404, 405, 400))
    first = (
        b"GET /static/page.css HTTP/1.1\r\n" + host + b"\r\n"
    )  # one connection, two people: the second has no session
    last = b"GET /people HTTP/1.1\r\n" + host + b"Connection: close\r\n\r\n"
    yield Probe("keep-alive without a session", first + last, lambda reply: "Open the full link" in reply.body)
    own = get + b"\r\n" + b"GET /people HTTP/1.1\r\n" + host + b"Connection: close\r\n\r\n"
    yield Probe("a session is not that of the connection", own, lambda reply: "Open the full link" in reply.body)


def bodies(site: Site) -> Iterator[Probe]:
    """Bodies that are too large, of another kind, or of very many fields."""
    limit = site.auth.max_body
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for path in WRITES:
        large = b"note=" + b"x" * limit
        yield Probe(f"large {path}", site.request("POST", path, "olga", None, {**form}, large), refused(413))
        chunk = f"{len(large):x}\r\n".encode() + large + b"\r\n0\r\n\r\n"
        lengthless = site.request("POST", path, "olga", None, {**form, "Transfer-Encoding": "chunked"}) + chunk
        yield Probe(f"large in chunks {path}", lengthless, refused(413))
        claimed = site.request("POST", path, "olga", None, {**form, "Content-Length": str(10**12)})
        yield Probe(f"claimed {path}", claimed, refused(413))
        for kind in (
            "multipart/form-data; boundary=b",
            "multipart/form-data",
            "application/json",
            "text/xml",
            "x" * 4000,
        ):
            sent = site.request("POST", path, "olga", None, {"Content-Type": kind}, b"--b\r\n" * 900)
            yield Probe(f"{kind[:30]} {path}", sent, refused())
        many = b"&".join(b"a%d=b" % n for n in range(7000))
        yield Probe(f"many fields {path}", site.request("POST", path, "ann", None, {**form}, many), refused())


def markup(site: Site) -> Iterator[Probe]:
    """Pages that show a name that is markup."""

    def plain(reply: Reply) -> bool:
        return reply.status == 200 and "<img src=x" not in reply.body and "<script>alert" not in reply.body

    for path in PAGES:
        yield Probe(path, site.request("GET", path, "olga"), plain)
    for path in ("/", "/gallery", "/card", "/status"):
        yield Probe(path, site.request("GET", path, EVIL[:60]), plain)
    for name in ("label", "kind", "person", "slice", "text", "row", "show"):
        for path in ("/gallery", "/history", "/review"):
            sent = site.request("GET", f"{path}?{urlencode({name: EVIL})}", "olga")
            yield Probe(
                f"{path}?{name}", sent, lambda reply: "<img src=x" not in reply.body and reply.status in (200, 422)
            )


def fields(site: Site) -> Iterator[Probe]:
    """Odd values in every field of every form, by somebody who may send it."""
    for path, data in WRITES.items():
        for name, value in itertools.product((*data, "note", "seconds", "new_link"), ODD):
            if (path, name) in (("/class", "name"), ("/people", "name"), ("/undo", "token")):
                continue  # these would be carried out
            sent = site.request("POST", path, "olga" if path != "/people" else "rita", {**data, name: value})
            yield Probe(f"{path} {name}={value[:30]!r}", sent, not_an_error)
    for path, name in (
        ("/gallery", "page"),
        ("/gallery", "text"),
        ("/history", "row"),
        ("/history", "page"),
        ("/image/0", "size"),
    ):
        for value in ODD:
            query = urlencode({name: value}, errors="surrogatepass")
            yield Probe(f"{path}?{name}={value[:30]!r}", site.request("GET", f"{path}?{query}", "olga"), not_an_error)


FAMILIES = {
    "paths to files": paths,
    "names of the server": hosts,
    "cookies and tokens": sessions,
    "posts of other sites": forged_posts,
    "roles and revoked links": roles,
    "markup in names": markup,
    "HTTP that is odd": protocol,
    "bodies": bodies,
    "odd values in fields": fields,
}


def attack(folder: Path, store: str = "", only: list[str] | None = None) -> tuple[dict[str, Counter[str]], list[str]]:
    """Send all probes; how many there were and how many were wrong, by family, and what was wrong."""
    site, wrong, found = Site(folder, store), list[str](), dict[str, Counter[str]]()
    try:
        for family, make in FAMILIES.items():
            if only and family not in only:
                continue
            counts = found[family] = Counter({"probes": 0, "wrong": 0})
            for probe in make(site):
                reply = site.reply(probe.sent)
                counts["probes"] += 1
                if not probe.good(reply):
                    counts["wrong"] += 1
                    wrong.append(f"{family}: {probe.name[:100]}: {reply.status} {reply.body[:150]!r}")
    finally:
        code = site.server.stop()
    if code != 0:
        wrong.append(f"the server ended with {code}")
    project = Project.open(site.folder)
    given = [event for event in project.store.events() if event.kind not in ("class", "annotator")]
    names = [event.value for event in project.store.events() if event.kind == "annotator"]
    by = {event.who for event in given}
    if not by <= {"olga"} or len(names) != len(ROLES) + 2 or set(project.store.classes()) - {"left", "right", "new"}:
        wrong.append(
            f"the history has what nobody may do: {by}, {len(names)} changes of links, {project.store.classes()}"
        )
    project.close()
    return found, wrong


def text_of(tables: dict[str, dict[str, Counter[str]]]) -> str:
    """The part of the page."""
    names = list(tables)
    lines = [
        f"| probe | {' | '.join(f'{name}: probes | wrong' for name in names)} |",
        "|---|" + "---|---|" * len(names),
    ]
    for family in tables[names[0]]:
        cells = [f"{tables[name][family]['probes']} | {tables[name][family]['wrong']}" for name in names]
        lines.append(f"| {family} | {' | '.join(cells)} |")
    totals = [[sum(one[key] for one in tables[name].values()) for key in ("probes", "wrong")] for name in names]
    lines.append(f"| all | {' | '.join(f'{probes} | {bad}' for probes, bad in totals)} |")
    found = environment("cpu")
    return (
        "## Hostile requests\n\n"
        "`python benchmarks/probes.py` sends requests as bytes over a socket to the page of a project with annotators. "
        "A probe is wrong if it is not refused where it must be, shows what it must not, or makes the server fail. "
        "Afterwards the history is compared with what was allowed.\n\n"
        + "\n".join(lines)
        + f"\n\nPython {found['python']}, {found['platform']}."
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--postgres", metavar="URL", default="", help="an empty schema, for a second column")
    parser.add_argument("--only", help="families, separated by commas")
    parser.add_argument("--dry", action="store_true", help="print the part, and leave the page as it is")
    options = parser.parse_args()
    only = options.only.split(",") if options.only else None
    tables, wrong = {}, []
    for name, store in {"SQLite": "", "PostgreSQL": options.postgres}.items():
        if name == "SQLite" or store:
            with tempfile.TemporaryDirectory() as folder:
                tables[name], bad = attack(Path(folder), store, only)
                wrong += bad
    print(text_of(tables))
    if not options.dry:
        write_part("probes", text_of(tables))
    if wrong:
        sys.exit("\n".join(wrong[:60]))


if __name__ == "__main__":
    main()
