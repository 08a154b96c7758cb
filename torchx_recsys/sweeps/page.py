"""The page of a sweep: its best trials and Optuna's own plots, in a single file that works without a network."""

import html
from collections.abc import Sequence
from pathlib import Path

from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization import plot_intermediate_values, plot_parallel_coordinate, plot_param_importances
from plotly.graph_objects import Figure

from torchx_recsys.sweeps.study import Study

LEAST_FOR_IMPORTANCE = 10  # minimum number of trials: with fewer, importances are noise
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 1100px; padding: 1rem; color: #1b1f24 }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.wide { overflow-x: auto } table { border-collapse: collapse } td, th { padding: .2rem .8rem .2rem 0; text-align: left }
th { border-bottom: 1px solid #aaa } td { font-variant-numeric: tabular-nums; white-space: nowrap }
"""


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
    parts = [
        f"<h2>{html.escape(name)}</h2>{text}"
        for name, text in [("Trials", _table(headers, rows)), *_figures(study, aim)]
    ]
    file.write_text(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><h1>{html.escape(title)}</h1>{''.join(parts)}</body></html>"
    )


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [("th", headers), *(("td", row) for row in rows)]
    cells = ("".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in line) for tag, line in lines)
    return f'<div class="wide"><table>{"".join(f"<tr>{line}</tr>" for line in cells)}</table></div>'


def _figures(study: Study, aim: str) -> list[tuple[str, str]]:
    done = study.optuna.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    if not done:
        return []
    figures = [
        ("What each trial reached", plot_intermediate_values(study.optuna).update_layout(yaxis_title=aim)),
        ("Values and what came of them", plot_parallel_coordinate(study.optuna, target=_value, target_name=aim)),
    ]
    if len(done) >= LEAST_FOR_IMPORTANCE:
        # The default evaluator needs scikit-learn. Without a target, this one uses the direction of the study.
        importance = plot_param_importances(study.optuna, evaluator=PedAnovaImportanceEvaluator(), target_name=aim)
        figures.append(("Importance of each key", importance))
    texts = [_html(figure, with_code=not number) for number, (_, figure) in enumerate(figures)]
    return [(name, text) for (name, _), text in zip(figures, texts, strict=True)]


def _value(trial: FrozenTrial) -> float:
    assert trial.value is not None  # only trials that are done are drawn
    return trial.value


def _html(figure: Figure, with_code: bool) -> str:
    figure.update_layout(title=None, margin={"t": 20}, legend={"orientation": "h"})
    return figure.to_html(
        full_html=False, include_plotlyjs=with_code, config={"responsive": True, "displaylogo": False}
    )
