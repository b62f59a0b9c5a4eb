"""The examples of docs/extraction.md run, in order."""

import re
import tempfile
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "extraction.md"


def test_examples_run(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    examples = re.findall(r"```python\n(.+?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 6
    exec("\n".join(examples), {})
