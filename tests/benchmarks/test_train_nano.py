"""The script that trains the embedded backbone runs."""

import json

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

from benchmarks import train_nano


def test_help_says_how_to_call_it(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["train_nano", "--help"])
    with pytest.raises(SystemExit, match="0"):
        train_nano.main()
    assert "benchmarks/train_nano.py --data" in capsys.readouterr().out


def test_nanos_training_writes_weights_that_say_how_they_came_about(tmp_path, monkeypatch, rng):
    for split, n in (("train", 16), ("test", 2)):
        for label in range(10):
            folder = tmp_path / split / str(label)
            folder.mkdir(parents=True)
            for index in range(n):
                image = rng.integers(0, 100, (32, 32, 3), dtype=np.uint8) + np.uint8(15 * label)
                Image.fromarray(image).save(folder / f"{index}.png")
    out = tmp_path / "nano.safetensors"
    monkeypatch.setattr("sys.argv", ["train_nano", "--data", str(tmp_path), "--epochs", "1", "--out", str(out)])
    train_nano.main()
    with safe_open(out, framework="pt") as stored:
        facts = json.loads(stored.metadata()["skvfusion"])
        assert len([name for name in stored.keys() if name.startswith("blocks.")]) == 12 * 12  # noqa: SIM118
    assert facts["epochs"] == 1
    assert facts["seed"] == 0
    assert 0 <= facts["linear_probe_test_accuracy"] <= 1
