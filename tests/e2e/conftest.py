"""The real model, imported once into the user's cache folder, and what it must answer."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from golden_ids import Oracle

from rtk import Engine
from rtk.model.store import fetch


@pytest.fixture(scope="session")
def model_folder():
    return fetch()


@pytest.fixture
def engine(model_folder):
    """Builds engines over the real model, and closes them."""
    engines = []

    def build(**config):
        keys = {"model.path": str(model_folder), "cache.pool_tokens": 16384, **config}
        engines.append(Engine({key.replace("__", "."): value for key, value in keys.items()}))
        return engines[-1]

    yield build
    for one in engines:
        one.close()


@pytest.fixture(scope="session")
def oracle(model_folder):
    return Oracle(model_folder)
