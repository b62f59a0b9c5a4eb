"""The part of speed.py about the engine: VFusion's training loop."""

import numpy as np
import torch
from sklearn.preprocessing import LabelEncoder
from skorch import NeuralNetClassifier
from skorch.callbacks import LRScheduler
from torch import nn

from benchmarks.timing import interleaved, report
from skvfusion import VFusionClassifier
from skvfusion.fusion.encoder import VFusionNet
from skvfusion.training.losses import FusionLoss, correlation_penalty
from skvfusion.training.net import FINAL_LR
from skvfusion.training.scaling import scaling_statistics

# The loops beside it train the encoder and nothing else.
ENCODER_ALONE = {"probe_share": 0, "layer_emphasis": 0}


def engine(args):
    n, layers, dim, epochs, batch = (500, 12, 64, 3, 64) if args.quick else (4000, 12, 384, 20, 256)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(n, layers, dim)).astype(np.float32), rng.integers(0, 10, n)
    ours = VFusionClassifier(
        max_epochs=epochs, batch_size=batch, early_stopping=False, device="cpu", random_state=0, **ENCODER_ALONE
    )
    seconds = interleaved(
        {
            "hand-written torch loop": lambda: hand_written_vfusion(X, y, epochs, batch),
            "skorch, DataLoader": lambda: plain_skorch(X, y, epochs, batch),
            "VFusionClassifier.fit": lambda: ours.fit(X, y),
        },
        args.repetitions,
    )
    report(f"Fit: {epochs} epochs, {n} samples of {layers} x {dim}, batches of {batch}", seconds)


def hand_written_vfusion(X, y, epochs, batch_size):
    """The same model, data, schedule and number of steps as VFusionClassifier, as one plain torch loop."""
    X, y = torch.from_numpy(X), torch.from_numpy(LabelEncoder().fit_transform(y))
    mean = X.mean(0)
    scale = (X - mean).square().mean(0).mean(-1, keepdim=True).sqrt()
    encoder = nn.Sequential(
        nn.Linear(X[0].numel(), 512),
        nn.LayerNorm(512, elementwise_affine=False),
        nn.GELU(),
        nn.Dropout(0.3),
        nn.Linear(512, 128),
        nn.LayerNorm(128, elementwise_affine=False),
    )
    head = nn.Linear(128, int(y.max()) + 1)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=1e-3, weight_decay=0.01, fused=True)
    n_batches = round(len(X) / batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * n_batches, 1e-6)
    for _ in range(epochs):
        for rows in torch.randperm(len(X)).tensor_split(n_batches):
            latent = encoder(((X[rows] - mean) / scale).flatten(1))
            loss = nn.functional.cross_entropy(head(latent), y[rows]) + 0.1 * correlation_penalty(latent)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def plain_skorch(X, y, epochs, batch_size):
    """Train the same module with the same loss, schedule and number of steps, as skorch's documentation does it."""
    X, y = X[:, :, None], LabelEncoder().fit_transform(y)
    # A DataLoader keeps the short batch at the end, the engine deals round(n / batch_size) equal ones: the same number
    # if that rounds up.
    n_batches = -(-len(X) // batch_size)
    schedule = LRScheduler(
        torch.optim.lr_scheduler.CosineAnnealingLR, T_max=epochs * n_batches, eta_min=FINAL_LR, step_every="batch"
    )
    net = NeuralNetClassifier(
        VFusionNet(*X.shape[1:], int(y.max()) + 1, "layer", 512, 128, 0.3, 0),
        criterion=FusionLoss(0.1),
        optimizer=torch.optim.AdamW,
        optimizer__weight_decay=0.01,
        optimizer__fused=True,
        lr=1e-3,
        max_epochs=epochs,
        batch_size=batch_size,
        iterator_train__shuffle=True,
        train_split=None,
        callbacks=[("schedule", schedule)],
        device="cpu",
        verbose=0,
    )
    net.initialize()
    net.module_.scaling.set_statistics(*scaling_statistics(X, np.arange(len(X)), "layer"))
    net.partial_fit(X, y)
