"""VFusion: an encoder of all layers, beside which the layers' own probes have a say."""

from numbers import Real

import numpy as np
from scipy.special import log_softmax
from sklearn.base import _fit_context
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _num_samples

from ..layers import resolve_layers, take_layers
from .cross_fitting import CannotSplitError, read_groups
from .emphasis import encoder_gains, mean_logits, nearness, probe_weights, strongest_emphasis
from .encoder import NORM_MIN_WIDTH, EncoderClassifier
from .progress import with_callbacks
from .super_learner import SuperLearnerClassifier, logit_weights

# From so many samples on, a tenth held out once says as much about the layers as folds do, in a fraction of the time.
_MANY = 5000
_FOLDS = 5

# Of the probes' say, the part that the Super Learner has.
_SUPER_LEARNER_SHARE = 1 / 3


class VFusionClassifier(EncoderClassifier):
    """Vertical fusion of a Vision Transformer's layers (VFusion).

    The chosen layers' tokens are scaled, concatenated and encoded by an MLP into a low-dimensional latent, the image's
    global token, which a linear head classifies. Encoder and head are trained together by cross-entropy plus a penalty
    on correlated latent dimensions, which keeps the small latent from storing the same thing twice.

    On small data such an encoder drowns in what shallow layers cannot tell apart and loses to the last layer alone,
    on images of another kind than it was trained on even more so. By default it therefore learns from the layers' own
    linear probes, cross-fitted on the training samples: the better a layer's probe, the larger its input
    (``layer_emphasis``), and what the probes predict together has a say in the end (``probe_share``). With both at 0
    it is the paper's VFusion, trained in a fraction of the time.

    Parameters
    ----------
    hidden : int, list of int or tuple of int, default=512
        Widths of the encoder's hidden layers, an int for a single one. An empty list leaves a linear encoder. With a
        LayerNorm, a width is at least 3. The paper's value is unknown.
    latent_dim : int, default=128
        Width of the latent, with a LayerNorm at least 3. The paper's value is unknown; 128 is what its first author
        used elsewhere.
    activation : {"gelu", "relu", "silu", "tanh"}, default="gelu"
        What the hidden layers apply.
    layer_norm : tuple or list, default=("hidden", "latent")
        Where there is a LayerNorm, any of ``"input"`` (the scaled and concatenated tokens), ``"hidden"`` (each hidden
        layer, in front of its activation) and ``"latent"``. Empty for none.
    dropout : float, default=0.3
        Share of hidden units dropped while training, in [0, 1).
    orthogonality : float, default=0.1
        Weight of the penalty; 0 turns it off. The paper's value is unknown. The kinds of penalty differ in scale, see
        below.
    orthogonality_kind : {"correlation", "cosine", "covariance", "decov"}, default="correlation"
        The penalty on pairs of different latent dimensions, within a batch. ``"correlation"``: their mean squared
        correlation, in [0, 1]. ``"cosine"``: their mean squared cosine, in [0, 1], which penalises means other than 0
        too. ``"covariance"``: VICReg's term, their squared covariance summed and divided by ``latent_dim``.
        ``"decov"``: half that sum. The last two fall when the latent shrinks, so they want a LayerNorm at
        ``"latent"``; there they are up to about ``latent_dim - 1`` and ``latent_dim * (latent_dim - 1) / 2`` times as
        large as ``"correlation"``, and want a weight so many times smaller.
    probe_share : float, default=0.6
        How much the layers' probes count, in [0, 1]: the class probabilities are proportional to
        ``encoder ** (1 - probe_share) * probes ** probe_share``, and so are the probes' to two parts of a mean that
        favours the better layers and one part of ``SuperLearnerClassifier("logit")``. The probes of that mean read,
        whatever ``scaling`` says, tokens after a LayerNorm each, which changes in light and contrast upset least (of
        tokens with one or two dimensions it would leave nothing; these are scaled as ``scaling`` says). The Super
        Learner knows best which layers complement each other. With a single layer there is nothing to combine and the
        encoder predicts alone.
    layer_emphasis : float or "auto", default="auto"
        How much the better layers are favoured: each scaled layer is multiplied by
        ``(accuracy / best) ** layer_emphasis``, with the accuracies of the cross-fitted probes plus one standard error
        (but at most the best), and by one number for all layers, so that their mean square stays 1. In the probes'
        mean, a layer weighs in proportion to the third power of the same, with these probes' own accuracies. 0 treats
        all alike. ``"auto"`` takes the largest of 16, 8, 4 and 0 with which that mean is within a standard error of its
        best accuracy on samples that the probes have not seen: nearly always 16, less where layers complement each
        other.
    layers : str, int, list of int or slice, default="all"
        Which of X's layers to fuse; see :func:`skvfusion.resolve_layers`. The paper recommends all.
    n_layers : int, default=None
        Splits a flattened 2-D X into this many equal layers; None reads 2-D as one layer.
    scaling : {"standard", "layer", "token", "l2", None}, default="layer"
        Input scaling, with statistics of the training rows. ``"layer"`` centres every dimension and divides each layer
        by one number, the root mean square of those that vary; ``"standard"`` divides every dimension by its standard
        deviation; ``"token"`` is a LayerNorm per token, ``"l2"`` makes each token's length 1; None leaves the numbers
        alone. Zeros that fill narrow layers up to the width of others count in ``"token"`` only.
    max_epochs : int, default=60
        Epochs over which the learning rate is annealed to almost 0 along a cosine; the most that are run.
    lr : float, default=1e-3
        Initial learning rate of AdamW.
    weight_decay : float, default=0.01
        Weight decay of AdamW.
    batch_size : int or "auto", default="auto"
        Samples in a batch. ``"auto"`` is an eighth of the training samples, but at least 16 and at most 256, so that
        small data get enough steps too. An epoch is dealt into equal batches of about this size.
    early_stopping : bool or "auto", default="auto"
        Whether to hold out samples, stop once their loss no longer falls and restore the best epoch's weights.
        ``"auto"`` does so if that makes at least 500 samples and two per class on average: with less data, the samples
        held out would be worth more for training. The last sample of a class is never held out; True holds out at
        least one of every class that has two.
    validation_fraction : float, default=0.1
        Share of the samples to hold out, stratified by class.
    patience : int, default=10
        Epochs without improvement after which to stop.
    class_weight : dict or "balanced", default=None
        Weights of the classes, multiplied into the sample weights; ``"balanced"`` gives all classes equal total weight.
    device : str or torch.device, default="auto"
        Where to compute; ``"auto"`` takes CUDA, then MPS, then the CPU. A device that is not there raises.
    random_state : int, RandomState instance or None, default=None
        Seeds the initial weights, the order of the samples, dropout and the hold-out. An int gives the same bits on
        every call, also in parallel threads or processes. None takes fresh entropy; torch's and numpy's global
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
    n_layers_in_, n_tokens_in_, dim_in_ : int
        Shape of a sample in ``fit``. ``n_features_in_`` is their product.
    probe_share_ : float
        ``probe_share``, or 0 with a single layer.
    super_learner_ : SuperLearnerClassifier or None
        Of the fused layers (``X[:, layers_]``), without its ``oof_proba_``; None if probes have no say, or where
        samples or groups are too few to be cross-fitted.
    probes_ : object or None
        The linear probes of the probes' mean, fitted on all samples; None if they have no say.
    layer_weights_ : ndarray of shape (n_fused_layers,) or None
        The weights of their logits, which sum to 1. None, as are the next three, if there was nothing to learn: of one
        layer, or with ``probe_share`` and ``layer_emphasis`` both 0.
    logit_scale_ : float or None
        What the weighted mean of their logits is multiplied by.
    layer_emphasis_ : float or None
        The emphasis that was taken; 0 where samples or groups are too few to be cross-fitted.
    layer_gains_ : ndarray of shape (n_fused_layers,) or None
        What the scaled layers are multiplied by in front of the encoder.
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
    LayerProbeClassifier : One layer only; its MLP is this model with ``layers=[layer]``.

    References
    ----------
    Di Salvo et al., "Vertical Fusion: Condensing Internal Representations for Robust ViT Classification",
    arXiv 2607.10391, 2026: the encoder and the loss. What the paper's public summaries leave open is a parameter here.

    Examples
    --------
    >>> import numpy as np
    >>> from skvfusion import VFusionClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat(["cat", "dog"], 20)
    >>> X = rng.normal(size=(40, 12, 8)) + (y == "dog")[:, None, None]
    >>> clf = VFusionClassifier(random_state=0).fit(X, y)
    >>> clf.predict(X[:1]), clf.transform(X).shape
    (array(['cat'], dtype='<U3'), (40, 128))
    """

    _parameter_constraints: dict = {
        **EncoderClassifier._parameter_constraints,
        "probe_share": [Interval(Real, 0, 1, closed="both")],
        "layer_emphasis": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
    }

    def __init__(
        self,
        hidden=512,
        latent_dim=128,
        *,
        activation="gelu",
        layer_norm=("hidden", "latent"),
        dropout=0.3,
        orthogonality=0.1,
        orthogonality_kind="correlation",
        probe_share=0.6,
        layer_emphasis="auto",
        layers="all",
        n_layers=None,
        scaling="layer",
        max_epochs=60,
        lr=1e-3,
        weight_decay=0.01,
        batch_size="auto",
        early_stopping="auto",
        validation_fraction=0.1,
        patience=10,
        class_weight=None,
        device="auto",
        random_state=None,
        verbose=0,
        callbacks=None,
    ):
        super().__init__(
            hidden,
            latent_dim,
            activation=activation,
            layer_norm=layer_norm,
            dropout=dropout,
            orthogonality=orthogonality,
            orthogonality_kind=orthogonality_kind,
            layers=layers,
            n_layers=n_layers,
            scaling=scaling,
            max_epochs=max_epochs,
            lr=lr,
            weight_decay=weight_decay,
            batch_size=batch_size,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            patience=patience,
            class_weight=class_weight,
            device=device,
            random_state=random_state,
            verbose=verbose,
            callbacks=callbacks,
        )
        self.probe_share = probe_share
        self.layer_emphasis = layer_emphasis

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None, groups=None):
        """Fit the probes, then the encoder.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_layers, dim), (n_samples, n_layers, n_tokens, dim) or (n_samples, dim)
            Layer stacks, shallow to deep. Training is in float32 whatever the dtype; memory maps are read by batches.
        y : array-like of shape (n_samples,)
            Labels of any kind that can be sorted: int, str, bool.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights; a sample of weight 0 counts as absent. None weights all equally.
        groups : array-like of shape (n_samples,), default=None
            Samples of a group (a patient, a site) are never on both sides of a split when the probes are cross-fitted.

        Returns
        -------
        self : object
            The fitted classifier.

        Raises
        ------
        ValueError
            If X holds NaN or infinity, its shape does not fit the parameters, or y has fewer than two classes.
        """
        groups = read_groups(groups, _num_samples(X))
        return self._fit_checked(X, y, sample_weight, groups=groups)

    def _fit(self, stack, codes, weight, groups):
        self.layers_ = resolve_layers(self.layers, stack.shape[1])
        self.super_learner_ = self.probes_ = None
        self.probe_share_ = float(self.probe_share) if len(self.layers_) > 1 else 0.0
        self.layer_emphasis_ = self.layer_gains_ = self.layer_weights_ = self.logit_scale_ = None
        if len(self.layers_) > 1 and (self.probe_share > 0 or self.layer_emphasis != 0):
            self._fit_probes(take_layers(stack, self.layers_), codes, weight, groups)
        super()._fit(stack, codes, weight)

    def _fit_probes(self, stack, codes, weight, groups):
        """Learn from the layers' probes how much each layer is worth, and keep them if they have a say."""
        if weight is not None:
            # As in the encoder's loss, the scale of the weights says nothing.
            weight = weight / weight.max()
            weight = weight / weight[weight > 0].mean()
        learner = self._learner(self.scaling, stack, weight)
        normed = self._learner("token" if stack.shape[3] >= NORM_MIN_WIDTH else self.scaling, stack, weight)
        seed = learner._seed()
        try:
            learner._fit(stack, codes, weight, groups)
            del learner.oof_proba_  # as large as the logits of all samples
            logits, usable, _ = normed._cross_fit(stack, codes, weight, groups, seed)
        except CannotSplitError:
            learner = None
            self._count_alike(stack.shape[1])
        else:
            usable_weight = np.ones(len(usable)) if weight is None else weight[usable]
            self._weigh(learner.cv_scores_, logits[usable], codes[usable], usable_weight)
        if self.probe_share > 0:
            self.super_learner_ = learner
            self.probes_ = normed._refit(stack, codes, weight, seed)

    def _learner(self, scaling, stack, weight):
        n_samples = len(stack) if weight is None else np.count_nonzero(weight)
        learner = SuperLearnerClassifier(
            "logit",
            cv=_FOLDS if n_samples < _MANY else "holdout",
            scaling=scaling,
            validation_fraction=self.validation_fraction,
            device=self.device,
            random_state=self.random_state,
        )
        learner.classes_ = self.classes_
        learner.n_layers_in_, learner.n_tokens_in_, learner.dim_in_ = stack.shape[1:]
        learner.n_features_in_ = int(np.prod(stack.shape[1:]))
        return learner

    def _count_alike(self, n_layers):
        self.layer_emphasis_, self.logit_scale_ = 0.0, 1.0
        self.layer_gains_, self.layer_weights_ = np.ones(n_layers), np.full(n_layers, 1 / n_layers)

    def _weigh(self, fold_scores, logits, codes, weight):
        """Weigh the encoder's inputs by accuracies in folds, the probes by logits for samples they have not seen."""
        near = nearness(np.average(logits.argmax(axis=2) == codes[:, None], axis=0, weights=weight), len(codes))
        automatic = self.layer_emphasis == "auto"
        self.layer_emphasis_ = (
            strongest_emphasis(logits, codes, weight, near) if automatic else float(self.layer_emphasis)
        )
        self.layer_gains_ = encoder_gains(nearness(np.nanmean(fold_scores, axis=1), len(codes)), self.layer_emphasis_)
        self.layer_weights_ = probe_weights(near, self.layer_emphasis_)
        mean = mean_logits(logits, self.layer_weights_)
        self.logit_scale_ = float(logit_weights(mean[:, None], codes, weight / weight.sum())[0])

    def _prepare(self, module, statistics):
        super()._prepare(module, statistics)
        if self.layer_gains_ is not None:
            module.set_gain(self.layer_gains_)

    def _logits(self, stack):
        encoder = super()._logits(stack)
        if self.probes_ is None:
            return encoder
        probes = self._probe_log_proba(take_layers(stack, self.layers_))
        return (1 - self.probe_share_) * log_softmax(encoder, axis=1) + self.probe_share_ * probes

    def _probe_log_proba(self, stack):
        normed = mean_logits(self.probes_.logits(stack), self.layer_weights_)
        normed = log_softmax(self.logit_scale_ * normed, axis=1)
        if self.super_learner_ is None:
            return normed
        learned = log_softmax(self.super_learner_._logits(stack), axis=1)
        return (1 - _SUPER_LEARNER_SHARE) * normed + _SUPER_LEARNER_SHARE * learned
