"""Statistics of ids for plans, as `planner.statistics` reads them."""

from collections.abc import Mapping

from apps.check_data.profile import Profile
from trainer.config.data import DataConfig
from trainer.config.features import columns_of, takes
from trainer.plan.statistics import FeatureStatistics, Statistics


def statistics_of(config: DataConfig, profiles: Mapping[str, Profile]) -> Statistics:
    """Returns hotness, skew and different ids of every sparse feature, in the rows of the sample.

    Plans estimate from these how many different ids all rows have.
    """
    first = next(iter(profiles.values())).first
    features = {}
    for name, feature in config.sparse.items():
        column, *others = columns_of(name, feature)
        if column in profiles and not others and takes(feature) == "ids":
            profile = profiles[column]
            ids = profile.first_ids
            features[name] = FeatureStatistics(
                hotness=round(ids.hotness, 4), zipf=profile.zipf, distinct=len(ids.distinct)
            )
    return Statistics(version=1, rows=first.sample.num_rows, features=features)
