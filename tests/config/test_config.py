"""What a configuration file or a flag gets wrong is said in one line that names it and what is allowed."""

import re

import pytest
from command import load_text, run_trainer, write_config
from jobs import config

from trainer.config.root import READY_MADE, Config, load_config, to_toml
from trainer.core.errors import InputError

FEATURES = "[data.sparse.s]\nrows = 5\n[data.dense.d]\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("train = [", "is not TOML: "),
        ("[trian]", "unknown key 'trian'; did you mean 'train'?"),
        ("[train]\nsteps = 1.5", "train.steps is 1.5: input should be a valid integer"),
        ("[data.sparse.t]", "'data.sparse.t.rows' is missing"),
        ("[data.sparse.t]\nrows = '5'", "data.sparse.t.rows is '5': input should be a valid integer"),
        ("[data.sparse.table]\nrows = 5\npoolin = 'sum'", "'data.sparse.table.poolin'; did you mean 'pooling'?"),
        ("[data.dense.e]\nstd = nan", "data.dense.e.std is nan: input should be a finite number"),
        ("[model]\ndense_layers = [8, 0]", "model.dense_layers.1 is 0: input should be greater than 0"),
        (
            "[optimizer]\nsparse = 'adam'",
            "optimizer.sparse is 'adam': it must be a section of keys, [optimizer.sparse]",
        ),
        ("[model.experts]\nlayers = []", "model.experts.layers is []: list should have at least 1 item"),
        (
            "[planner]\nengine = 'torchrec'",
            "planner.engine is 'torchrec', but this version has one planner; leave it out",
        ),
        ("[planner.tables.s]\nsharding = []", "'planner.tables.s.sharding'; did you mean 'sharding_types'?"),
    ],
)
def test_a_wrong_file_is_explained(tmp_path, text, says):
    with pytest.raises(ValueError, match=re.escape(says)) as raised:
        load_text(tmp_path, FEATURES + text)
    assert str(tmp_path / "config.toml") in str(raised.value)


def test_a_missing_file_leads_to_the_ready_made_ones():
    with pytest.raises(InputError) as raised:
        load_config("nowhere")
    assert all(file.stem in str(raised.value) for file in READY_MADE.glob("*.toml"))


@pytest.mark.parametrize("file", sorted(READY_MADE.glob("*.toml")), ids=lambda file: file.stem)
def test_ready_made_configurations_are_known_by_name(file):
    assert load_config(file.stem) == load_config(str(file))


def written(folder, **files):
    """Writes configurations with the names of one another; returns their paths."""
    paths = {name: str(folder / f"{name}.toml") for name in files}
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text.format(**paths))
    return paths


def test_a_base_is_joined_with_what_is_said_over_it(tmp_path):
    paths = written(
        tmp_path,
        first="[data.sparse.s]\nrows = 5\n[model]\ndense_layers = [3]\n[optimizer.dense]\nname = 'adam'\nbeta1 = 0.5\n",
        second="base = '{first}'\n[data.sparse.s]\nids = 'hash'\n[data.sparse.t]\nrows = 7\n[train]\nsteps = 3\n",
        third="base = '{second}'\n[model]\nname = 'deepfm'\n[optimizer.dense]\nlearning_rate = 1.0\n[train]\nsteps = 4",
    )
    whole = load_config(paths["third"])
    assert whole == Config.model_validate(
        {
            "data": {"sparse": {"s": {"rows": 5, "ids": "hash"}, "t": {"rows": 7}}},
            "model": {"name": "deepfm"},  # whose keys are others: it takes none of the base's
            "optimizer": {"dense": {"name": "adam", "beta1": 0.5, "learning_rate": 1.0}},
            "train": {"steps": 4},
        }
    )
    (tmp_path / "run.toml").write_text(to_toml(whole))
    assert load_config(str(tmp_path / "run.toml")) == whole


