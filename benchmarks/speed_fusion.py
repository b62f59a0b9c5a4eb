"""The part of speed.py about the fusion methods, on made-up stacks."""

import numpy as np
import torch
from scipy.special import log_softmax
from sklearn.ensemble import StackingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from torch import nn

from benchmarks.speed_engine import ENCODER_ALONE, hand_written_vfusion
from benchmarks.timing import interleaved, report
from skvfusion import (
    AttentiveFusionClassifier,
    MixtureOfExpertsClassifier,
    NeuralLogitControllerClassifier,
    SuperLearnerClassifier,
    VFusionClassifier,
)
from skvfusion.fusion.attentive import AttentiveFusionNet
from skvfusion.fusion.experts import MixtureOfExpertsNet
from skvfusion.fusion.logit_controller import LogitControllerNet
from skvfusion.fusion.probes import fit_probes
from skvfusion.training.solver import solve_logistic


def stack_like_a_vits(n, layers, dim, n_classes, seed=0):
    """Make labelled stacks whose layers have the spectra of a ViT's: variances fall as i**-1.6 (first) to i**-1."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n)
    X = np.empty((n, layers, dim), np.float32)
    for layer in range(layers):
        spread = np.arange(1, dim + 1) ** -np.linspace(0.8, 0.5, layers)[layer]
        rotation = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
        centres = 0.4 * rng.normal(size=(n_classes, dim))
        X[:, layer] = ((centres[y] + rng.normal(size=(n, dim))) * spread) @ rotation.T
    return X, y


class TextbookALF(nn.Module):
    """ALF's head as written in alf's equations: keys and values of every token, then attention."""

    def __init__(self, n_tokens, dim, n_classes):
        super().__init__()
        self.n_heads, self.head_dim = n_tokens, 2 * (dim // n_tokens)
        width = self.n_heads * self.head_dim
        self.query = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        self.norm_q, self.norm_k, self.norm_v = (nn.LayerNorm(dim) for _ in range(3))
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, width, bias=False) for _ in range(3))
        self.project, self.norm, self.head = nn.Linear(width, dim), nn.BatchNorm1d(dim), nn.Linear(dim, n_classes)

    def forward(self, X):
        X = nn.functional.normalize(X, dim=-1)
        noisy = (torch.rand(len(X), 1, 1) < 0.5).float()
        X = X + 0.05 * noisy * torch.randn_like(X)
        q = self.to_q(self.norm_q(self.query)).view(1, 1, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.to_k(self.norm_k(X)).view(*X.shape[:2], self.n_heads, self.head_dim).transpose(1, 2)
        v = self.to_v(self.norm_v(X)).view(*X.shape[:2], self.n_heads, self.head_dim).transpose(1, 2)
        attention = nn.functional.dropout(((q * self.head_dim**-0.5) @ k.transpose(2, 3)).softmax(-1), 0.1)
        return self.head(self.norm(self.project((attention @ v).flatten(1))))


def train_loop(module, inputs, y, loss, epochs, batch_size, lr=1e-3, weight_decay=0.01, clip=None):
    """Train as the engine does, by one plain torch loop."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=lr, weight_decay=weight_decay, fused=True)
    n_batches = round(len(y) / batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * n_batches, 1e-6)
    module.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).tensor_split(n_batches):
            value = loss(module(*(part[rows] for part in inputs)), y[rows])
            optimizer.zero_grad()
            value.backward()
            if clip:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimizer.step()
            schedule.step()


def objective(coef, intercept, X, y):
    """Return LogisticRegression's objective at C=1, in float64."""
    scores = log_softmax(X.astype(np.float64) @ coef + intercept, axis=1)
    return 0.5 * np.square(coef.astype(np.float64)).sum() - scores[np.arange(len(y)), y].sum()


def optimum(X, y, n_classes):
    """Return the least objective that float64 and patience find."""
    one = torch.ones(len(y), 1, dtype=torch.float64)
    X64, codes = torch.from_numpy(X.astype(np.float64)), torch.from_numpy(y)
    coef, intercept, _ = solve_logistic(X64, codes, one, one[0], n_classes, tol=1e-10, max_iter=1000)
    return objective(coef[0].numpy(), intercept[0].numpy(), X, y)


