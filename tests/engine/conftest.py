"""Fixtures of the engine's tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.settings import ModelConfig
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.policy import Policy
from tests.engine.tiny import write_model

MakePolicy = Callable[..., Policy]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama of a few thousand weights."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def make_policy(tiny_folder: Path) -> MakePolicy:
    """Load the tiny model, with settings of `model` as keywords."""

    def make(*, seed: int = 0, critic: bool = False, **settings: Any) -> Policy:
        config = ModelConfig(**{"path": str(tiny_folder), **settings})
        return load_policy(config, seed=seed, critic=critic)

    return make
