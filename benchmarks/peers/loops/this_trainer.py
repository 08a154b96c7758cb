"""This project, from Parquet files, by its command."""

import json
import tempfile
from pathlib import Path

from run import Case

from trainer.commands import read_command


def train(case: Case, *flags: str) -> float:
    """Trains and returns the AUC of the test rows. `flags` change the configuration."""
    dense = "\n".join(f"d{place} = {{}}" for place in range(case.dense))
    sparse = "\n".join(f"f{place} = {{ rows = {rows} }}" for place, rows in enumerate(case.tables))
    model = f'name = "{case.model}"\nembedding_dim = {case.dim}\nover_layers = {case.layers}'
    if case.model == "dlrm":
        model += f"\ndense_layers = [{case.layers[0]}]"
    text = f"""
[data]
train = ["{case.folder}/train"]
test = ["{case.folder}/test"]
global_batch_size = {case.batch}

[data.dense]
{dense}

[data.sparse]
{sparse}

[model]
{model}

[optimizer.sparse]
name = "rowwise_adagrad"
learning_rate = {50 * case.learning_rate}

[optimizer.dense]
name = "adam"
learning_rate = {case.learning_rate}

[train]
epochs = {case.epochs}

[evaluate]
metrics = ["auc"]
every_steps = 0
"""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "config.toml")
        file.write_text(text)
        read_command(["train", str(file), "--out", f"{folder}/out", *flags])()
        lines = Path(folder, "out/evaluations.jsonl").read_text().splitlines()
        return json.loads(lines[-1])["auc"]
