import copy
import io
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from skorch.callbacks import Callback
from skorch.exceptions import DeviceWarning
from torch import nn

from skvfusion.training.batches import StackDataset
from skvfusion.training.losses import FusionLoss
from skvfusion.training.net import FINAL_LR, FusionNet, history_frame, net_outputs, train_net
from skvfusion.training.seeding import SeededDropout, SeededLinear, generator

pytestmark = pytest.mark.usefixtures("one_thread")

DIM, N_CLASSES = 6, 3


class ToyNet(nn.Module):
    """One hidden layer; returns the logits and that layer."""

    def __init__(self, dropout=0.2, seed=0):
        super().__init__()
        rng = generator(seed)
        self.hidden = nn.Sequential(SeededLinear(DIM, 16, rng), nn.GELU(), SeededDropout(dropout, seed))
        self.head = SeededLinear(16, N_CLASSES, rng)

    def forward(self, X):
        latent = self.hidden(X)
        return self.head(latent), latent


class CountingNet(ToyNet):
    """Counts the batches of training in a buffer without dimensions."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(0))

    def forward(self, X):
        self.count += self.training
        return super().forward(X)


class Interrupt(Callback):
    """Ctrl-C at a given event of a given epoch."""

    def __init__(self, event, epoch):
        self.event = event
        self.epoch = epoch

    def notify(self, net, event):
        if event == self.event and len(net.history) == self.epoch:
            raise KeyboardInterrupt

    def on_epoch_begin(self, net, **kwargs):
        self.notify(net, "epoch_begin")

    def on_batch_end(self, net, **kwargs):
        self.notify(net, "batch_end")

    def on_epoch_end(self, net, **kwargs):
        self.notify(net, "epoch_end")


class Recorder(Callback):
    """Record learning rates and what was called."""

    def __init__(self):
        self.lrs = []
        self.epochs = 0

    def on_batch_end(self, net, training=False, **kwargs):
        if training:
            self.lrs.append(net.optimizer_.param_groups[0]["lr"])

    def on_epoch_end(self, net, **kwargs):
        self.epochs += 1


def blobs(n, noise=0.5, seed=0, label_noise=0.0):
    """Classes around points of their own; some labels are made wrong."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, N_CLASSES, n)
    X = noise * rng.normal(size=(n, DIM)) + 3 * np.eye(N_CLASSES, DIM)[y]
    wrong = rng.random(n) < label_noise
    y[wrong] = rng.integers(0, N_CLASSES, wrong.sum())
    return X.astype(np.float32), y


def dataset(*args, weight=None, **kwargs):
    X, y = blobs(*args, **kwargs)
    return StackDataset(X, y=y, sample_weight=weight)


def train(train=None, valid=None, prepare=lambda module: None, module_params=None, module=ToyNet, **params):
    defaults = {
        "max_epochs": 15,
        "lr": 0.01,
        "weight_decay": 0.01,
        "batch_size": 32,
        "patience": 3,
        "device": "cpu",
        "seed": 0,
        "callbacks": None,
        "verbose": 0,
    }
    return train_net(
        module,
        module_params or {},
        FusionLoss,
        {"orthogonality": 0.1},
        dataset(100) if train is None else train,
        valid,
        prepare=prepare,
        **defaults | params,
    )


def overfitted(**params):
    """A net whose validation loss falls and then rises."""
    params = {"max_epochs": 40, "lr": 0.05, "patience": 5, "module_params": {"dropout": 0.0}} | params
    return train(dataset(60, noise=2, label_noise=0.3), valid_set(), **params)


def valid_set():
    return dataset(90, noise=2, label_noise=0.3, seed=1)


def mean_loss(net, data):
    """Cross-entropy of the net in eval mode, computed apart from it."""
    logits = torch.from_numpy(net_outputs(net, data, 0))
    return nn.functional.cross_entropy(logits, torch.from_numpy(data.y)).item()


def weights(net):
    return {name: value.clone() for name, value in net.module_.state_dict().items()}


def same_weights(first, second):
    first, second = weights(first), weights(second)
    return all(torch.equal(first[name], second[name]) for name in first)


def accuracy(net, data):
    return np.mean(net_outputs(net, data, 0).argmax(axis=1) == data.y)


@pytest.mark.parametrize("with_validation", [False, True])
def test_learns_a_separable_problem(with_validation):
    net = train(valid=dataset(60, seed=2) if with_validation else None)
    assert accuracy(net, dataset(200, seed=3)) > 0.98
    assert history_frame(net)["train_loss"].iloc[-1] < 0.5 * history_frame(net)["train_loss"].iloc[0]


