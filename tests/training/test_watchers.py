"""Watchers of one's own: options, moments, what they may request, and that they change no bit."""

import json

import pytest
from command import run_trainer, write_config
from jobs import config, launch_rounds, losses, saved_tensors
from shell import typed
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trainer_process import committed

STEPS, EVERY = 12, 4


def watched(rows, steps=STEPS, **watchers):
    """A configuration with watchers of `own_watchers`, by their classes."""
    return config(
        rows,
        train__steps=steps,
        data__validation=[str(rows)],
        evaluate__every_steps=EVERY,
        checkpoint__every_steps=EVERY,
        report={
            "interval_steps": 1,
            "tensorboard": bool(watchers),
            "watchers": {f"own_watchers:{kind}": options for kind, options in watchers.items()},
        },
    )


@pytest.fixture(scope="module")
def runs(rows, tmp_path_factory):
    """Runs on one rank that are resumed on two: without watchers, with one, and two that a watcher stops on the way."""
    folder = tmp_path_factory.mktemp("watchers")
    first = {"plain": {}, "recorded": {"Recorder": {"name": "first"}}}
    then = {"plain": {}, "recorded": {"Recorder": {"name": "then", "seconds": 0.5}}}
    stops = {"evaluated": {"rank": 1, "evaluated": 8}, "stepped": {"rank": 1, "step": 6}}
    jobs = [{"config": watched(rows, EVERY, **kinds), "out": str(folder / name)} for name, kinds in first.items()]
    more = [{"config": watched(rows, **kinds), "out": str(folder / name)} for name, kinds in then.items()]
    again = []
    for name, options in stops.items():
        jobs.append({"config": watched(rows, EVERY), "out": str(folder / name)})
        more.append({"config": watched(rows, Stopper=options), "out": str(folder / name)})
        again.append({"config": watched(rows), "out": str(folder / f"{name}")})
    launch_rounds([(1, jobs), (2, more)], folder)
    ended = {name: json.loads((folder / name / "run.json").read_text()) for name in stops}
    saved = {name: committed(folder / name) for name in stops}
    launch_rounds([(2, again)], folder)
    return folder, ended, saved


def calls(run, name, rank):
    return [json.loads(line) for line in (run / f"{name}-{rank}.jsonl").read_text().splitlines()]


def test_every_rank_calls_every_moment_in_order(runs):
    run = runs[0] / "recorded"
    weights = len([name for name in saved_tensors(run, STEPS) if name.startswith("model.")])
    assert calls(run, "first", 0) == [
        ["begin", 0, EVERY],
        *(["step", step] for step in range(1, EVERY + 1)),
        ["evaluation", EVERY, "validation", True, weights],
        ["end", EVERY, "finished", 1],
    ]
    for rank in (0, 1):
        found = calls(run, "then", rank)
        assert [call[:2] for call in found] == [
            ["begin", 4],
            *(["step", step] for step in range(5, 9)),
            ["evaluation", 8],
            *(["step", step] for step in range(9, 13)),
            ["evaluation", 12],
            ["end", 12],
        ]
        assert found[-1] == ["end", STEPS, "finished", 3]


def test_a_watcher_changes_no_bit(runs):
    folder = runs[0]
    assert losses(folder / "recorded") == losses(folder / "plain")
    expected, found = (saved_tensors(folder / name, STEPS) for name in ("plain", "recorded"))
    assert expected.keys() == found.keys()
    assert all(found[name].equal(value) for name, value in expected.items())


