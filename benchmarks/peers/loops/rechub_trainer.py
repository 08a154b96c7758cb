"""torch-rechub: its DeepFM, data generator and trainer."""

import tempfile

from run import Case, auc
from torch_rechub.basic.features import DenseFeature, SparseFeature
from torch_rechub.models.ranking import DeepFM
from torch_rechub.trainers import CTRTrainer
from torch_rechub.utils.data import DataGenerator


def train(case: Case) -> float:
    """Trains and returns the AUC of the test rows."""
    columns, labels = case.columns("train")
    test, test_labels = case.columns("test")
    dense = [DenseFeature(f"d{place}") for place in range(case.dense)]
    sparse = [SparseFeature(f"f{place}", rows, embed_dim=case.dim) for place, rows in enumerate(case.tables)]
    mlp = {"dims": case.layers, "activation": "relu", "dropout": 0.0}
    model = DeepFM(dense + sparse, sparse, mlp)
    batches, _, of_test = DataGenerator(columns, labels).generate_dataloader(
        x_val=test, y_val=test_labels, x_test=test, y_test=test_labels, batch_size=case.batch
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = CTRTrainer(model, optimizer_params={"lr": case.learning_rate}, n_epoch=case.epochs, model_path=folder)
        trainer.fit(batches)
        return auc(trainer.predict(trainer.model, of_test), test_labels)
