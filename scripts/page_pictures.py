"""Make docs/pictures: label the digits of scikit-learn as a person would, and photograph the page.

    python scripts/page_pictures.py [--rounds 30] [--out docs/pictures]

Needs chromium and the packages playwright and scikit-learn.
"""

from __future__ import annotations

import argparse
import io
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path

import uvicorn
from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from sklearn.datasets import load_digits

from labelwise.cli.demo import write_digits
from labelwise.project import Project, Settings
from labelwise.project.loop.worker import run
from labelwise.server import Auth, make_app
from labelwise.server.supervisor import Supervisor


def main() -> None:
    """Make the project, then the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = _labelled(Path(folder), given.rounds)
        supervisor = Supervisor(project.folder, print)
        supervisor.start()
        while project.heartbeat().state != "waiting" or not project.suggestions().rows:
            time.sleep(0.5)
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            _photograph(chromium, _serve(project), given.out)
        supervisor.stop()
        project.close()


def _labelled(folder: Path, rounds: int) -> Project:
    """A project with every round but the last answered; one answer in fifty is wrong."""
    write_digits(folder / "digits")
    truth = load_digits().target
    settings = Settings(
        name="digits", kind="image", source="../digits", classes=tuple("0123456789"), encoder="pixels", k=10
    )
    project = Project.create(folder / "project", settings)
    for _ in range(rounds - 1):
        run(project.folder, once=True)
        while (task := project.store.next_task("anna")) is not None:
            label = int(truth[int(task.ref.split(".")[0])])
            label = (label + 5) % 10 if task.row % 50 == 0 else label
            project.store.answer(task.token, "anna", "label", str(label), 1.8)
    run(project.folder, once=True)
    return project


def _serve(project: Project) -> str:
    """The address of the page, served by a thread until the program ends."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    server = uvicorn.Server(uvicorn.Config(make_app(project, Auth.make(project.folder)), log_level="warning"))
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


def _photograph(chromium: Browser, address: str, out: Path) -> None:
    wide, narrow = {"label": "", "grid": "grid", "gallery": "gallery", "report": "report"}, {"phone": ""}
    for width, height, paths in ((1280, 780, wide), (390, 830, narrow)):
        page = chromium.new_page(viewport={"width": width, "height": height})
        page.goto(address)
        page.fill("input[name=name]", "anna")
        page.keyboard.press("Enter")
        page.wait_for_selector("#card[data-ready]")
        page.evaluate("document.querySelector('[data-seen]')?.click()")  # the hint about encoders
        for _ in range(10):  # to an item with a suggestion
            if page.locator("[data-suggested]").count():
                break
            token = page.get_attribute("#card", "data-token")
            page.keyboard.press("s")
            page.wait_for_selector(f'#card[data-ready]:not([data-token="{token}"])')
        for name, path in paths.items():
            page.goto(f"{address}/{path}")
            time.sleep(1.0)
            cut = {"x": 0, "y": 0, "width": width, "height": 420 if name == "report" else height}
            picture = Image.open(io.BytesIO(page.screenshot(clip=cut))).convert("RGB")
            picture.quantize(64, dither=Image.Dither.NONE).save(out / f"{name}.png", optimize=True)
        page.close()


if __name__ == "__main__":
    main()
