"""Guesses by an OpenAI-compatible endpoint (`POST .../chat/completions`), with the standard library only.

The key is that of LABELWISE_SUGGEST_KEY or OPENAI_API_KEY in the environment; it is never written to disk or printed.
Redirects are not followed, so that neither the key nor a row goes to another address.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labelwise.errors import StoreError
from labelwise.project.exchange.studio_client import checked_url, is_local, opener

KEYS = ("LABELWISE_SUGGEST_KEY", "OPENAI_API_KEY")
TIMEOUT = 30.0  # seconds; the worker makes no round meanwhile
IMAGE_SIDE = 512  # pixels of a side of an image that is sent
MAX_TEXT = 8000  # characters of a text that are sent
_ASK = "You label data. Answer with the name of exactly one class and nothing else. The classes:"


@dataclass(frozen=True)
class Endpoint:
    """A model at an address, such as http://localhost:11434/v1."""

    url: str
    model: str

    def guess(self, row: str | bytes, classes: Sequence[str], descriptions: dict[str, str]) -> str | None:
        """The class this model names for a text, or an image (JPEG or PNG); None if it names none.

        Raises:
            StoreError: it cannot be reached, or refuses.
        """
        lines = [
            _ASK,
            *(f"- {name}: {descriptions[name]}" if name in descriptions else f"- {name}" for name in classes),
        ]
        content: Any = (
            row[:MAX_TEXT] if isinstance(row, str) else [{"type": "image_url", "image_url": {"url": _data(row)}}]
        )
        body = {
            "model": self.model,
            "temperature": 0,
            "messages": [{"role": "system", "content": "\n".join(lines)}, {"role": "user", "content": content}],
        }
        found = self._post("/chat/completions", body)
        try:
            words = found["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            raise StoreError(f"{self.url} did not answer like an OpenAI-compatible endpoint: no choices[0]") from None
        return named_class(str(words or ""), classes)

    def _post(self, path: str, body: Any) -> Any:
        headers = {"Content-Type": "application/json"}
        key = next((os.environ[name] for name in KEYS if os.environ.get(name)), "")
        if key:
            headers["Authorization"] = f"Bearer {key}"
        url = checked_url(self.url, "--suggest") + path
        request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
        try:
            with opener(url).open(request, timeout=TIMEOUT) as reply:
                return json.loads(reply.read())
        except urllib.error.HTTPError as error:
            detail = error.read(2000).decode("utf-8", "replace").strip()
            hint = f" Set {KEYS[0]} to its key." if error.code in (401, 403) else ""
            raise StoreError(f"{url} refused with {error.code}: {' '.join(detail.split())[:300]}.{hint}") from error
        except ValueError as error:
            raise StoreError(f"{url} did not answer with JSON") from error
        except (OSError, http.client.HTTPException) as error:
            raise StoreError(f"{url} cannot be reached: {getattr(error, 'reason', error)}") from error


def named_class(words: str, classes: Sequence[str]) -> str | None:
    """The one class that an answer names; None if it names none, or several.

    >>> named_class("**Sports**.", ["sports", "world"]), named_class("world or sports", ["sports", "world"])
    ('sports', None)
    """
    answer = _plain(words)
    same = [name for name in classes if name == words.strip() or (answer and _plain(name) == answer)]
    if same:
        return same[0]
    found = [name for name in classes if _plain(name) and f" {_plain(name)} " in f" {answer} "]
    longest = max(found, key=len, default=None)
    return longest if all(_plain(one) in _plain(longest or "") for one in found) else None


def is_far(url: str) -> bool:
    """Whether rows that are sent to this address leave the machine."""
    return not is_local(url)


def _plain(text: str) -> str:
    return " ".join("".join(c if c.isalnum() else " " for c in text.casefold()).split())


def _data(image: bytes) -> str:
    kind = "png" if image.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
