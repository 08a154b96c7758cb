"""deepctr-torch: its DeepFM and `fit`."""

import torch
from deepctr_torch.inputs import DenseFeat, SparseFeat
from deepctr_torch.models import DeepFM
from run import Case, auc


def train(case: Case) -> float:
    """Trains and returns the AUC of the test rows."""
    columns, labels = case.columns("train")
    test, test_labels = case.columns("test")
    features = [SparseFeat(f"f{place}", rows, embedding_dim=case.dim) for place, rows in enumerate(case.tables)]
    features += [DenseFeat(f"d{place}", 1) for place in range(case.dense)]
    model = DeepFM(features, features, dnn_hidden_units=case.layers, l2_reg_linear=0, l2_reg_embedding=0, init_std=0.01)
    # Its loss is a sum over samples.
    model.compile(torch.optim.Adam(model.parameters(), case.learning_rate), "binary_crossentropy")
    model.fit(columns, labels, batch_size=case.batch, epochs=case.epochs, verbose=0)
    return auc(model.predict(test, case.batch), test_labels)
