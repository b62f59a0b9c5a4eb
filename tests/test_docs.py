"""The examples of docs/comparison.md run, in order."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "comparison.md"


def test_examples_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.+?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 4
    exec("\n".join(examples), {})
    assert {path.name for path in tmp_path.iterdir()} == {"depth.png", "agreement.png"}
