"""The components of the catalog, and arguments for each, with which tests submit it."""

import inspect
import shlex

from torchx.specs import AppDef, macros

from components import data, dlrm, tools

FUNCTIONS = {
    f"{module.__name__.partition('.')[2]}.{name}": function
    for module in (dlrm, data, tools)
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__
}
# One component for each shape of a job, which golden files show: a server, ranks on one node, ranks on several nodes.
SHAPES = ("tools.serve", "dlrm.single_node", "dlrm.multi_node")
TRAINER_ARGS = ["--", "--train.steps", "100", "--note", "it's $HOME"]
COMPONENTS = {
    "dlrm.single_node": ["--config", "c.toml", "--nproc", "2", *TRAINER_ARGS],
    "dlrm.multi_node": [
        *("--config", "c.toml", "--out", "s3://bucket/run", "-j", "1:2x4", "--cpu", "9", "--gpu", "4"),
        *("--memMB", "1024", "--resume", "must", "--max_retries", "3", "--name", "ads", "--env", "A=1,LOGLEVEL=INFO"),
        *("--mounts", "type=bind,src=/host,dst=/job,readonly", *TRAINER_ARGS),
    ],
    "dlrm.data_parallel": ["--config", "c.toml", "-j", "1x4", *TRAINER_ARGS],
    "dlrm.evaluate": [
        *("--config", "c.toml", "--out", "runs/a", "--split", "validation", "--checkpoint", "best", "-j", "2x1"),
    ],
    "dlrm.predict": [
        *("--config", "c.toml", "--out", "runs/a", "--source", "s3://b/a.parquet,b", "--to", "s3://b/p", "-j", "2x4"),
        *("--keep_columns", "user,item", "--outputs", "click_probability", "--checkpoint", "100", "--gpu", "4"),
    ],
    "dlrm.recommend": [
        *("--config", "c.toml", "--out", "runs/a", "--to", "s3://b/lists", "--k", "20", "-j", "2x4"),
        *("--user_column", "user", "--items", "items.parquet", "--item_column", "item", "--show", "title,year"),
        *("--where", "year >= 1990", "--seen", "s3://b/a.parquet,b"),
    ],
    "data.movielens": ["--wheel", "ratings.whl"],
    "data.criteo": ["--source", "a.gz,b*.gz", "--dense_transform", "none"],
    "data.synthetic": ["--rows", "5", "--", "--quiet", "True"],
    "data.yambda": ["--source", "s3://b/yambda", "--size", "50m", "--", "--among", "9"],
    "data.taobao": ["--source", "s3://b/taobao", "--history", "20"],
    "data.split": [
        *(
            "--source",
            "a.csv,b",
            "--out",
            "s3://b/mine",
            "--time",
            "t",
            "--user",
            "u",
            "--item",
            "i",
            "--catalogue",
            "True",
        ),
        *(
            "--label",
            "liked = rating >= 4,good = rating >= 5",
            "--aggregate",
            "u,i",
            "--history",
            "9",
            "--",
            "--seed",
            "1",
        ),
    ],
    "data.sort_log": [
        *("--source", "a.csv,b", "--out", "s3://b/log", "--user", "u", "--time", "t", "--values", "i,rating"),
        *("--where", "rating >= 4,i != null", "--duplicates", "drop", "--", "--threads", "1"),
    ],
    "data.cut_stream": [
        *("--config", "live.toml", "--follow", "True", "--most", "9", "--", "--data.stream.every-records", "1000"),
    ],
    "data.vocabulary": ["--source", "a.parquet,b", "--columns", "user,item", "--max_rows", "1000", "--together", "id"],
    "data.embed_text": [
        *("--source", "s3://b/train,items.parquet", "--column", "title", "--out", "s3://b/v", "--width", "64"),
        *("--precision", "half", "--overwrite", "True"),
    ],
    "data.check": [
        *("--config", "c.toml", "--rows", "1000", "--everything", "True", "--time", "hour", "--page", "s3://b/p.html"),
        *("--statistics", "s.json", "--strict", "True", "--", "--data.train", "a.parquet"),
    ],
    "data.baselines": [
        *("--config", "c.toml", "--to", "s3://b/baselines.json", "--only", "label rate,EASE", "--max_rows", "1000"),
        *("--user", "user", "--overwrite", "True", "--", "--data.test", "a.parquet"),
    ],
    "tools.tensorboard": ["--logdir", "runs/a", "--port", "6007"],
    "tools.plan": [
        *("--config", "c.toml", "--on", "h100:8,a100:16", "--out", "s3://b/plan.json"),
        *("--", "--planner.min-columns", "16"),
    ],
    "tools.schedule": ["--config", "c.toml", "--draw", "s3://b/rates.svg", "--", "--steps-per-epoch", "10"],
    "tools.compare": ["--runs", "s3://b/run,runs/b", "--page", "s3://b/p.html"],
    "tools.segments": [
        *("--config", "c.toml", "--out", "s3://b/run", "--to", "s3://b/exports", "--static", "first"),
        *("--", "--data.segments.until", "09"),
    ],
    "tools.track": ["--out", "s3://b/run", "--trackers", "mlflow", "--export", "s3://b/export"],
    "tools.checkpoints": ["--out", "s3://b/run", "--verify", "True", "--convert", "plain.pt", "--step", "0"],
    "tools.rewind": ["--out", "s3://b/run", "--segment", "2026-11-26", "--to", "s3://b/mended"],
    "tools.importance": [
        *("--config", "c.toml", "--out", "runs/a", "--split", "test", "--checkpoint", "best", "--metric", "auc"),
        *("--rows", "1000", "--repeats", "3", "-j", "1x2"),
    ],
    "tools.embed": [
        *("--config", "c.toml", "--out", "runs/a", "--to", "s3://b/v", "--output", "liked_item", "-j", "1x2"),
        *("--source", "a.parquet,b", "--id_column", "item"),
    ],
    "tools.export": [
        *("--config", "c.toml", "--out", "runs/a", "--to", "s3://b/exports", "--checkpoint", "best"),
        *("--", "--averages", "False"),
    ],
    "tools.rollback": ["--to", "s3://b/exports"],
    "tools.publish": [
        *("--export", "s3://b/exports", "--to", "redis://host:6379/0", "--prefix", "a:b", "--keep", "2"),
        *("--all_rows", "True"),
    ],
    "tools.serve": ["--directory", "s3://b/exports", "--port", "9000", "--host", "0.0.0.0", "--", "--wait-ms", "5"],
    "tools.verify_resume": ["--config", "c.toml", "--ranks", "4", "--keep", "kept", "--", "--train.seed", "1"],
    "tools.calibrate": ["--out", "s3://b/host.toml", "-j", "1x2", "--", "--repeats", "5"],
    "tools.bench": ["--out", "runs/bench"],
}


def trainer_words(app: AppDef) -> list[str]:
    """Returns what follows `python -m trainer` in an app, as replica 0 of the job `job-1` gets it."""
    role = macros.Values(img_root="", app_id="job-1", replica_id="0", rank0_env="RANK0_HOST").apply(app.roles[0])
    words = shlex.split(role.args[1]) if role.entrypoint == "bash" else role.args
    return words[words.index("trainer") + 1 :]
