"""The page of a sweep: its trials, what each reached, and what each key was worth, in a file without a server."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeGuard

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from torchx_recsys.sweeps.study import Study, last_value
from trainer.pages.figures import Lines, Lying
from trainer.pages.html import draw_cards, draw_table, whole_page

LEAST_FOR_IMPORTANCE = 10  # minimum number of trials: with fewer, importances are noise
MOST_CURVES = 20


def write_page(file: Path, aim: str, headers: Sequence[str], rows: Sequence[Sequence[str]], study: Study) -> None:
    """Writes the page.

    Args:
        file: The file.
        aim: The metric to improve.
        headers: The headers of the table of trials.
        rows: Its rows.
        study: The trials.
    """
    title = f"{aim} of {len(rows)} trials"
    figures = draw_cards([*_curves(study, aim), *_keys(study, aim), *_importance(study, aim)])
    file.write_text(whole_page(title, [f"<h1>{title}</h1>", figures, draw_table("Trials", [headers, *rows])]))


def _curves(study: Study, aim: str) -> Iterator[Lines]:
    """Yields the values of the best trials by step."""
    trials = [trial for trial in study.ranked() if len(trial.intermediate_values) > 1]
    if trials:
        of = f" The best {MOST_CURVES} of {len(trials):,}." if len(trials) > MOST_CURVES else ""
        curves = {f"trial {one.number}": sorted(one.intermediate_values.items()) for one in trials[:MOST_CURVES]}
        series = {name: ([step for step, _ in found], [value for _, value in found]) for name, found in curves.items()}
        yield Lines("What each trial reached", f"{aim} on data.validation.{of}", series)


def _keys(study: Study, aim: str) -> Iterator[Lines]:
    """Yields for each key the last value of each trial along the values of the key."""
    trials = [trial for trial in study.trials if last_value(trial) is not None]
    distributions = {key: one for trial in trials for key, one in trial.distributions.items()}
    for key, distribution in distributions.items():
        series = {
            name: _points(
                [trial for trial in trials if (trial.state == TrialState.COMPLETE) is done], key, distribution
            )
            for name, done in (("done", True), ("others", False))
        }
        names = [str(choice) for choice in distribution.choices] if _is_of_choices(distribution) else []
        yield Lines(
            key,
            f"{aim} of each trial, by its value of the key; of others, such as those stopped early, the last.",
            {name: points for name, points in series.items() if points[0]},
            names,
            of=key,
            drawn="points",
            log=getattr(distribution, "log", False),
        )


def _points(trials: Sequence[FrozenTrial], key: str, distribution: BaseDistribution) -> tuple[list[float], list[float]]:
    """Returns values of a key, or the places of its choices, in ascending order, and what the trials reached."""
    of_choices = _is_of_choices(distribution)
    found = [
        (distribution.to_internal_repr(trial.params[key]) if of_choices else trial.params[key], last_value(trial))
        for trial in trials
        if key in trial.params
    ]
    points = sorted((int(value) if of_choices else value, reached) for value, reached in found if reached is not None)
    return [value for value, _ in points], [reached for _, reached in points]


def _is_of_choices(distribution: BaseDistribution) -> TypeGuard[CategoricalDistribution]:
    return isinstance(distribution, CategoricalDistribution)


def _importance(study: Study, aim: str) -> Iterator[Lying]:
    """Yields how much of the differences between trials comes from each key."""
    if len(study.optuna.get_trials(deepcopy=False, states=[TrialState.COMPLETE])) < LEAST_FOR_IMPORTANCE:
        return
    # Imported here, as it imports scikit-learn, and that torch, where they are installed.
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    # Without a target, this evaluator uses the direction of the study; the default one needs scikit-learn.
    found = get_param_importances(study.optuna, evaluator=PedAnovaImportanceEvaluator())
    remark = f"Share of each key in what sets the best trials by {aim} apart (PED-ANOVA)."
    yield Lying("Importance of each key", remark, "", [*found], {"share": [*found.values()]})
