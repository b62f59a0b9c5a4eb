"""Multinomial logistic regressions that share their samples, solved together to convergence."""

import torch

MEMORY = 10
# A step is taken if the objective falls by this share of what its slope promises (Armijo).
SUFFICIENT = 1e-4
# The objective is known to about this share of it; a rise by less may be none.
ROUNDING = 1e-15
# A mean loss below this is as good as none, which is what samples that can be separated tend to without a penalty.
_NEGLIGIBLE = 1e-4
# What falls short of the tolerance by rounding alone is no failure.
_SOLVED = 1e-9
# What no step lowers any more, though it promises to lower it by this share, is not solved.
_STALLED = 1e-3
# A penalty that leaves nothing of the coefficients, and fits into float32.
_STIFF = 1e30
# Rows whose scores fit into a core's cache: about this many numbers.
_BLOCK = 2**18
# Rows that are centred at a time, so that X is not copied whole in float64.
_ROWS = 1024
# Logit of a class that a problem has no sample of, below all the others: exp rounds it to 0 in float32 too.
ABSENT = -1e4


def solve_logistic(X, codes, weight, ridge, n_classes, *, tol=1e-6, max_iter=500):
    """Minimise K weighted, L2-penalised softmax cross-entropies over the same rows.

    Problem k minimises ``sum_i weight[i, k] * loss_i(X @ W_k + b_k) + 0.5 * sum_j ridge[k, j] * |W_k[j]|^2``, the
    objective of scikit-learn's ``LogisticRegression`` with ``ridge = 1 / C``.

    L-BFGS in the eigenbasis of X's covariance, where the classic bound on the softmax Hessian is diagonal and makes a
    good first guess of its inverse [1]_: on a Vision Transformer's features, this needs several times fewer iterations
    than L-BFGS on the features themselves. All problems advance together, in one product of X with all their weights,
    but each by its own steps, so none depends on its company but for rounding. One copy of X is made, in that basis.

    Parameters
    ----------
    X : tensor of shape (n_samples, dim)
        float32 or float64: what is computed with. The objective is summed in float64 either way.
    codes : tensor of int64 of shape (n_samples,)
        Classes, from 0 to ``n_classes - 1``.
    weight : tensor of shape (n_samples, K)
        Non-negative; 0 leaves a sample out of a problem.
    ridge : tensor of float64 of shape (K,) or (K, dim)
        Strengths of the penalty.
    n_classes : int
        A class without weight in a problem gets coefficients 0 and the intercept ``ABSENT``.
    tol : float, default=1e-6
        A problem is solved when a step promises to lower its objective by less than this share of it, or of a mean loss
        of 1e-4 if it is less.
    max_iter : int, default=500
        Most evaluations of the objective.

    Returns
    -------
    coef : tensor of shape (K, dim, n_classes)
    intercept : tensor of shape (K, n_classes)
    converged : tensor of bool of shape (K,)

    References
    ----------
    .. [1] D. Böhning, "Multinomial logistic regression algorithm", Ann. Inst. Stat. Math. 44, 1992.
    """
    total = weight.sum(0)
    mean = (weight.sum(1) @ X) / total.sum()
    basis, spectrum = _eigenbasis(X, mean, reduce=ridge.ndim == 1)
    absent = torch.stack([weight[codes == c].sum(0) == 0 for c in range(n_classes)], 1)
    # In units in which the largest spread is 1, so that features of any size fit into float32.
    unit = torch.where(spectrum.amax() > 0, spectrum.amax().sqrt(), 1.0)
    basis, spectrum = (basis / unit).to(X.dtype), (spectrum / unit**2).to(X.dtype)
    ridge = (ridge / unit**2 if ridge.ndim == 1 else ridge).clamp_max(_STIFF).to(X.dtype)
    rotated = X.new_ones(len(X), basis.shape[1] + 1)
    for rows in _row_blocks(len(X)):
        rotated[rows, :-1] = (X[rows] - mean) @ basis
    problems = _Problems(rotated, codes, weight, absent, *_penalties(ridge, basis))
    W, converged = _minimise(problems, problems.first_guess(spectrum, total), tol, max_iter)
    coef = basis @ W[:, :-1]
    intercept = W[:, -1] - mean @ coef
    lowest = intercept.masked_fill(absent, torch.inf).amin(1, keepdim=True)
    return coef, torch.where(absent, lowest + ABSENT, intercept), converged