def test_the_same_seeds_give_the_same_bits(global_rngs_untouched):
    first, again = train(), train()
    assert same_weights(first, again)
    assert history_frame(first)["train_loss"].tolist() == history_frame(again)["train_loss"].tolist()


def test_the_order_of_the_samples_follows_the_seed():
    assert not same_weights(train(seed=0), train(seed=1))


def test_validating_does_not_change_the_training():
    plain = train(max_epochs=4)
    validated = train(max_epochs=4, valid=dataset(60, seed=2), patience=100)
    assert history_frame(plain)["train_loss"].tolist() == history_frame(validated)["train_loss"].tolist()


def test_prepare_sees_the_initial_module_and_its_changes_are_kept():
    seen = []

    def prepare(module):
        seen.append(module)
        module.register_buffer("statistics", torch.tensor([4.0]))

    net = train(prepare=prepare)
    assert seen == [net.module_]
    assert net.module_.state_dict()["statistics"].tolist() == [4.0]


def test_module_parameters_arrive():
    assert train(module_params={"dropout": 0.5, "seed": 3}, max_epochs=1).module_.hidden[2].p == 0.5


def test_weights_steer_the_training():
    y = np.array([0, 1] * 50)
    X = np.ones((100, DIM), dtype=np.float32)
    weight = np.where(y == 1, 1.8, 0.2).astype(np.float32)
    net = train(StackDataset(X, y=y, sample_weight=weight), max_epochs=60, module_params={"dropout": 0.0})
    proba = torch.softmax(torch.from_numpy(net_outputs(net, StackDataset(X[:1]), 0)), 1)[0]
    assert proba[1].item() == pytest.approx(0.9, abs=0.03)


def test_a_pass_reads_few_enough_numbers_at_a_time(monkeypatch):
    net, data = train(max_epochs=2), dataset(30, seed=3)
    whole, sizes = net_outputs(net, data, 1), []
    read = data.batch
    monkeypatch.setattr(data, "batch", lambda rows: sizes.append(len(data.rows[rows])) or read(rows))
    monkeypatch.setattr("skvfusion.training.net._INFERENCE_NUMBERS", 7 * DIM)
    np.testing.assert_allclose(net_outputs(net, data, 1), whole, rtol=1e-10)
    assert sizes == [7, 7, 7, 7, 2]


def recorded_lrs(lr, max_epochs, batch_size=32):
    net = train(lr=lr, max_epochs=max_epochs, batch_size=batch_size, callbacks=[("recorder", Recorder())])
    return dict(net.callbacks_)["recorder"].lrs, net.optimizer_.param_groups[0]["lr"]


@pytest.mark.parametrize("max_epochs", [1, 10])
@pytest.mark.parametrize("batch_size", [32, 1000])
def test_the_learning_rate_falls_along_a_cosine_to_the_final_one(max_epochs, batch_size):
    lrs, last = recorded_lrs(0.01, max_epochs, batch_size)
    steps = len(lrs)
    assert steps == max_epochs * (3 if batch_size == 32 else 1)
    # The callback is called after the schedule's step.
    expected = FINAL_LR + (0.01 - FINAL_LR) * (1 + np.cos(np.pi * np.arange(1, steps + 1) / steps)) / 2
    np.testing.assert_allclose(lrs, expected, rtol=1e-6, atol=1e-9)
    assert last == pytest.approx(FINAL_LR, rel=1e-6)


def test_a_learning_rate_below_the_final_one_is_kept():
    lrs, _ = recorded_lrs(1e-8, 3)
    np.testing.assert_allclose(lrs, 1e-8)


def test_early_stopping_stops_after_patience_and_restores_the_best_epoch():
    net = overfitted()
    history = history_frame(net)
    assert len(history) < 40
    best = history["valid_loss"].idxmin()
    assert len(history) - 1 - best >= 5
    assert mean_loss(net, valid_set()) == pytest.approx(history["valid_loss"].min(), rel=1e-5)
    assert mean_loss(net, valid_set()) < history["valid_loss"].iloc[-1] - 1e-3


@pytest.mark.parametrize("patience", [1, 4])
def test_patience(patience):
    history = history_frame(overfitted(patience=patience))
    falls = history["valid_loss"].cummin().diff() < 0
    last_fall = np.flatnonzero(falls)[-1]
    assert len(history) - 1 - last_fall == patience


