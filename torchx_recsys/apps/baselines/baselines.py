"""`python -m trainer baselines`: what simple predictors reach on the rows of a configuration.

python -m trainer baselines movielens
"""

from typing import Any

from trainer.config.root import Config
from trainer.core.errors import InputError


def baselines(
    config: Config,
    to: str | None = None,
    only: tuple[str, ...] = (),
    max_rows: int = 500_000,
    user: str | None = None,
    item: str | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Measures simple predictors on the rows of a configuration. CONFIG is a TOML file or a name.

    They are trained on data.train, and what there is to choose is chosen on data.validation. They are measured on all
    rows of data.validation and data.test, by the metrics of the configuration. The file that is written, beside the
    data, is shown beside every model that is trained on these rows.

    Args:
        config: The configuration; features, tasks and metrics are those of its model.
        to: The file to write, any fsspec URL. Unset: report.baselines, or baselines.json beside the files of
            data.train.
        only: Names of baselines, such as "logistic regression". Unset: all that suit the tasks.
        max_rows: Rows to train on, and to choose by, at most; of more rows a sample is taken.
        user: The feature, group or column with the users. Unset: guessed.
        item: The feature, group or column with the items. Unset: the catalogue's, or guessed.
        overwrite: Replace the baselines of other rows.

    Returns:
        The content of the file.

    Raises:
        InputError: A package is missing, an argument is wrong, the data cannot be used, or the file is of other rows.
    """
    try:
        from torchx_recsys.apps.baselines.run import Arguments, run
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("sklearn", "scipy"):
            raise
        raise InputError(f"baselines needs the package {error.name}; pip install 'torchx-recsys[baselines]'") from error
    return run(config, Arguments(to=to, only=only, max_rows=max_rows, user=user, item=item, overwrite=overwrite))
