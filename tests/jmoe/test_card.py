"""The prediction on a model card, by laws that read more than a model's size and tokens."""

import pytest

from configs import quickstart
from jmoe import export


@pytest.mark.parametrize("law", ["joint-moe-2025", "fine-grained-2024", "sparsity-2025", "comprehensive-2025"])
@pytest.mark.parametrize("n_experts", [1, 8])
def test_published_laws_predict_a_models_loss(law, n_experts):
    model = quickstart.get_config().model
    model.n_experts = n_experts
    loss = float(export._predicted(law, model, 10**7).partition(" ")[0])
    assert 0.1 < loss < 1000  # these laws were fitted to models a thousand times as large