def test_the_best_epoch_is_restored_when_the_epochs_run_out():
    net = overfitted(max_epochs=15, patience=100)
    history = history_frame(net)
    assert len(history) == 15
    assert history["valid_loss"].idxmin() < 14
    assert mean_loss(net, valid_set()) == pytest.approx(history["valid_loss"].min(), rel=1e-5)


def test_the_best_epoch_is_restored_even_if_it_is_better_by_a_hair():
    data = dataset(100)
    net = train(data, data, max_epochs=30, lr=1e-6, patience=100, module_params={"dropout": 0.0})
    history = history_frame(net)
    assert history["valid_loss"].is_monotonic_decreasing
    assert mean_loss(net, data) == pytest.approx(history["valid_loss"].min(), rel=2e-6)


def test_slow_progress_is_not_taken_for_none():
    data = dataset(100)
    net = train(data, data, max_epochs=30, lr=1e-6, patience=5, module_params={"dropout": 0.0})
    assert len(history_frame(net)) == 30


def test_without_validation_all_epochs_run_and_the_last_weights_stay():
    net = overfitted(max_epochs=15)
    plain = train(dataset(60, noise=2, label_noise=0.3), max_epochs=15, lr=0.05, module_params={"dropout": 0.0})
    assert len(history_frame(plain)) == 15
    assert "valid_loss" not in history_frame(plain)
    assert not same_weights(net, plain)


def test_the_validation_loss_is_plain_cross_entropy():
    data = dataset(60, seed=2)
    net = train(valid=data, max_epochs=1)
    assert history_frame(net)["valid_loss"].iloc[0] == pytest.approx(mean_loss(net, data), rel=1e-5)


@pytest.mark.parametrize("with_validation", [False, True])
def test_nothing_that_only_training_needs_is_kept(with_validation):
    callbacks = [("recorder", Recorder())]
    net = train(valid=dataset(60, seed=2) if with_validation else None, callbacks=callbacks)
    assert len(net.optimizer_.state) == 0
    assert all(parameter.grad is None for parameter in net.module_.parameters())
    assert not {"lr_scheduler", "early_stopping"} & {name for name, _ in net.callbacks_}
    assert [name for name, _ in net.callbacks] == ["recorder"]


@pytest.mark.parametrize("with_validation", [False, True])
def test_a_pickle_does_not_grow_with_the_data(with_validation):
    def size(n):
        valid = dataset(n, seed=2) if with_validation else None
        return len(pickle.dumps(train(dataset(n), valid, max_epochs=1, batch_size=n)))

    assert abs(size(5000) - size(50)) < 200


class PlainUnpickler(pickle.Unpickler):
    """Load nothing of torch, and nothing of skorch."""

    def find_class(self, module, name):
        assert module.partition(".")[0] not in ("torch", "skorch"), f"{module}.{name}"
        return super().find_class(module, name)


def through_joblib(net):
    file = io.BytesIO()
    joblib.dump(net, file)
    return joblib.load(io.BytesIO(file.getvalue()))


COPIES = {
    "pickle": lambda net: pickle.loads(pickle.dumps(net)),
    "protocol 2": lambda net: pickle.loads(pickle.dumps(net, protocol=2)),
    "plain": lambda net: PlainUnpickler(io.BytesIO(pickle.dumps(net))).load(),
    "joblib": through_joblib,
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES.keys())
@pytest.mark.parametrize("with_validation", [False, True])
def test_a_copied_net_predicts_the_same(with_validation, duplicate, global_rngs_untouched):
    net = train(valid=dataset(60, seed=2) if with_validation else None, callbacks=[Recorder()], max_epochs=3)
    loaded = duplicate(net)
    data = dataset(30, seed=3)
    for output in (0, 1):
        np.testing.assert_array_equal(net_outputs(loaded, data, output), net_outputs(net, data, output))
    assert same_weights(loaded, net)
    pd.testing.assert_frame_equal(history_frame(loaded), history_frame(net))
    assert type(loaded) is type(net)
    assert loaded.module_.training == net.module_.training
    assert (loaded.lr, loaded.max_epochs, loaded.batch_size) == (net.lr, net.max_epochs, net.batch_size)
    assert str(loaded.device) == "cpu"
    assert repr(loaded.module_) == repr(net.module_)


def test_a_copied_net_shares_no_memory():
    net = train(max_epochs=1)
    before = weights(net)
    for duplicate in COPIES.values():
        with torch.no_grad():
            duplicate(net).module_.head.weight.zero_()
    assert all(torch.equal(value, before[name]) for name, value in weights(net).items())


