import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from skorch.callbacks import Callback
from torch import nn

from skvfusion.training.batches import StackDataset
from skvfusion.training.losses import FusionLoss
from skvfusion.training.net import FINAL_LR, history_frame, net_outputs, train_net
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


def train(train=None, valid=None, prepare=lambda module: None, module_params=None, **params):
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
        ToyNet,
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


def test_a_net_pickles_and_predicts_the_same():
    net = train(valid=dataset(60, seed=2))
    loaded = pickle.loads(pickle.dumps(net))
    data = dataset(30, seed=3)
    np.testing.assert_array_equal(net_outputs(loaded, data, 0), net_outputs(net, data, 0))


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
