"""Run the tutorials and keep the pictures that they draw, in docs/pictures/tutorials; NAMEs are pages, default all."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "tutorials"
PICTURES = ROOT / "docs" / "pictures" / "tutorials"
EXAMPLES = re.compile(r"^```python (?:run|huggingface)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def main() -> int:
    """Run each page in a folder of its own; Pictures have the names that `savefig` gives them."""
    PICTURES.mkdir(exist_ok=True)
    for page in sorted(PAGES.glob("*.md")):
        if sys.argv[1:] and page.stem not in sys.argv[1:]:
            continue
        code = "\n".join(EXAMPLES.findall(page.read_text(encoding="utf-8")))
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, "-c", code], cwd=folder, text=True, capture_output=True)
            print(f"--- {page.stem}\n{done.stdout}", flush=True)
            if done.returncode:
                print(done.stderr)
                return 1
            for name in re.findall(r'savefig\("([\w-]+\.png)"', code):
                shutil.copy(Path(folder) / name, PICTURES / name)
                Image.open(PICTURES / name).convert("RGB").quantize(64).save(PICTURES / name, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
