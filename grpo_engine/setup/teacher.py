"""The teacher of a run: another model with the policy's vocabulary, which only scores answers.

It takes the policy's number format, and is computed by MLX's graph.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from grpo_engine.config.settings import ModelConfig, RunConfig
from grpo_engine.errors import ConfigError, ModelError, quoted
from grpo_engine.evaluation.target import find_target
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.source import fingerprint

T = TypeVar("T")


def check_teacher(config: RunConfig) -> None:
    """Refuse a teacher without a weight, and a weight without a teacher."""
    chosen, path = config.algorithm.resolved(), config.teacher.path
    if bool(chosen.teacher_weight) != bool(path):
        raise ConfigError(
            f"recipe {chosen.name} has teacher_weight {chosen.teacher_weight:g}, and teacher.path "
            f"is {quoted(path)}: a teacher needs both; name a model or run in teacher.path, or "
            "leave it empty with algorithm.teacher_weight 0",
            "teacher.path",
            "algorithm.teacher_weight",
            "algorithm.recipe",
        )


def load_teacher(config: RunConfig, policy: Policy) -> Policy:
    """Load `teacher.path` once, without anything to train; refuse another vocabulary."""
    settings = settings_of(config)
    teacher = named(lambda: load_policy(settings, seed=config.seed, frozen=True))
    check_vocabulary(config, policy, teacher)
    if settings.adapter:
        teacher.fingerprint += fingerprint(Path(settings.adapter))
    return teacher


def settings_of(config: RunConfig) -> ModelConfig:
    """The teacher as a model; an adapter folder is on the model that it names."""
    compute = "rows" if config.model.compute == "rows" else "graph"
    over = {"model": {"compute": compute, "grad_checkpoint": "off"}}
    return named(
        lambda: find_target(
            config.teacher.path, config, over, step=None, folder=Path, adapter_model=True
        )
    ).config.model


def named(load: Callable[[], T]) -> T:
    """Load; an error about the model is one about the teacher."""
    try:
        return load()
    except ModelError as error:
        text = f"teacher.path: {error}".replace("model.path", "the model")
        raise type(error)(text, "teacher.path") from error


def check_vocabulary(config: RunConfig, policy: Policy, teacher: Policy) -> None:
    """Refuse a teacher whose tokens are others, or that has no logit for some of the policy's."""
    ours, theirs = (
        {number: text for text, number in model.tokenizer.get_vocab().items()}
        for model in (policy, teacher)
    )
    differs = next((i for i in sorted({*ours, *theirs}) if ours.get(i) != theirs.get(i)), None)
    if differs is None and policy.vocabulary <= teacher.vocabulary:
        return
    detail = f"it has {teacher.vocabulary:,} logits and the policy {policy.vocabulary:,}"
    if differs is not None:
        texts = [quoted(side.get(differs, "nothing")) for side in (theirs, ours)]
        detail = f"token {differs} is {' there and '.join(texts)} in {config.model.path}"
    raise ModelError(
        f"teacher.path {config.teacher.path} has another vocabulary: {detail}; choose a teacher of "
        "the same family as the model",
        "teacher.path",
        "model.path",
    )