def test_a_net_loads_from_a_memory_map(tmp_path):
    net = train(max_epochs=1)
    joblib.dump(net, tmp_path / "net.joblib")
    assert same_weights(joblib.load(tmp_path / "net.joblib", mmap_mode="r"), net)


def test_a_pickle_holds_the_weights_and_little_more():
    net = train(valid=dataset(60, seed=2), callbacks=[Recorder()], max_epochs=3)
    n_bytes = sum(value.numel() * value.element_size() for value in net.module_.state_dict().values())
    assert len(pickle.dumps(net)) < n_bytes + 3000


def test_a_pickle_keeps_buffers_in_their_dtype():
    net = train(max_epochs=1, module=CountingNet)
    loaded = pickle.loads(pickle.dumps(net))
    assert loaded.module_.count.dtype == torch.int64
    assert loaded.module_.count.shape == ()
    assert loaded.module_.count > 0
    assert same_weights(loaded, net)


@pytest.mark.parametrize("training", [True, False])
def test_a_pickle_keeps_the_mode(training):
    net = train(max_epochs=1)
    net.module_.train(training)
    assert pickle.loads(pickle.dumps(net)).module_.training == training


def test_the_history_survives_without_batches_and_in_plain_python():
    net = train(max_epochs=2)
    net.history[-1]["mine"] = np.float64(0.5)
    loaded = pickle.loads(pickle.dumps(net))
    assert loaded.history[:, "train_loss"] == net.history[:, "train_loss"]
    assert type(loaded.history[-1]["mine"]) is float
    assert loaded.history[-1]["batches"] == []
    assert len(net.history[-1]["batches"]) == 3


def test_nets_load_in_threads():
    net = train(max_epochs=1)
    data = pickle.dumps(net)
    with ThreadPoolExecutor(4) as pool:
        assert all(same_weights(loaded, net) for loaded in pool.map(pickle.loads, [data] * 16))


def test_a_loaded_net_can_be_trained_further():
    loaded = pickle.loads(pickle.dumps(train(max_epochs=2)))
    before = weights(loaded)
    loaded.partial_fit(dataset(100), None)
    assert len(loaded.history) == 4
    assert not torch.equal(weights(loaded)["head.weight"], before["head.weight"])


def test_a_net_loads_in_inference_mode_as_otherwise():
    data = pickle.dumps(train(max_epochs=1))
    with torch.inference_mode():
        loaded = pickle.loads(data)
    assert not any(parameter.is_inference() for parameter in loaded.module_.parameters())


@pytest.mark.parametrize("device", ["cuda:99", "cuda" if not torch.cuda.is_available() else "cuda:98", "warp"])
def test_a_net_from_a_device_that_is_not_here_loads_on_the_cpu(device):
    net = train(max_epochs=1)
    data = dataset(30, seed=3)
    expected = net_outputs(net, data, 0)
    net.device = device
    pickled = pickle.dumps(net)
    with pytest.warns(DeviceWarning, match=f"fitted on {device}, which is not available here") as record:
        loaded = pickle.loads(pickled)
    assert len(record) == 1
    assert loaded.device == "cpu"
    np.testing.assert_array_equal(net_outputs(loaded, data, 0), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pickle.loads(pickle.dumps(loaded))


@pytest.mark.parametrize("part", ["module", "criterion"])
@pytest.mark.parametrize("value", [print, int, "ToyNet", StackDataset, nn.GELU()])
def test_only_classes_of_modules_are_built_from_a_state(part, value):
    state = train(max_epochs=1).__getstate__() | {part: value}
    with pytest.raises(ValueError, match=f"The net's {part} must be a class of torch modules"):
        FusionNet.__new__(FusionNet).__setstate__(state)


@pytest.mark.parametrize("named", [True, False])
def test_the_users_callbacks_stay_and_their_objects_are_not_changed(named):
    mine = Recorder()
    callbacks = [("mine", mine) if named else mine]
    net = train(valid=dataset(60, seed=2), callbacks=callbacks, max_epochs=4)
    (kept,) = (callback for _, callback in net.callbacks_ if isinstance(callback, Recorder))
    assert kept is not mine
    assert kept.epochs == 4
    assert (mine.epochs, mine.lrs) == (0, [])
    assert callbacks == [("mine", mine) if named else mine]


def test_the_users_callbacks_see_every_epoch_even_the_one_that_stops():
    net = overfitted(callbacks=[("mine", Recorder())])
    assert len(net.history) < 40
    assert dict(net.callbacks_)["mine"].epochs == len(net.history)


def test_a_callback_may_be_given_as_its_class():
    net = train(callbacks=[Recorder], max_epochs=2)
    assert dict(net.callbacks_)["Recorder"].epochs == 2


@pytest.mark.parametrize("with_validation", [False, True])
def test_history_has_a_row_per_epoch_without_batches(with_validation):
    net = train(valid=dataset(60, seed=2) if with_validation else None, max_epochs=4)
    history = history_frame(net)
    assert isinstance(history, pd.DataFrame)
    assert history["epoch"].tolist() == [1, 2, 3, 4]
    assert "batches" not in history
    assert {"train_loss", "dur"} <= set(history)
    assert ("valid_loss" in history) == with_validation
    assert history["train_loss"].notna().all()


def test_making_the_history_leaves_the_nets_alone():
    net = train(max_epochs=2)
    history_frame(net)
    assert len(net.history[0, "batches"]) == 3


def test_verbose_prints_a_line_per_epoch(capsys):
    train(max_epochs=3, verbose=1)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.split()[:1] in (["1"], ["2"], ["3"]) for line in lines) == 3


