"""This project as it comes, in a run of ten minutes and more: from Parquet files, by its command."""

import json
import tempfile
from pathlib import Path

from run import TABLE_RATE, Case

from trainer.commands import read_command


def train(case: Case) -> float:
    """Trains and returns the AUC of the test rows."""
    # What "auto" decides in such a run; one of seconds it would not compile. DLRM would not save what compiling takes,
    # and HSTU does not become one graph.
    return train_with(case, "--train.compile", "true" if case.model == "deepfm" else "false")


def train_with(case: Case, *flags: str) -> float:
    """Trains with flags and returns the AUC of the test rows."""
    dense = "\n".join(f"d{place} = {{}}" for place in range(case.dense))
    sparse = "\n".join(f"f{place} = {{ rows = {rows} }}" for place, rows in enumerate(case.tables))
    model = f'name = "{case.model}"\nembedding_dim = {case.dim}\nover_layers = {case.layers}'
    if case.model == "dlrm":
        model += f"\ndense_layers = [{case.layers[0]}]"
    if case.model == "hstu":
        sequence = f'rows = {case.tables[0]}, table = "item", pooling = "none"'
        sparse = f"item = {{ {sequence}, max_ids = 1 }}\n"
        sparse += f"history = {{ {sequence}, max_ids = {case.history}, hotness = {case.history / 2} }}"
        model += f'\ntarget = "item"\nhistory = "history"\nattention_blocks = {case.units}'
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
learning_rate = {TABLE_RATE}

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
