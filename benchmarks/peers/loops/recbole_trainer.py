"""RecBole: its DeepFM, data set and trainer, from its own text files."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.utils import get_model, get_trainer, init_seed
from run import Case


def train(case: Case) -> float:
    """Trains and returns the AUC of the test rows."""
    # torch.load of its own checkpoint, which holds objects.
    load = torch.load
    torch.load = lambda *positional, **named: load(*positional, **named | {"weights_only": False})
    with tempfile.TemporaryDirectory() as folder:
        names = [f"f{place}" for place in range(len(case.tables))] + [f"d{place}" for place in range(case.dense)]
        types = ["token"] * len(case.tables) + ["float"] * case.dense + ["float"]
        Path(folder, "rows").mkdir()
        for split, file in (("train", "train"), ("test", "test")):
            dense, ids, labels = case.rows(split)
            header = "\t".join(f"{name}:{kind}" for name, kind in zip([*names, "label"], types, strict=True))
            rows = np.column_stack([ids, dense, labels])
            kinds = ["%d"] * len(case.tables) + ["%.6g"] * (case.dense + 1)
            np.savetxt(Path(folder, "rows", f"rows.{file}.inter"), rows, kinds, "\t", header=header, comments="")
        settings = {
            "data_path": folder,
            "benchmark_filename": ["train", "test", "test"],
            "load_col": {"inter": [*names, "label"]},
            "USER_ID_FIELD": "f0",
            "ITEM_ID_FIELD": "f1",
            "LABEL_FIELD": "label",
            "numerical_features": [f"d{place}" for place in range(case.dense)],
            "eval_args": {"split": None, "group_by": None, "order": "RO", "mode": "labeled"},
            "metrics": ["AUC"],
            "valid_metric": "AUC",
            "train_neg_sample_args": None,
            "use_gpu": False,
            "state": "ERROR",
            "show_progress": False,
            "epochs": case.epochs,
            "stopping_step": case.epochs,
            "eval_step": 0,
            "train_batch_size": case.batch,
            "eval_batch_size": case.batch,
            "learning_rate": case.learning_rate,
            "embedding_size": case.dim,
            "mlp_hidden_size": case.layers,
            "dropout_prob": 0.0,
            "checkpoint_dir": folder,
        }
        config = Config(model="DeepFM", dataset="rows", config_dict=settings)
        init_seed(0, reproducibility=False)
        dataset = create_dataset(config)
        batches, _, of_test = data_preparation(config, dataset)
        model = get_model("DeepFM")(config, batches._dataset)
        trainer = get_trainer(config["MODEL_TYPE"], "DeepFM")(config, model)
        trainer.fit(batches, None, verbose=False, saved=False)
        return float(trainer.evaluate(of_test, load_best_model=False)["auc"])
