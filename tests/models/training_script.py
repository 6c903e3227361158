"""A ranking model as tutorials publish it: the script loads ratings, trains the model and prints
predictions on the way. It cannot be imported where the ratings are not.
"""

# mypy: ignore-errors
# ruff: noqa: T201

import keras
import ratings_of_movies
from keras import ops

EMBEDDING_DIM = 4
HIDDEN = [2 * EMBEDDING_DIM, 1]
SMOOTHING = 0.1

ratings = ratings_of_movies.load("100k")
users_count = max(rating["user"] for rating in ratings)
genres = sorted({rating["genre"] for rating in ratings})

print(f"{users_count} users, {len(genres)} genres")


class Tower(keras.layers.Layer):
    """Dense layers, whose sizes are a constant of the script."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.Sequential([keras.layers.Dense(units) for units in HIDDEN])

    def call(self, inputs):
        return self.dense(inputs)


class RankingModel(keras.Model):
    """Scores movies by their genres, which the script finds in the ratings."""

    def __init__(self, num_users, embedding_dimension=EMBEDDING_DIM, **kwargs):
        super().__init__(**kwargs)
        self.user_embedding = keras.layers.Embedding(num_users, embedding_dimension)
        self.genre_lookup = keras.layers.StringLookup(vocabulary=genres)
        self.genre_embedding = keras.layers.Embedding(len(genres) + 1, embedding_dimension)
        self.ratings = Tower()

    def call(self, inputs):
        users = self.user_embedding(inputs["user"])
        items = self.genre_embedding(self.genre_lookup(inputs["genre"]))
        return self.ratings(ops.concatenate([users, items], axis=-1))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        del x, sample_weight, training
        return ops.mean(ops.square(y * (1 - SMOOTHING) - y_pred)) / len(ratings)


model = RankingModel(users_count + 1)
model.compile(optimizer="adagrad")
model.fit(ratings, epochs=3)


def predicted(user):
    """Predicts ratings of each genre."""
    return model.predict({"user": ops.array([user] * len(genres)), "genre": ops.array(genres)})


for genre, score in zip(genres, predicted(42), strict=True):
    print(f"{genre}: {score}")