def test_it_draws_to_tensorboard(runs):
    board = EventAccumulator(str(runs[0] / "recorded" / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in board.Scalars("mine/step")] == [
        (step, 2 * step) for step in range(1, STEPS + 1)
    ]


def test_a_request_at_an_evaluation_ends_the_run_there(runs):
    _, ended, saved = runs
    facts = ended["evaluated"]
    assert (facts["state"], facts["step"]) == ("finished", 8)
    assert facts["outcome"] == f"finished at step 8, before {STEPS}: validation was enough"
    assert saved["evaluated"][-1] == 8


def test_a_request_after_a_step_ends_the_run_within_the_next(runs):
    _, ended, saved = runs
    facts = ended["stepped"]
    assert facts["state"] == "finished"
    assert 6 < facts["step"] < 9
    assert facts["outcome"] == f"finished at step {facts['step']}, before {STEPS}: step 6 was enough"
    assert saved["stepped"][-1] == facts["step"]


@pytest.mark.parametrize("name", ["evaluated", "stepped"])
def test_the_run_goes_on_from_there_as_if_it_had_not_ended(runs, name):
    folder = runs[0]
    assert losses(folder / name) == losses(folder / "plain")
    expected, found = (saved_tensors(folder / run, STEPS) for run in ("plain", name))
    assert all(found[name].equal(value) for name, value in expected.items())


def test_a_watcher_of_another_directory_is_named_on_the_command_line(rows, tmp_path, path):
    """Ten lines, with an option that the command line replaces, on two ranks."""
    (tmp_path / "mine.py").write_text(
        "from torchx_recsys import Watcher\n\n\n"
        "class Loud(Watcher):\n"
        "    def __init__(self, word, times=1):\n"
        "        self.text = word * times\n\n"
        "    def after_step(self, run, step):\n"
        "        run.log(f'{self.text} {step}')\n"
    )
    tree = config(rows, train__steps=2, report__watchers={"mine:Loud": {"word": "ha", "times": 2}})
    write_config(tmp_path / "mine.toml", tree)
    train = "torchrun --nproc-per-node 2 -m trainer train mine.toml --out out"
    printed = typed(f"{train} --report.watchers.mine:Loud.times 3", tmp_path, PATH=path)
    assert printed.count("hahaha 1\n") == printed.count("hahaha 2\n") == 1  # rank 0 alone


@pytest.mark.parametrize(
    ("watchers", "flags", "expected"),
    [
        (
            {"own_watchers:Broken": {"rank": 0, "stepp": 1}},
            (),
            "which does not take its options: missing a required argument: 'step'; it takes rank, step, as_input",
        ),
        ({"own_watchers:Broken": {"rank": 0, "step": 0}}, (), "does not take its options: step is 0; it must be at"),
        (
            {"own_watchers:Broken": {"rank": 0, "step": 1}},
            ("--report.watchers.own_watchers:Broken.stepp", "2"),
            "unknown flag --report.watchers.own_watchers:Broken.stepp; did you mean "
            "--report.watchers.own_watchers:Broken.step? (in [report.watchers] a flag changes only what the",
        ),
        ({"own_watchers:NoWatcher": {}}, (), "is no watcher; name a subclass of torchx_recsys.Watcher"),
        ({"own_watchers:Missing": {}}, (), "report.watchers is 'own_watchers:Missing', which cannot be imported"),
        ({"watcher": {}}, (), "report.watchers is 'watcher'; name package.module:object for"),
        ({"own_watchers:Misspelled": {}}, (), "has none of the methods of a watcher: begin, after_step, asks, asked, "),
        ({"own_watchers:Broken": 3}, (), "report.watchers.own_watchers:Broken is 3"),
    ],
)
def test_wrong_options_are_refused(refusal, watchers, flags, expected):
    assert expected in refusal({"report__watchers": watchers}, *flags)


def test_an_input_error_of_a_watcher_is_one_line(refusal):
    options = {"rank": 0, "step": 1, "as_input": True}
    assert refusal({"report__watchers": {"own_watchers:Broken": options}}) == "error: step is not to my taste\n"


def test_another_error_of_one_rank_ends_the_job_which_resumes_without_the_watcher(rows, tmp_path):
    tree = config(rows, train__steps=4, checkpoint__every_steps=2)
    tree["report"]["watchers"] = {"own_watchers:Broken": {"rank": 1, "step": 3}}
    file, out = write_config(tmp_path / "config.toml", tree), tmp_path / "out"
    done = run_trainer("train", file, "--out", out, ranks=2)
    assert done.returncode == 1
    assert "RuntimeError: it broke" in done.stderr
    assert committed(out) == [2]
    tree["report"].pop("watchers")
    launch_rounds([(2, [{"config": tree, "out": str(out)}])], tmp_path)
    assert losses(out) == losses(out)[:4]
