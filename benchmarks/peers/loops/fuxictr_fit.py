"""FuxiCTR: its loaders, layers and training loop. Its wheel has no DeepFM, so that is put together from its layers."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch.dataloaders import RankDataLoader
from fuxictr.pytorch.layers import FactorizationMachine, FeatureEmbedding, MLP_Block
from fuxictr.pytorch.models import BaseModel
from run import Case, auc


class DeepFM(BaseModel):
    """Factorization machine and network over the same embeddings."""

    def __init__(self, feature_map: FeatureMap, case: Case, folder: str) -> None:
        super().__init__(
            feature_map,
            model_id="deepfm",
            gpu=-1,
            monitor="AUC",
            verbose=0,
            model_root=folder,
            metrics=["AUC"],
            reduce_lr_on_plateau=False,
            early_stop_patience=case.epochs,
        )
        self.tables = FeatureEmbedding(feature_map, case.dim)
        self.pairs = FactorizationMachine(feature_map)
        self.deep = MLP_Block(
            input_dim=feature_map.sum_emb_out_dim(),
            output_dim=1,
            hidden_units=case.layers,
            hidden_activations="ReLU",
        )
        self.compile("adam", "binary_crossentropy", case.learning_rate)
        self.reset_parameters()
        self.model_to_device()

    def forward(self, inputs: dict) -> dict[str, torch.Tensor]:
        """Returns the probability of each sample."""
        columns = self.get_inputs(inputs)
        found = self.tables(columns)
        logits = self.pairs(columns, found) + self.deep(found.flatten(start_dim=1))
        return {"y_pred": self.output_activation(logits)}


def train(case: Case) -> float:
    """Trains and returns the AUC of the test rows."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "rows").mkdir()
        for split in ("train", "test"):
            columns, labels = case.columns(split)
            np.savez(Path(folder, f"{split}.npz"), label=labels, **columns)
        feature_map = FeatureMap("rows", str(Path(folder, "rows")))
        for place in range(case.dense):
            feature_map.features[f"d{place}"] = {"source": "", "type": "numeric"}
        for place, rows in enumerate(case.tables):
            feature_map.features[f"f{place}"] = {"source": "", "type": "categorical", "vocab_size": rows}
        feature_map.labels = ["label"]
        feature_map.default_emb_dim = case.dim
        feature_map.num_fields = feature_map.get_num_fields()
        feature_map.set_column_index()
        model = DeepFM(feature_map, case, folder)
        batches, of_test, _ = RankDataLoader(
            feature_map,
            stage="both",
            train_data=f"{folder}/train.npz",
            valid_data=f"{folder}/test.npz",
            test_data=f"{folder}/test.npz",
            data_format="npz",
            batch_size=case.batch,
            num_workers=0,
        )
        model.fit(batches, epochs=case.epochs, validation_data=of_test)
        return auc(model.predict(of_test), case.rows("test")[2])
