"""Random ratings in the form of MovieLens, of any number: the ready-made configurations train on them."""

import numpy as np

from apps.datasets.movielens import write_data_set

FILMS, USERS, GENRES, OCCUPATIONS = 1682, 943, 19, 21  # as many as MovieLens-100k has
SECONDS_BETWEEN = 60


def make_ratings(out: str, ratings: int, seed: int = 0) -> None:
    """Writes a data set of random ratings, in which some films are liked more than others.

    Args:
        out: Directory to write to, on any fsspec URL.
        ratings: Ratings of all splits together.
        seed: Other seeds give other ratings.
    """
    random = np.random.default_rng(seed)
    rated_film = np.minimum(random.zipf(1.3, ratings), FILMS)  # ids as skewed as in real data share rows in caches
    quality = random.integers(1, 6, FILMS + 1)
    rated = {
        "user_id": random.integers(1, USERS + 1, ratings),
        "item_id": rated_film,
        "rating": np.where(random.random(ratings) < 0.7, quality[rated_film], random.integers(1, 6, ratings)),
        "timestamp": 880_000_000 + SECONDS_BETWEEN * np.arange(ratings),
    }
    genres = [" ".join(sorted({f"genre{one:02}" for one in row})) for row in random.integers(0, GENRES, (FILMS, 2))]
    films = {
        "item_id": np.arange(1, FILMS + 1),
        "movie_title": [f"film {number}" for number in range(1, FILMS + 1)],
        "release_year": random.integers(1930, 1999, FILMS),
        "class": genres,
    }
    users = {
        "user_id": np.arange(1, USERS + 1),
        "age": random.integers(7, 74, USERS),
        "gender": random.choice(["F", "M"], USERS),
        "occupation": random.integers(0, OCCUPATIONS, USERS),
        "zip_code": random.integers(10_000, 99_999, USERS),
    }
    tables = (
        {name: np.asarray(column).astype(str) for name, column in table.items()} for table in (rated, films, users)
    )
    write_data_set(out, *tables)
