"""The scripts in benchmarks/ run; what they measure is not tested."""

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def beside_each_other(monkeypatch):
    """As when Python runs a script: what lies beside it can be imported."""
    monkeypatch.syspath_prepend(FOLDER)


def load(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["speed", "train_nano"])
def test_help(name, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit, match="0"):
        load(name).main()
    assert f"benchmarks/{name}.py" in capsys.readouterr().out


def test_speed_prints_ratios_to_the_alternative(capsys):
    load("speed").main(["--what", "engine", "--quick", "--repetitions", "1"])
    rows = re.findall(r"^(.+?) +\d+\.\d{3} +(\d+\.\d{3})$", capsys.readouterr().out, re.MULTILINE)
    ratios = {name: float(ratio) for name, ratio in rows}
    assert ratios.pop("hand-written torch loop") == 1
    assert set(ratios) == {"VFusionClassifier.fit"}
    assert all(ratio > 0 for ratio in ratios.values())


def test_speed_compares_extraction_with_its_alternatives(capsys):
    load("speed").main(["--what", "extraction", "--quick", "--repetitions", "2"])
    printed = capsys.readouterr().out
    ratios = {
        name: float(ratio) for name, ratio in re.findall(r"^(.+?) +\d+\.\d{3} +(\d+\.\d{3})$", printed, re.MULTILINE)
    }
    assert ratios.pop("forward_features of ready batches") == 1
    assert {
        "transform, from ready tensors",
        "transform, from JPEG files",
        "transform, from JPEG files, cached",
        "one pass per layer, ready batches",
        "one image at a time, JPEG files, last layer",
    } < set(ratios)
    assert all(ratio > 0 for ratio in ratios.values())
    assert re.search(r"grew by \d+\.\d; the stack itself by \d+\.\d", printed)


def test_speed_compares_every_fusion_method(capsys):
    load("speed").main(["--what", "fusion", "--quick", "--repetitions", "1"])
    printed = capsys.readouterr().out
    rows = re.findall(r"^(.+?) +\d+\.\d{3} +(\d+\.\d{3})$", printed, re.MULTILINE)
    assert [float(ratio) for _, ratio in rows[::2]] == [1] * 7
    assert {name for name, _ in rows[1::2]} == {
        "AttentiveFusionClassifier's net",
        "VFusionClassifier.fit",
        "AttentiveFusionClassifier.fit",
        "MixtureOfExpertsClassifier.fit",
        "NeuralLogitControllerClassifier.fit",
        "all 3 linear probes",
        "SuperLearnerClassifier",
    }
    above = re.findall(r"^layer +\d+: .*ours (-?\d\.\de[+-]\d+)$", printed, re.MULTILINE)
    assert len(above) == 2
    assert max(abs(float(value)) for value in above) < 1e-4


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
    load("train_nano").main()
    with safe_open(out, framework="pt") as stored:
        facts = json.loads(stored.metadata()["skvfusion"])
        assert len([name for name in stored.keys() if name.startswith("blocks.")]) == 12 * 12  # noqa: SIM118
    assert facts["epochs"] == 1
    assert facts["seed"] == 0
    assert 0 <= facts["linear_probe_test_accuracy"] <= 1