def fusion(args):
    n, layers, dim, n_classes = (200, 3, 16, 4) if args.quick else (4000, 12, 768, 100)
    X, y = stack_like_a_vits(n, layers, dim, n_classes)
    print(f"\n{n} samples of {layers} x {dim}, {n_classes} classes, spectra like a ViT's")
    tensors, codes = torch.from_numpy(X)[:, :, None], torch.from_numpy(y)
    cross_entropy = nn.functional.cross_entropy

    batch, steps = min(256, n // 2), 4
    shape = (layers, 1, dim)
    textbook = TextbookALF(layers, dim, n_classes)
    ours = AttentiveFusionNet(*shape, n_classes, "l2", layers, 0.1, 0.05, 0.5, 0)
    few = slice(0, steps * batch)
    seconds = interleaved(
        {
            "textbook form": lambda: train_loop(
                textbook, (tensors[few, :, 0],), codes[few], cross_entropy, 1, batch, clip=5
            ),
            "AttentiveFusionClassifier's net": lambda: train_loop(
                ours, (tensors[few],), codes[few], lambda out, label: cross_entropy(out[0], label), 1, batch, clip=5
            ),
        },
        args.repetitions,
    )
    report(f"ALF: {steps} training steps, batches of {batch}", seconds)

    torch_classifiers(args, X, y, tensors, codes)
    linear_probes(args, X, y, n_classes)


def torch_classifiers(args, X, y, tensors, codes):
    """Compare each torch classifier's fit with a plain loop over the same module, batches and steps."""
    epochs, batch = (2, 64) if args.quick else (4, 256)
    n_classes = len(np.unique(y))
    shape = (X.shape[1], 1, X.shape[2])
    options = {"max_epochs": epochs, "batch_size": batch, "early_stopping": False, "device": "cpu", "random_state": 0}
    folds = list(StratifiedKFold(3).split(y, y))

    def loop_vfusion():
        hand_written_vfusion(X, y, epochs, batch)

    def loop_alf():
        net = AttentiveFusionNet(*shape, n_classes, "l2", shape[0], 0.1, 0.05, 0.5, 0)
        train_loop(net, (tensors,), codes, lambda out, t: nn.functional.cross_entropy(out[0], t), epochs, batch, clip=5)

    def loop_experts():
        net = MixtureOfExpertsNet(*shape, n_classes, None, 128, True, 0)
        train_loop(net, (tensors,), codes, lambda out, t: nn.functional.cross_entropy(out[0], t), epochs, batch)

    def loop_controller():
        rows = [train for train, _ in folds] + [np.arange(len(y))]
        probes = fit_probes(
            "linear", X[:, :, None], y, n_classes, None, rows, scaling="layer", C=1.0, mlp_params={}, device="cpu"
        )
        logits = np.empty((len(y), shape[0], n_classes), np.float32)
        for (_, test), fitted in zip(folds, probes[:-1], strict=True):
            logits[test] = fitted.logits(X[test, :, None])
        net = LogitControllerNet(*shape, None, "softplus", 128, 0)
        inputs = (tensors, torch.from_numpy(logits))
        train_loop(net, inputs, codes, lambda out, t: nn.functional.cross_entropy(out[0], t), epochs, batch)

    pairs = {
        "VFusion": (loop_vfusion, VFusionClassifier(**options, **ENCODER_ALONE)),
        "ALF": (loop_alf, AttentiveFusionClassifier(min_steps=0, **options)),
        "mixture of experts, joint": (loop_experts, MixtureOfExpertsClassifier("joint", **options)),
        "logit controller with its probes": (loop_controller, NeuralLogitControllerClassifier(cv=folds, **options)),
    }
    for name, (loop, classifier) in pairs.items():
        seconds = interleaved(
            {f"{name}: plain torch loop": loop, f"{type(classifier).__name__}.fit": lambda c=classifier: c.fit(X, y)},
            args.repetitions,
        )
        report(f"Fit: {epochs} epochs, batches of {batch}", seconds)


def all_linear_probes(X, y, n_classes):
    """Fit the linear probes of all layers on standardised features."""
    rows = [np.arange(len(y))]
    options = {"scaling": "standard", "C": 1.0, "mlp_params": {}, "device": "cpu"}
    return fit_probes("linear", X[:, :, None], y, n_classes, None, rows, **options)[0]


def linear_probes(args, X, y, n_classes):
    """Compare the batched probes, and the Super Learner built on them, with scikit-learn's at the same optimum."""
    layers = X.shape[1]
    scaled = [StandardScaler().fit_transform(X[:, layer]) for layer in range(layers)]
    best = {}

    def ours():
        best["ours"] = all_linear_probes(X, y, n_classes)

    def theirs(tol):
        best["theirs"] = [logistic_regression(tol).fit(features, y) for features in scaled]

    def logistic_regression(tol):
        return LogisticRegression(C=1.0, tol=tol, max_iter=5000)

    # The loosest tolerance with which scikit-learn comes within 1e-4 of the optimum on the first and the last layer.
    ends = (0, layers - 1)
    floor = [optimum(scaled[layer], y, n_classes) for layer in ends]
    for tol in (1e-4, 3e-5, 1e-5, 3e-6, 1e-6):
        fits = [logistic_regression(tol).fit(scaled[layer], y) for layer in ends]
        reached = [
            objective(fit.coef_.T, fit.intercept_, scaled[layer], y) for fit, layer in zip(fits, ends, strict=True)
        ]
        if max(value / lowest - 1 for value, lowest in zip(reached, floor, strict=True)) < 1e-4:
            break
    name = f"{layers} LogisticRegression(lbfgs, tol={tol:g})"
    repetitions = min(args.repetitions, 2)
    seconds = interleaved({name: lambda: theirs(tol), f"all {layers} linear probes": ours}, repetitions, warm_up=False)
    report("Linear probes of all layers, standardised float32 features, C=1, to the same optimum", seconds)
    print("Objective above the optimum that float64 reaches, relative:")
    for layer, lowest in zip(ends, floor, strict=True):
        their = objective(best["theirs"][layer].coef_.T, best["theirs"][layer].intercept_, scaled[layer], y)
        our = objective(best["ours"].coef[layer], best["ours"].intercept[layer], scaled[layer], y)
        print(f"layer {layer:2}: LogisticRegression {their / lowest - 1:.1e}, ours {our / lowest - 1:.1e}")

    folds = list(StratifiedKFold(5, shuffle=True, random_state=0).split(y, y))
    stacking = StackingClassifier(
        [
            (
                f"layer{layer}",
                make_pipeline(FunctionTransformer(take(layer)), StandardScaler(), logistic_regression(tol)),
            )
            for layer in range(layers)
        ],
        final_estimator=LogisticRegression(max_iter=5000),
        cv=folds,
    )
    super_learner = SuperLearnerClassifier(cv=folds, scaling="standard", device="cpu")
    seconds = interleaved(
        {
            "StackingClassifier, one pipeline a layer": lambda: stacking.fit(X, y),
            "SuperLearnerClassifier": lambda: super_learner.fit(X, y),
        },
        1,
        warm_up=False,
    )
    report("5-fold stacking of all layers' linear probes, the same folds", seconds)


def take(layer):
    return lambda X: X[:, layer]
