"""The script that measures on an accelerator, run on small shapes on the CPU: it must not fail for a slip there."""

from pathlib import Path

import pytest

import accelerator


@pytest.mark.slow
def test_a_dry_run_fills_the_page(tmp_path: Path):
    page = tmp_path / "page.md"
    parts = "targets,large,whole,strategies,picks"
    lines = accelerator.main(["--device", "cpu", "--tiny", "--out", str(page), "--parts", parts])
    assert page.read_text() == "\n".join(lines) + "\n"
    assert not [line for line in lines if "failed" in line or "not run" in line]
    rows = [line for line in lines if line.startswith("| ")]
    for name in accelerator.TARGETS:
        assert sum(line.startswith(f"| {name} |") for line in rows) >= 3
    for line in lines[lines.index("| strategy | N, D, C, k | as on the CPU |") + 2 :]:
        assert line.endswith("| same |")


def test_a_part_that_fails_or_has_no_time_is_said_and_the_others_run(monkeypatch: pytest.MonkeyPatch):
    def broken(stand: object) -> None:
        raise ValueError("broken")

    monkeypatch.setitem(accelerator.PARTS, "large", (broken, 1))
    monkeypatch.setitem(accelerator.PARTS, "whole", (broken, 1000))
    lines = accelerator.main(["--device", "cpu", "--tiny", "--parts", "large,whole,picks"])
    assert any("large failed: ValueError('broken')" in line for line in lines)
    assert any("whole: not run" in line for line in lines)
    assert any(line.startswith("| kcenter |") for line in lines)


def test_reads_are_counted():
    """Entropy looks at every row once."""
    arrays = accelerator.inputs_of((50, 4, 3, 5), accelerator.torch.float32, "cpu")
    assert accelerator.reads_of(lambda: accelerator.select("entropy", arrays, 5), 50) == 1
    assert accelerator.reads_of(lambda: accelerator.select("kcenter", arrays, 5), 50) >= 2