@pytest.mark.parametrize("with_validation", [False, True])
def test_nothing_is_printed_by_default(with_validation, capsys):
    overfitted() if with_validation else train()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("output", [0, 1])
def test_outputs_do_not_depend_on_which_samples_share_a_batch(output):
    net = train()
    X, _ = blobs(1500, seed=3)
    together = net_outputs(net, StackDataset(X), output)
    assert together.shape == (1500, [N_CLASSES, 16][output])
    assert together.dtype == np.float64
    some = np.random.default_rng(0).permutation(1500)[:50]
    alone = np.concatenate([net_outputs(net, StackDataset(X[[row]]), output) for row in some])
    np.testing.assert_allclose(alone, together[some], rtol=0, atol=1e-10)
    np.testing.assert_allclose(net_outputs(net, StackDataset(X, some), output), together[some], rtol=0, atol=1e-10)


def test_outputs_are_those_of_the_module_in_eval_mode():
    net = train(module_params={"dropout": 0.5})
    X, _ = blobs(20, seed=3)
    with torch.no_grad():
        logits, latent = net.module_.eval()(torch.from_numpy(X))
    net.module_.train()
    np.testing.assert_allclose(net_outputs(net, StackDataset(X), 0), logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(net_outputs(net, StackDataset(X), 1), latent, rtol=1e-4, atol=1e-5)


def test_computing_outputs_leaves_the_net_alone(global_rngs_untouched):
    net = train()
    before = weights(net)
    net.module_.train()
    net_outputs(net, dataset(30, seed=3), 0)
    assert net.module_.training
    assert all(
        value.dtype == torch.float32 and torch.equal(value, before[name]) for name, value in weights(net).items()
    )


@pytest.mark.filterwarnings("ignore:Training was interrupted")
@pytest.mark.parametrize("event", ["epoch_begin", "batch_end", "epoch_end"])
def test_ctrl_c_keeps_the_best_weights_so_far(event):
    full = history_frame(overfitted(patience=100))
    epoch = int(full["valid_loss"].idxmin()) + 4
    net = overfitted(patience=100, callbacks=[("interrupt", Interrupt(event, epoch))])
    assert len(net.history) == epoch
    assert mean_loss(net, valid_set()) == pytest.approx(full["valid_loss"].min(), rel=1e-5)
    assert len(net.optimizer_.state) == 0
    assert [name for name, _ in net.callbacks] == ["interrupt"]
    assert history_frame(net)["epoch"].tolist() == list(range(1, epoch + 1))


@pytest.mark.filterwarnings("ignore:Training was interrupted")
@pytest.mark.parametrize("event", ["epoch_begin", "batch_end", "epoch_end"])
@pytest.mark.parametrize("epoch", [1, 3])
def test_ctrl_c_without_validation_keeps_a_usable_net(event, epoch):
    net = train(callbacks=[("interrupt", Interrupt(event, epoch))])
    outputs = net_outputs(net, dataset(30, seed=3), 0)
    assert outputs.shape == (30, N_CLASSES)
    assert np.isfinite(outputs).all()
    assert len(history_frame(net)) == epoch


@pytest.mark.filterwarnings("ignore:Training was interrupted")
def test_ctrl_c_in_the_first_epoch_keeps_a_usable_net():
    net = overfitted(callbacks=[("interrupt", Interrupt("batch_end", 1))])
    assert np.isfinite(net_outputs(net, valid_set(), 0)).all()


def test_other_errors_in_a_callback_are_raised():
    class Broken(Callback):
        def on_epoch_end(self, net, **kwargs):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(callbacks=[Broken()])
