"""Hooks of the documentation site (mkdocs.yml): pages made from the source, and links that lead outside docs/."""

from __future__ import annotations

import ast
import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "code-of-conduct.md": "CODE_OF_CONDUCT.md",
    "security.md": "SECURITY.md",
    "roadmap.md": "ROADMAP.md",
}
RUN = re.compile(r"^```python (?:run|huggingface|lightning)$", flags=re.MULTILINE)  # examples that the tests run
OUTSIDE = re.compile(r"\[([^\]]*)\]\((?:\.\./)+((?:src|benchmarks|scripts|tests|README)[^)]*)\)")
PACKAGE = re.compile(r"\]\((?:\.\./)+src/labelwise/(\w+)/__init__\.py\)")
EXAMPLE = re.compile(r"^```python (?:run|huggingface)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)\n*")
PLAIN_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")  # to a page of the site, which a notebook does not have
COMMANDS = "<!-- commands -->"
TUTORIALS = "tutorials"
VERSIONS = "LABELWISE_SITE_VERSIONS"  # in the environment
PACKAGES = "packages"
SOURCE = ROOT / "src" / "labelwise"
MARKUP = re.compile(r"\[/?(?:bold|dim|italic)?\]")  # of rich
WORKER = "https://unpkg.com/iframe-worker/shim"  # the theme's search loads it from there; the site has its own copy


def on_config(config: Any) -> Any:
    """One of several versions offers the others: `make docs-versions` sets the variable and writes versions.json."""
    if os.environ.get(VERSIONS):
        config.extra["version"] = {"provider": "mike"}
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the repository's root."""
    from mkdocs.structure.files import File

    for page, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](")
        for other, name in PAGES.items():
            text = text.replace(f"]({name}", f"]({other}")
        files.append(File.generated(config, page, content=text))
    for name in packages():
        files.append(File.generated(config, f"{PACKAGES}/{name}.md", content=package_page(name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Examples lose the mark of the tests, files of the repository are named, and the commands are listed."""
    up = "../" * page.file.src_uri.count("/")
    if page.file.src_uri.startswith(TUTORIALS):
        name = Path(page.file.src_uri).with_suffix(".ipynb").name
        markdown += f'\n<a href="{name}" download>Download this page as a notebook</a>\n'
    for ours, source in PAGES.items():
        markdown = re.sub(rf"\]\((?:\.\./)+{re.escape(source)}", f"]({up}{ours}", markdown)
    markdown = PACKAGE.sub(rf"]({up}{PACKAGES}/\1.md)", markdown)
    markdown = OUTSIDE.sub(r"\1 (`\2`)", RUN.sub("```python", markdown))
    return markdown.replace(COMMANDS, command_reference()) if COMMANDS in markdown else markdown


def on_post_build(config: Any, **_: Any) -> None:
    """Write the tutorials as notebooks next to their pages."""
    for page in sorted((ROOT / "docs" / TUTORIALS).glob("*.md")):
        made = json.dumps(notebook(page.read_text(encoding="utf-8")), indent=1)
        (Path(config["site_dir"]) / TUTORIALS / f"{page.stem}.ipynb").write_text(made + "\n", encoding="utf-8")


def notebook(markdown: str) -> dict[str, Any]:
    """A page as a Jupyter notebook: its examples are cells of code, the text between them cells of Markdown."""
    cells = []
    for number, part in enumerate(EXAMPLE.split(markdown)):
        text = part if number % 2 else PLAIN_LINK.sub(r"\1", PICTURE.sub("", part))  # the code draws the pictures
        if not text.strip():
            continue
        cell = {"id": f"cell-{number}", "metadata": {}, "source": text.strip().splitlines(keepends=True)}
        code = {"cell_type": "code", "execution_count": None, "outputs": []}
        cells.append({**cell, **(code if number % 2 else {"cell_type": "markdown"})})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Nothing is loaded from elsewhere."""
    return output.replace(WORKER, "../" * page.url.count("/") + "assets/iframe-worker-1.0.4.js")


def on_post_template(output_content: str, **_: Any) -> str:
    return output_content.replace(WORKER, "/assets/iframe-worker-1.0.4.js")  # of the page for what is not found


def packages() -> list[str]:
    """The packages of Labelwise."""
    return sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))


def layers() -> list[str]:
    """Packages and modules from the top: each imports only from those after it."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    return [name.removeprefix("labelwise.") for name in contract["contracts"][0]["layers"]]


def package_page(name: str) -> str:
    """What a package is for, what it may import, and what each of its modules does: from the source."""
    order, here = layers(), packages()
    place = order.index(name)

    def listed(names: list[str]) -> str:
        return ", ".join(f"[{one}]({one}.md)" if one in here else f"`{one}`" for one in names) or "nothing"

    summary, _, rest = _docstring(SOURCE / name / "__init__.py").partition("\n")
    lines = [
        f"# `labelwise.{name}`",
        "",
        summary,
        rest,
        "",
        f"**May import:** {listed(order[place + 1 :])}.",
        "",
        f"**May be imported by:** {listed(order[:place])}.",
        "",
        "[The picture of all packages](../architecture.md). Each module, with the first line of its docstring:",
        "",
        "| module | what it does |",
        "|---|---|",
    ]
    for path in sorted((SOURCE / name).rglob("*.py")):
        if path.name != "__init__.py":
            first = _docstring(path).partition("\n")[0].replace("|", "\\|")
            lines.append(f"| `{path.relative_to(SOURCE / name).as_posix()}` | {first} |")
    return "\n".join([*lines, ""])


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def command_reference() -> str:
    """Every command with its arguments and options, from the program itself."""
    import typer

    from labelwise.cli import app

    return "\n".join(_command(typer.main.get_command(app), "labelwise"))


def _command(command: Any, name: str) -> list[str]:
    if getattr(command, "commands", None):
        return [line for key, one in command.commands.items() for line in _command(one, f"{name} {key}")]
    if command.hidden:
        return []
    lines = [f"## {name}", "", _paragraphs(command.help or ""), ""]
    rows = [_parameter(one) for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]
    return [*lines, *(["| name | value | meaning |", "|---|---|---|", *rows, ""] if rows else [])]


def _parameter(one: Any) -> str:
    is_option = one.param_type_name == "option"
    names = (
        ", ".join(f"`{name}`" for name in [*one.opts, *one.secondary_opts]) if is_option else f"`{one.name.upper()}`"
    )
    kind = "" if getattr(one, "is_flag", False) else one.metavar or ""
    default = one.default
    shown = "" if default in (None, "", False, True, []) or callable(default) else f" Default: {_cell(default)}."
    needed = " Required." if one.required else ""
    return f"| {names} | {_cell(kind)} | {_cell(getattr(one, 'help', '') or '')}{needed}{shown} |"


def _cell(value: Any) -> str:
    return re.sub(r"\s+", " ", MARKUP.sub("", str(value))).replace("|", "\\|").strip()


def _paragraphs(text: str) -> str:
    """The help text, whose examples are lines of their own in bold."""
    text = re.sub(r"(?:^\[bold\].*\[/\]$\n?)+", lambda lines: f"```\n{lines[0].rstrip()}\n```\n", text, flags=re.M)
    return MARKUP.sub("", text).strip()