class _Problems:
    """The objectives of those problems that are still being solved, in the eigenbasis."""

    def __init__(self, X, codes, weight, absent, ridge, rotated):
        self.X, self.codes, self.weight, self.absent = X, codes, weight, absent
        self.ridge, self.rotated = ridge, rotated
        self.shape = (weight.shape[1], X.shape[1], absent.shape[1])

    def keep(self, left):
        """Go on with the problems at which ``left`` is True."""
        self.weight, self.absent, self.ridge = self.weight[:, left], self.absent[left], self.ridge[left]
        self.rotated = None if self.rotated is None else self.rotated[left]

    def first_guess(self, spectrum, total):
        """Return the diagonal of an approximate inverse Hessian, of shape (K, dim + 1, 1)."""
        curvature = torch.cat([spectrum, spectrum.new_ones(1)]) * (total / self.shape[2])[:, None]
        curvature[:, :-1] += self.ridge[:, :-1, 0]
        return curvature.clamp_min(curvature.amax() * 1e-12).reciprocal()[:, :, None]

    def evaluate(self, W):
        """Return objectives (K,) in float64 and gradients of the shape of W, (K, dim + 1, n_classes)."""
        k, d, c = W.shape
        flat = W.transpose(0, 1).reshape(d, k * c)
        gradient = torch.zeros_like(flat)
        penalty = self.ridge * W
        if self.rotated is not None:
            penalty[:, :-1] = self.rotated @ W[:, :-1]
        objective = 0.5 * (penalty * W).sum(2).double().sum(1)
        any_absent = bool(self.absent.any())
        size = max(64, _BLOCK // (k * c))
        for start in range(0, len(self.X), size):
            rows = slice(start, start + size)
            X, weight = self.X[rows], self.weight[rows]
            label = self.codes[rows, None, None].expand(-1, k, 1)
            Z = (X @ flat).view(-1, k, c)
            if any_absent:
                Z = Z.masked_fill_(self.absent, -torch.inf)
            Z -= Z.amax(2, keepdim=True)
            # A label that is absent has weight 0; -inf times 0 would not be 0.
            at_label = Z.gather(2, label)[:, :, 0].clamp_min(torch.finfo(Z.dtype).min)
            P = Z.exp_()
            total = P.sum(2)
            objective += (weight * (total.log() - at_label)).double().sum(0)
            P *= (weight / total)[:, :, None]
            P.scatter_add_(2, label, -weight[:, :, None])
            gradient.addmm_(X.T, P.view(-1, k * c))
        return objective, gradient.view(d, k, c).transpose(0, 1) + penalty


def _minimise(problems, guess, tol, max_iter):
    """Minimise by L-BFGS with backtracking from 0; problems that are solved leave the rest to go on."""
    K = problems.shape[0]
    dtype, device = problems.X.dtype, problems.X.device
    solution = torch.zeros(problems.shape, dtype=dtype, device=device)
    converged = torch.zeros(K, dtype=torch.bool, device=device)
    left = torch.arange(K, device=device)
    W = solution.clone()
    F, g = problems.evaluate(W)
    history = []
    scale = torch.ones(K, 1, 1, dtype=dtype, device=device)
    direction = -guess * g
    slope = _dot(direction, g)
    step = torch.ones(K, dtype=dtype, device=device)
    for _ in range(max_iter):
        # Where rounding hides the fall of the objective, no shorter step will find it.
        scope = F + _NEGLIGIBLE * problems.weight.sum(0)
        done = (-slope <= tol * scope) | (step < 1e-4)
        if done.any():
            solution[left[done]], converged[left[done]] = W[done], (-slope <= _STALLED * scope)[done]
            stay = ~done
            problems.keep(stay)
            left, W, F, g, guess, scale, direction, slope, step = (
                state[stay] for state in (left, W, F, g, guess, scale, direction, slope, step)
            )
            history = [tuple(part[stay] for part in pair) for pair in history]
        if len(left) == 0:
            break
        W_new = W + step[:, None, None] * direction
        F_new, g_new = problems.evaluate(W_new)
        accepted = F_new <= F * (1 + ROUNDING) + SUFFICIENT * step * slope
        yes = accepted[:, None, None]
        s, y = torch.where(yes, W_new - W, 0), torch.where(yes, g_new - g, 0)
        sy = _dot(s, y)
        useful = sy > 0
        # A pair of zeros takes no part in the two loops.
        history = [*history[1 - MEMORY :], (s, y, torch.where(useful, 1 / sy, 0)[:, None, None].to(dtype))]
        ratio = (sy / _dot(y, guess * y))[:, None, None].to(dtype)
        scale = torch.where(useful[:, None, None], ratio, scale)
        W, F, g = torch.where(yes, W_new, W), torch.where(accepted, F_new, F), torch.where(yes, g_new, g)
        direction = torch.where(yes, _two_loops(g, history, scale * guess), direction)
        slope = _dot(direction, g)
        step = torch.where(accepted, 1.0, step / 2)
    else:
        solution[left], converged[left] = W, -slope <= max(tol, _SOLVED) * scope
    return solution, converged


def _two_loops(g, history, guess):
    """Return L-BFGS's direction: minus the approximate inverse Hessian times the gradient."""
    q = -g
    kept = []
    for s, y, rho in reversed(history):
        kept.append(rho * (s * q).sum((1, 2), keepdim=True))
        q = q - kept[-1] * y
    q = guess * q
    for (s, y, rho), a in zip(history, reversed(kept), strict=True):
        q = q + (a - rho * (y * q).sum((1, 2), keepdim=True)) * s
    return q


def _dot(a, b):
    """Return the inner products of K pairs, in float64."""
    return (a * b).sum(2).double().sum(1)


def _eigenbasis(X, mean, reduce):
    """Return the covariance's eigenvectors (dim, rank) and eigenvalues; only a basis of X's rows, if ``reduce``."""
    # In float64: the directions of little variance, which float32 would mix up, are what makes the problem hard.
    n, d = X.shape
    if reduce and n < d:
        X = (X - mean).double()
        span = torch.linalg.qr(X.T)[0]
        X = X @ span
        spectrum, basis = torch.linalg.eigh(X.T @ X / n)
        return span @ basis, spectrum.clamp_min(0)
    gram = torch.zeros(d, d, dtype=torch.float64, device=X.device)
    for rows in _row_blocks(n):
        part = (X[rows] - mean).double()
        gram += part.T @ part
    spectrum, basis = torch.linalg.eigh(gram / n)
    return basis, spectrum.clamp_min(0)


def _row_blocks(n):
    return [slice(start, start + _ROWS) for start in range(0, n, _ROWS)]


def _penalties(ridge, basis):
    """Return the ridge in the eigenbasis, (K, rank + 1, 1), its last 0 for the intercept, and its matrix if it is one.

    One strength for all dimensions is the same in any basis; several become a full matrix, of which the first result is
    the diagonal.
    """
    if ridge.ndim == 1:
        rotated, diagonal = None, ridge[:, None].expand(-1, basis.shape[1])
    else:
        rotated = basis.T @ (ridge[:, :, None] * basis)
        diagonal = rotated.diagonal(dim1=1, dim2=2)
    return torch.cat([diagonal, diagonal.new_zeros(len(ridge), 1)], 1)[:, :, None], rotated
