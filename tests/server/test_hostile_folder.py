"""The page on a real folder with everything in it that should not be: links, odd names, torn, huge and false images."""

import colorsys
import html
import io
import re
import struct
import zlib
from pathlib import Path

import pytest
from PIL import Image

from fake_project import Browser, running
from labelwise.project import Project, Settings
from labelwise.server import Auth, make_app

SECRET = b"the secret outside of the folder"
ODD = [
    "<img src=x onerror=alert(1)>.png",
    "a b#c?d%2e.png",
    "x..%2f..%2fpage.key.png",
    "née 猫.png",
    "quote\"'.png",
    "-rf.png",
]


def png_of(width: int, height: int) -> bytes:
    """A PNG of that many white pixels, in a few bytes for each million of them."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packed = zlib.compressobj(9)
    line = b"\x00" + b"\xff" * ((width + 7) // 8)
    data = b"".join([packed.compress(line * 100) for _ in range(height // 100)] + [packed.flush()])
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("odd")
    photos = root / "photos"
    photos.mkdir()
    (root / "outside.png").write_bytes(_picture(0) + SECRET)
    for number, name in enumerate(ODD + [f"plain{n}.png" for n in range(12)]):
        (photos / name).write_bytes(_picture(number) + b"<script>hidden after the pixels</script>")
    with_place = Image.new("RGB", (40, 30), (9, 99, 199))
    exif = Image.Exif()
    exif[0x010E] = "where I live"
    with_place.save(photos / "exif.jpg", exif=exif)
    (photos / "link.png").symlink_to(root / "outside.png")
    (photos / "passwd.png").symlink_to("/etc/passwd")
    (photos / "torn.png").write_bytes(_picture(3)[:60])
    (photos / "page.jpg").write_text("<html><script>alert(1)</script></html>")
    (photos / "drawing.png").write_text('<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>')
    (photos / "huge.png").write_bytes(png_of(30_000, 30_000))
    (photos / "empty.png").write_bytes(b"")
    settings = Settings(
        name="Odd", kind="image", source="../photos", encoder="pixels", classes=("a", "b"), k=12, recipe="random+margin"
    )
    Project.create(root / "project", settings).close()
    return root


def _picture(number: int) -> bytes:
    out = io.BytesIO()
    red, green, blue = colorsys.hsv_to_rgb(number / 20, 0.7, 0.8)
    Image.new("RGB", (120, 90), (int(255 * red), int(255 * green), int(255 * blue))).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def project(folder):
    opened = Project.open(folder / "project")
    yield opened
    opened.close()


@pytest.fixture
def browser(project):
    auth = Auth.make(project.folder)
    with running(project, auth) as address, Browser(address, auth) as made:
        yield made


@pytest.mark.slow
def test_what_cannot_be_used_is_named_and_the_rest_is_there(project, browser):
    names = {item.ref for item in project.store.items()}
    assert names == {*ODD, *(f"plain{n}.png" for n in range(12)), "exif.jpg"}
    report = html.unescape(browser.get("/report").text)
    for name in ("link.png", "passwd.png", "torn.png", "page.jpg", "drawing.png", "huge.png", "empty.png"):
        assert any(line.startswith(name) for line in project.excluded), name
        assert name in report


@pytest.mark.slow
def test_only_pixels_of_the_projects_own_images_are_served(project, browser):
    for row in range(-1, 40):
        reply = browser.get(f"/image/{row}")
        assert SECRET not in reply.content
        assert b"hidden after" not in reply.content
        assert b"where I live" not in reply.content
        if row in {item.row for item in project.store.items()}:
            assert reply.status_code == 200
            assert reply.headers["content-type"] in ("image/png", "image/jpeg")
            assert max(Image.open(io.BytesIO(reply.content)).size) <= 1280
        else:
            assert reply.status_code in (404, 422)


def test_odd_names_are_text_on_every_page(project, browser):
    rows = [item.row for item in project.store.items()]
    project.store.import_labels([(row, "a") for row in rows], "file")
    pages = [browser.get(path).text for path in ("/gallery", "/report", f"/neighbours/{rows[0]}")]
    assert "&lt;img src=x onerror=alert(1)&gt;.png" in pages[0]
    for page in pages:
        assert "<img src=x" not in page
        assert not re.search(r'="[^"]*onerror=alert\(1\)>', page)
    shown = browser.get("/gallery", params={"text": "猫"}).text
    assert shown.count('class="one') == 1


def test_an_image_exchanged_for_a_link_later_is_not_served_and_the_rest_goes_on(folder, project, browser):
    row = next(item.row for item in project.store.items() if item.ref == "plain3.png")
    path = folder / "photos" / "plain3.png"
    before = path.read_bytes()
    try:
        for target in (folder / "outside.png", Path("/etc/passwd"), folder / "project" / "page.key"):
            path.unlink()
            path.symlink_to(target)
            reply = browser.get(f"/image/{row}")
            assert reply.status_code == 422
            assert SECRET not in reply.content
            assert b"root:" not in reply.content
        path.unlink()
        assert browser.get(f"/image/{row}", params={"size": "small"}).status_code == 422
        assert "plain3.png" in (project.folder / "log.txt").read_text()
        assert browser.get("/gallery").status_code == 200
    finally:
        path.unlink(missing_ok=True)
        path.write_bytes(before)


# --- contrast --------------------------------------------------------------------------------------------------------

PAIRS = [
    ("ink", "paper"),
    ("ink", "panel"),
    ("muted", "paper"),
    ("muted", "panel"),
    ("good", "paper"),
    ("bad", "paper"),
    ("bad", "panel"),
    ("ink", "warm"),
    ("blue", "paper"),
    ("on-blue", "blue"),
    ("paper", "bad"),
]


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_texts_stand_out_from_their_ground_in_light_and_dark():
    style = (Path(make_app.__code__.co_filename).parent / "static" / "page.css").read_text()
    schemes = [dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", part)) for part in re.findall(r":root \{[^}]*\}", style)]
    assert len(schemes) == 2
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    for colours in schemes:
        for text, ground in PAIRS:
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
        assert contrast(colours["edge"], colours["paper"]) >= 3  # the frames of buttons and fields
