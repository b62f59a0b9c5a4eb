"""Attentive Layer Fusion (ALF): a learned query attends over all layers' tokens, a linear head reads the result."""

from numbers import Integral, Real

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import nn
from torch.nn import functional as F

from ..layers import take_layers
from ..training.batches import StackDataset
from ..training.net import INFERENCE_BATCH, net_outputs
from ..training.scaling import InputScaling
from ..training.seeding import SeededDropout, SeededLinear, generator, spawn_seeds
from .base import POSITIVE_INT, BaseTorchClassifier
from .validation import read_stack

# In eval mode samples do not depend on one another, and what is pooled for so many at once stays small.
_EVAL_ROWS = 128


class Jitter(nn.Module):
    """Gaussian noise on whole samples, each hit with a probability, while training.

    It comes from a generator of its own, made anew from ``seed`` on whatever device it runs on.
    """

    def __init__(self, std, probability, seed):
        super().__init__()
        self.std = std
        self.probability = probability
        self.seed = seed
        self._rng = None

    def forward(self, x):
        """Return a batch with noise on some of its samples; the identity in eval mode."""
        if not self.training or self.std == 0 or self.probability == 0:
            return x
        if self._rng is None or self._rng.device != x.device:
            self._rng = generator(self.seed, x.device)
        hit = x.new_empty(len(x)).bernoulli_(self.probability, generator=self._rng).nonzero()[:, 0]
        noise = torch.empty_like(x[hit]).normal_(0, self.std, generator=self._rng)
        return x.index_add(0, hit, noise)

    def extra_repr(self):
        """Show the strength and the probability."""
        return f"std={self.std}, probability={self.probability}"

    def __getstate__(self):
        # Generators of a GPU cannot be loaded without one; a fitted model needs none.
        return {**self.__dict__, "_rng": None}


class BatchNorm(nn.Module):
    """``nn.BatchNorm1d`` with plain sums over the batch, because torch's depend on the number of threads.

    One sample has no variance: a training batch of one is normalised by the running statistics and leaves them alone.
    """

    eps = 1e-5
    momentum = 0.1

    def __init__(self, dim):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim, dtype=torch.float32))
        self.shift = nn.Parameter(torch.zeros(dim, dtype=torch.float32))
        self.register_buffer("running_mean", torch.zeros(dim, dtype=torch.float32))
        self.register_buffer("running_var", torch.ones(dim, dtype=torch.float32))

    def forward(self, x):
        """Return the normalised batch of shape (batch, dim)."""
        mean, var = self.running_mean, self.running_var
        if self.training and len(x) > 1:
            mean = x.mean(0)
            var = (x - mean).square().mean(0)
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(var * len(x) / (len(x) - 1), self.momentum)
        return (x - mean) * (self.gain * (var + self.eps).rsqrt()) + self.shift