def test_a_configuration_leaves_out_features_of_its_base(tmp_path):
    features = (
        "[data.dense]\nprice = {{}}\n[data.sparse]\nband = {{ rows = 3, column = 'price', buckets = [1.0, 2.0] }}\n"
    )
    text = features + "item = {{ rows = 5 }}\n"
    paths = written(
        tmp_path,
        base=text,
        file="base = '{base}'\nwithout = ['price']\n",
        again="base = '{base}'\nwithout = ['item']\n[data.sparse.item]\nrows = 9\n",
        wrong="base = '{base}'\nwithout = ['itm']\n",
    )
    data = load_config(paths["file"]).data
    assert (data.dense.keys(), data.sparse.keys()) == (set(), {"item"})
    assert load_config(paths["again"]).data.sparse["item"].rows == 9
    with pytest.raises(InputError, match=r"wrong.toml': without has 'itm', which is no feature; did you mean 'item'"):
        load_config(paths["wrong"])


def test_segments_take_the_place_of_the_length_of_the_base(tmp_path):
    file = "base = '{base}'\n[data.segments]\npath = 'days/{{segment}}'\n"
    paths = written(tmp_path, base="[train]\nepochs = 3\n", file=file)
    assert load_config(paths["file"]).train.epochs is None


def test_a_length_replaces_that_of_the_base_and_features_may_have_its_name(tmp_path):
    path = written(
        tmp_path,
        base="[train]\nepochs = 3\n[optimizer.dense]\nmax_norm = 1.0\n[data.dense]\nepochs = {{}}\ncolumn = {{}}\n",
        file="base = '{base}'\n[train]\nsteps = 12\n[optimizer.dense]\nmax_value = 2.0\n[data.dense]\nsteps = {{}}\n",
    )["file"]
    config = load_config(path)
    assert (config.train.steps, config.train.epochs) == (12, None)
    assert (config.optimizer.dense.max_value, config.optimizer.dense.max_norm) == (2.0, None)
    assert config.data.dense.keys() == {"epochs", "column", "steps"}


@pytest.mark.parametrize(
    ("first", "says"),
    [
        ("base = 5", "first.toml': base is 5; it must name another configuration"),
        ("base = '{first}'", "first.toml'; it must name another configuration"),
        ("base = '{second}'", "second.toml': base is '"),
        ("base = 'nowhere'", "/nowhere): no such file; ready-made ones: "),
        ("base = 'movielens'\n[trian]", "first.toml': unknown key 'trian'"),
    ],
)
def test_a_wrong_base_is_explained(tmp_path, first, says):
    paths = written(tmp_path, first=first, second="base = '{first}'")
    with pytest.raises(InputError, match=re.escape(says)):
        load_config(paths["first"])


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"[train]\nsteps = 1 # \xff", "is not UTF-8: invalid start byte at byte 20"), (None, "Is a directory")],
)
def test_what_is_no_text_is_refused(tmp_path, content, says):
    file = tmp_path / "config.toml"
    file.mkdir() if content is None else file.write_bytes(content)
    with pytest.raises(InputError, match=re.escape(says)) as raised:
        load_config(str(file))
    assert str(file) in str(raised.value)


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path):
    file = tmp_path / "config.toml"
    file.write_bytes(b"\xef\xbb\xbf[train]\nsteps = 3\n")
    assert load_config(str(file)).train.steps == 3


def test_the_home_directory_is_found_in_every_path(rows, tmp_path, monkeypatch):
    """A shell replaces ~ only where a word begins with it, and nobody does in a file."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    (home / "rows").symlink_to(rows)
    write_config(home / "config.toml", config("~/rows", train__steps=2))
    for words in (
        ["plan", "~/config.toml", "--world-size=1", "--out=~/plan.json"],
        ["train", "~/config.toml", "--out=~/first", "--planner.plan=~/plan.json", "--report.tensorboard", "True"],
        ["train", "~/config.toml", "--out=~/second", "--finetune.checkpoint=~/first"],
    ):
        done = run_trainer(*words, HOME=str(home))
        assert done.returncode == 0, done.stderr
    assert not list(here.iterdir())
    assert (home / "first/tensorboard").is_dir()
    assert (home / "second/checkpoints/step-000000002").is_dir()
