"""Efficiency leverage: how many times the FLOPs of a mixture a dense model needs, by Tian et al. 2025."""

import numpy as np

from fit.aliases import Json, Numbers
from fit.model.architecture import training_flops
from fit.model.shape import ModelShape

LEVERAGE = dict(a=1.23, d=-7.61e-2, gamma=1.67e-2, beta=-1.17e-1, A_start=1.63e-2, A_max=5.28e16)  # its Table 2
LEVERAGE_OF = dict(activation=(0.008, 1.0), granularity=(2.0, 16.0), flops=(3e17, 6e20))  # the ranges of its runs


def leverage(activation: Numbers, granularity: Numbers, flops: Numbers) -> Numbers:
    """Efficiency leverage, Tian et al. (2025, arXiv 2507.17702): how many times the FLOPs of a mixture a dense model
    needs for the mixture's loss, each of its best size. Numbers or arrays that broadcast.

      EL(A, G, C) = Â^(a + d log C + gamma (log G)^2 + beta log G)    (Eq. 13)
      1/Â = 1/(A + 1/(1/A_start - 1/A_max)) + 1/A_max

    A = (top_k + n_shared) / (n_experts + n_shared) is the share of the experts that a token uses, G = 2 d_model /
    d_expert, C the training FLOPs without embedding and head. It is not a law of the loss, so it plans nothing.

    The paper does not print the bases of its logarithms. With log10 C and log2 G its own check holds (more than 7 at A
    = 3.1%, G = 12, 1e22 FLOPs: 7.2), and so does its best granularity of about 12 (2^(-beta / 2 gamma) = 11.3). With
    natural logarithms of both neither does.
    """
    c = LEVERAGE
    scale = 1 / (1 / (activation + 1 / (1 / c["A_start"] - 1 / c["A_max"])) + 1 / c["A_max"])
    g = np.log2(granularity)
    return scale ** (c["a"] + c["d"] * np.log10(flops) + c["gamma"] * g**2 + c["beta"] * g)


def of_shape(shape: ModelShape, n_tokens: float) -> Json:
    """{leverage, outside: what lies outside the paper's runs} of a mixture, trained on n_tokens."""
    used = shape.top_k + shape.n_shared_experts
    columns = dict(
        activation=float(used / (shape.n_experts + shape.n_shared_experts)),
        granularity=float(2 * shape.d_model / shape.d_expert),
        flops=float(training_flops(shape.n_active - shape.embedding_and_head, n_tokens)),
    )
    outside = [name for name, value in columns.items() if not LEVERAGE_OF[name][0] <= value <= LEVERAGE_OF[name][1]]
    return dict(leverage=float(leverage(**columns)), outside=outside)