class AttentiveFusionNet(nn.Module):
    """Scaling, jitter, cross-attention from one learned query to all tokens, BatchNorm, linear classifier.

    The textbook form projects the LayerNorms of all tokens to keys and values. The query being the same for every
    sample, the key map can be applied to the query instead, which leaves one score vector a head, and the value map
    after pooling: the same function and the same gradients for a fraction of the arithmetic. The parameters are those
    of the textbook form, so that an optimiser takes the same path, except for the shift of the keys' LayerNorm: it adds
    the same to all scores of a head, which the softmax takes away again.
    """

    def __init__(
        self,
        n_layers,
        n_tokens,
        dim,
        n_classes,
        scaling,
        n_heads,
        attention_dropout,
        jitter,
        jitter_probability,
        seed,
    ):
        super().__init__()
        weight_seed, dropout_seed, jitter_seed = spawn_seeds(seed, 3)
        rng = generator(weight_seed)
        # Twice the usual width of a head, as the authors chose by an ablation.
        head_dim = max(1, 2 * (dim // n_heads))
        self.scaling = InputScaling(scaling, n_layers, n_tokens, dim)
        self.jitter = Jitter(jitter, jitter_probability, jitter_seed)
        self.query = nn.Parameter(torch.empty(dim, dtype=torch.float32).normal_(0, 0.02, generator=rng))
        self.query_gain, self.key_gain, self.value_gain = (nn.Parameter(torch.ones_like(self.query)) for _ in range(3))
        self.query_shift, self.value_shift = (nn.Parameter(torch.zeros_like(self.query)) for _ in range(2))
        self.query_weight, self.key_weight, self.value_weight = (
            nn.Parameter(
                torch.empty(n_heads, dim, head_dim, dtype=torch.float32).uniform_(
                    -(dim**-0.5), dim**-0.5, generator=rng
                )
            )
            for _ in range(3)
        )
        self.attention_dropout = SeededDropout(attention_dropout, dropout_seed)
        self.projection = SeededLinear(n_heads * head_dim, dim, rng)
        self.norm = BatchNorm(dim)
        self.head = SeededLinear(dim, n_classes, rng)

    def forward(self, X):
        """Return logits and attention, (batch, heads, layers * tokens), of a batch (batch, n_layers, n_tokens, dim)."""
        parts = [self._fuse(part) for part in X.split(len(X) if self.training else _EVAL_ROWS)]
        fused, attention = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return self.head(self.norm(fused)), attention

    def _fuse(self, X):
        # In one memory order, whatever the caller's: it decides in which order numbers are added up.
        tokens = self.scaling(X.contiguous()).reshape(len(X), -1, X.shape[-1])
        # Shared by keys and values; the gains and shifts that tell them apart are applied to the weights.
        tokens = F.layer_norm(self.jitter(tokens), tokens.shape[-1:])
        # Token by token, and the softmax by plain operations: the gradients of one product over all tokens, and of
        # torch's softmax, are added up in an order that depends on the number of threads.
        scores = torch.bmm(tokens.transpose(0, 1), self._score_vectors().expand(tokens.shape[1], -1, -1))
        if scores.requires_grad:
            # In another memory order, the gradient would go to BLAS in pieces, which it deals out in turn.
            scores.register_hook(torch.Tensor.contiguous)
        scores = scores.permute(1, 2, 0).contiguous()
        attention = (scores - scores.detach().amax(-1, keepdim=True)).exp()
        attention = attention / attention.sum(-1, keepdim=True)
        dropped = self.attention_dropout(attention)
        pooled = (dropped @ tokens).transpose(0, 1)
        values = pooled @ (self.value_gain[:, None] * self.value_weight)
        # What dropout leaves of a head's attention does not sum to 1, and weighs the shift too.
        share = dropped.sum(-1).T[..., None]
        values = values + share * (self.value_shift[:, None] * self.value_weight).sum(1, keepdim=True)
        return self.projection(values.transpose(0, 1).flatten(1)), attention

    def _score_vectors(self):
        """Return what the normalised tokens are multiplied by to get each head's scores, (dim, heads)."""
        query = F.layer_norm(self.query, self.query.shape) * self.query_gain + self.query_shift
        queries = (query[:, None] * self.query_weight).sum(1)
        scores = (self.key_weight @ queries[..., None])[..., 0] * queries.shape[1] ** -0.5
        return (scores * self.key_gain).T


class AttentiveFusionClassifier(BaseTorchClassifier):
    """Attentive fusion of a Vision Transformer's layers (ALF).

    Several heads of one learned query attend over the tokens of all chosen layers, so that every image gets its own
    weighting of the layers. What they pool is projected, batch-normalised and classified by a linear head. The inputs
    are L2-normalised and, while training, half of the samples get noise about as strong as the signal.

    Parameters
    ----------
    n_heads : int or "auto", default="auto"
        Heads of attention, each ``2 * (dim // n_heads)`` wide, at least 1. ``"auto"`` is one per token, that is per
        chosen layer and token kind, as the authors have it.
    attention_dropout : float, default=0.1
        Share of attention weights dropped while training, in [0, 1). The authors choose among 0, 0.1 and 0.3.
    jitter : float, default=0.05
        Standard deviation of the Gaussian noise added to the scaled training samples; 0 turns it off. A
        token of length 1 has numbers of about ``dim ** -0.5``, so choose anew with another ``scaling``.
    jitter_probability : float, default=0.5
        Share of training samples that get noise, drawn anew each time a sample is seen. Samples held out never do.
    min_steps : int, default=1000
        ``max_epochs`` is raised until at least so many steps of the optimiser are taken.
    gradient_clip : float, default=5.0
        The largest norm of all gradients together; longer ones are shortened to it. None does not clip.
    layers : str, int, list of int or slice, default="all"
        Which of X's layers to fuse; see :func:`skvfusion.resolve_layers`.
    n_layers : int, default=None
        Splits a flattened 2-D X into this many equal layers; None reads 2-D as one layer.
    scaling : {"l2", "standard", "layer", "token", None}, default="l2"
        Input scaling. ``"l2"`` divides each token by its length; ``"standard"`` gives every dimension mean 0 and
        variance 1 over the training rows; ``"layer"`` centres every dimension and divides each layer by one number;
        ``"token"`` is a LayerNorm per token; None leaves the numbers alone. A LayerNorm follows in any case, in which
        zeros that fill narrow layers up to the width of others count.
    max_epochs : int, default=40
        Epochs over which the learning rate is annealed to almost 0 along a cosine; more on small data, unless
        ``min_steps`` is lowered too.
    lr : float, default=1e-3
        Initial learning rate of AdamW. The authors choose among 0.1, 0.01 and 0.001.
    weight_decay : float, default=0.1
        Weight decay of AdamW. The authors choose among powers of ten from 1e-6 to 1.
    batch_size : int or "auto", default="auto"
        Samples in a batch. ``"auto"`` is an eighth of the training samples, but at least 16 and at most 256: the
        authors' 2048 is not affordable on CPUs for 1000 steps. An epoch is dealt into equal batches of about this size.
        A batch of one sample is normalised by the running statistics, so 1 trains without batch normalisation.
    early_stopping : bool or "auto", default=False
        Whether to hold out samples, stop once their loss no longer falls and restore the best epoch's weights.
        ``"auto"`` does so if that makes at least 500 samples and two per class on average. The authors always train to
        the end, on all samples: noise, dropout and weight decay keep the head from overfitting.
    validation_fraction : float, default=0.1
        Share of the samples to hold out, stratified by class.
    patience : int, default=10
        Epochs without improvement after which to stop.
    class_weight : dict or "balanced", default=None
        Weights of the classes, multiplied into the sample weights. The authors use ``"balanced"``, which gives all
        classes equal total weight. Weights act on the loss only: batch normalisation counts all samples alike, those of
        weight 0 excepted, which are left out.
    device : str or torch.device, default="auto"
        Where to compute; ``"auto"`` takes CUDA, then MPS, then the CPU. A device that is not there raises.
    random_state : int, RandomState instance or None, default=None
        Seeds the initial weights, the order of the samples, noise, dropout and the hold-out. An int gives the same bits
        on every call, also in parallel threads or processes. None takes fresh entropy; torch's and numpy's global
        generators are neither read nor changed.
    verbose : int, default=0
        1 prints a line per epoch.
    callbacks : list of skorch callbacks, default=None
        Further callbacks for the net; they are copied, not changed.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels.
    layers_ : list of int
        The layers that are fused, by index into X.
    layer_importance_ : ndarray of shape (n_fused_layers,)
        The attention each layer in ``layers_`` gets, over all token kinds, averaged over heads and the samples of
        ``fit`` whose weight is not 0. Sums to 1. It says where the net looks, not what accuracy a layer adds.
    n_layers_in_, n_tokens_in_, dim_in_ : int
        Shape of a sample in ``fit``. ``n_features_in_`` is their product.
    net_ : skorch.NeuralNet
        The trained net; ``net_.module_`` is the torch module.
    history_ : DataFrame
        A row per epoch: ``train_loss``, ``valid_loss`` if samples were held out, ``dur`` in seconds.
    n_iter_ : int
        Epochs that were run.
    device_ : str
        The device that was used.

    See Also
    --------
    VFusionClassifier : Concatenates the layers and encodes them by an MLP.
    LayerProbeClassifier : One layer only.

    Notes
    -----
    The head has about ``8 * dim ** 2`` weights beside the classifier's, however many layers there are. It is not told
    which layer a token comes from, but knows layers by what their tokens look like: the order of the layers does not
    matter, and on synthetic layers that all look alike it does worse than on a backbone's. Its LayerNorm leaves of
    tokens with two dimensions only the order of the two, and nothing of one dimension.

    References
    ----------
    Ciernik et al., "Beyond the Final Layer: Attentive Multi-Layer Fusion for Vision Transformers", arXiv 2601.09322,
    2026: the head and its training. The authors' search over ``lr``, ``weight_decay`` and ``attention_dropout`` is
    left to ``GridSearchCV``; the defaults are what they use without one.

    Examples
    --------
    >>> import numpy as np
    >>> from skvfusion import AttentiveFusionClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat(["cat", "dog"], 20)
    >>> X = rng.normal(size=(40, 12, 8)) + np.where(y == "dog", 1, -1)[:, None, None] * np.linspace(-1, 1, 8)
    >>> clf = AttentiveFusionClassifier(min_steps=100, random_state=0).fit(X, y)
    >>> clf.predict(X[:1]), clf.attention_weights(X).shape, clf.layer_importance_.shape
    (array(['cat'], dtype='<U3'), (40, 12, 12), (12,))
    """

    _fitted_last = "layer_importance_"

    _parameter_constraints: dict = {
        **BaseTorchClassifier._parameter_constraints,
        "n_heads": [POSITIVE_INT, StrOptions({"auto"})],
        "attention_dropout": [Interval(Real, 0, 1, closed="left")],
        "jitter": [Interval(Real, 0, None, closed="left")],
        "jitter_probability": [Interval(Real, 0, 1, closed="both")],
        "min_steps": [Interval(Integral, 0, None, closed="left")],
        "gradient_clip": [Interval(Real, 0, None, closed="neither"), None],
    }

    def __init__(
        self,
        *,
        n_heads="auto",
        attention_dropout=0.1,
        jitter=0.05,
        jitter_probability=0.5,
        min_steps=1000,
        gradient_clip=5.0,
        layers="all",
        n_layers=None,
        scaling="l2",
        max_epochs=40,
        lr=1e-3,
        weight_decay=0.1,
        batch_size="auto",
        early_stopping=False,
        validation_fraction=0.1,
        patience=10,
        class_weight=None,
        device="auto",
        random_state=None,
        verbose=0,
        callbacks=None,
    ):
        self.n_heads = n_heads
        self.attention_dropout = attention_dropout
        self.jitter = jitter
        self.jitter_probability = jitter_probability
        self.min_steps = min_steps
        self.gradient_clip = gradient_clip
        self.layers = layers
        self.n_layers = n_layers
        self.scaling = scaling
        self.max_epochs = max_epochs
        self.lr = lr
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.class_weight = class_weight
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.callbacks = callbacks

    def attention_weights(self, X):
        """Return how each head spreads its attention over the layers, image by image.

        Parameters
        ----------
        X : array-like
            Layer stacks with the layers, tokens and dimensions seen in ``fit``.

        Returns
        -------
        ndarray of shape (n_samples, n_heads, n_fused_layers) or (n_samples, n_heads, n_fused_layers, n_tokens)
            float64, the latter if a layer has several tokens. Each head's weights sum to 1.
        """
        check_is_fitted(self)
        attention = self._outputs(read_stack(self, X, reset=False), 1)
        shape = (len(self.layers_),) if self.n_tokens_in_ == 1 else (len(self.layers_), self.n_tokens_in_)
        return attention.reshape(*attention.shape[:2], *shape)

    def __sklearn_tags__(self):
        """Leave out scikit-learn's accuracy on blobs in two dimensions, of which the LayerNorm keeps one bit."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags

    def _fit(self, stack, codes, weight):
        super()._fit(stack, codes, weight)
        counted = np.arange(len(codes)) if weight is None else np.flatnonzero(weight)
        stack = take_layers(stack, self.layers_)
        total = np.zeros(len(self.layers_))
        for start in range(0, len(counted), INFERENCE_BATCH):
            attention = net_outputs(self.net_, StackDataset(stack, counted[start : start + INFERENCE_BATCH]), 1)
            # From (samples, heads, layers * tokens) to (samples, heads, layers).
            by_layer = attention.reshape(*attention.shape[:2], len(total), -1).sum(-1)
            total += by_layer.mean(1).sum(0)
        self.layer_importance_ = total / total.sum()

    def _module(self, n_layers, n_tokens, dim, n_classes, seed):
        return AttentiveFusionNet, {
            "n_layers": n_layers,
            "n_tokens": n_tokens,
            "dim": dim,
            "n_classes": n_classes,
            "scaling": self.scaling,
            "n_heads": n_layers * n_tokens if self.n_heads == "auto" else self.n_heads,
            "attention_dropout": self.attention_dropout,
            "jitter": self.jitter,
            "jitter_probability": self.jitter_probability,
            "seed": seed,
        }

    def _engine_options(self):
        return {"gradient_clip": self.gradient_clip}

    def _most_epochs(self, n_batches):
        return max(self.max_epochs, -(-self.min_steps // n_batches))
