"""The teacher of a run: another model with the policy's vocabulary, which only scores answers.

It takes the policy's number format, and is computed by MLX's graph.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from grpo_engine.config.settings import ModelConfig, RemoteConfig, RunConfig
from grpo_engine.errors import ConfigError, ModelError, quoted
from grpo_engine.evaluation.target import find_target
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.source import fingerprint


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


def load_teacher(
    config: RunConfig, policy: Policy, load: Callable[[ModelConfig], Policy] | None = None
) -> Policy:
    """Load `teacher.path` once; refuse another vocabulary than that of the policy, if it has one.

    An adapter folder is on the model that it names. An error about the model is one about the
    teacher.
    """
    compute = "rows" if config.model.compute == "rows" else "graph"
    load = load or partial(load_policy, seed=config.seed, frozen=True)
    over = {"model": {"compute": compute, "grad_checkpoint": "off"}}
    here = config.model_copy(update={"remote": RemoteConfig()})  # where a teacher always is
    try:
        settings = find_target(
            config.teacher.path, here, over, step=None, folder=Path, adapter_model=True
        ).config.model
        teacher = load(settings)
    except ModelError as error:
        text = f"teacher.path: {error}".replace("model.path", "the model")
        raise type(error)(text, "teacher.path") from error
    if policy.tokenizer is not None:
        check_vocabulary(config, policy, teacher)
    if settings.adapter:
        teacher.fingerprint += fingerprint(Path(settings.adapter))
    return teacher


def check_vocabulary(config: RunConfig, policy: Policy, teacher: Policy) -> None:
    """Refuse a teacher whose tokens are others, or that has no logit for some of the policy's."""
    ours, theirs = (model.tokenizer.get_vocab() for model in (policy, teacher))
    if ours == theirs and policy.vocabulary <= teacher.vocabulary:
        return
    detail = f"it has {teacher.vocabulary:,} logits and the policy {policy.vocabulary:,}"
    if ours != theirs:
        number, text = min((n, t) for t, n in ours.items() ^ theirs.items())
        model = "it" if theirs.get(text) == number else config.model.path
        detail = f"only {model} has token {number}, {quoted(text)}"
    raise ModelError(
        f"teacher.path {config.teacher.path} has another vocabulary: {detail}; choose a teacher of "
        "the same family as the model",
        "teacher.path",
        "model.path",
    )
