"""What a model card says of documents, and of the loss by laws that read more than a model's size and tokens."""

import pytest

from configs import quickstart
from jmoe import export


def test_the_card_says_that_documents_were_kept_apart():
    config = quickstart.get_config()
    record = {"n_tokens": 4_096, "step": 2, "corpus_fingerprint": "0" * 16, "jmoe": "0.3.0", "jax": "0.12"}
    texts = []
    for document_mask in (False, True):
        config.data.document_mask = document_mask
        texts.append(export.card("out/model", record, config, None, None))
    without, with_mask = texts
    assert with_mask.replace(export.DOCUMENTS, "") == without and "document_mask" not in without


@pytest.mark.parametrize("law", ["joint-moe-2025", "fine-grained-2024", "sparsity-2025", "comprehensive-2025"])
def test_published_laws_predict_a_models_loss(law):
    model = quickstart.get_config().model
    model.n_experts = 8
    loss = float(export._predicted(law, model, 10**7).partition(" ")[0])
    assert 0.1 < loss < 1000  # these laws were fitted to models a thousand times as large
