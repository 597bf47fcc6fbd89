"""The teacher of a run: another model with the policy's vocabulary, which only scores answers.

It takes the policy's number format, and is computed by MLX's graph.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from grpo_engine.config.settings import ModelConfig, RunConfig
from grpo_engine.errors import ConfigError, ModelError, quoted
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
    path = config.teacher.path
    changes: dict[str, Any] = {"path": path, "adapter": None}
    file = Path(path).expanduser() / "adapter_config.json"
    if file.is_file() and not file.with_name("config.json").is_file():
        try:
            saved = json.loads(file.read_text(encoding="utf-8"))
            changes = {
                "path": saved["model"],
                "adapter": str(file.parent),
                "tuning": saved.get("fine_tune_type", "lora"),
            }
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(
                f"teacher.path {path}: {file.name} does not name the adapter's model ({error!r}); "
                "give a folder that grpo-tui wrote, or a model folder",
                "teacher.path",
            ) from error
    compute = "rows" if config.model.compute == "rows" else "graph"
    tree = config.model.model_dump() | {"compute": compute, "grad_checkpoint": "off"} | changes
    return ModelConfig.model_validate(tree)


def named(load: Callable[[], T]) -> T:
    """Load; an error about the model is one about the teacher."""
    try:
        return load()
    except ModelError as error:
        text = str(error).replace("model.path", "teacher.path")
        text = text if "teacher.path" in text else f"teacher.path: {text}"
        raise type(error)(text, "teacher.path") from error


def check_vocabulary(config: RunConfig, policy: Policy, teacher: Policy) -> None:
    """Refuse a teacher whose tokens are others, or that has no logit for some of the policy's."""
    texts, others = _by_id(policy.tokenizer), _by_id(teacher.tokenizer)
    differs = next((i for i in sorted({*texts, *others}) if texts.get(i) != others.get(i)), None)
    if differs is None and policy.vocabulary <= teacher.vocabulary:
        return
    detail = f"it has {teacher.vocabulary:,} logits and the policy {policy.vocabulary:,}"
    if differs is not None:
        ours, theirs = (
            quoted(side[differs]) if differs in side else "none" for side in (texts, others)
        )
        detail = (
            f"it has {len(others):,} tokens and the policy {len(texts):,}, and the first that "
            f"differs is number {differs}: {theirs} there, {ours} in {config.model.path}"
        )
    raise ModelError(
        f"teacher.path {config.teacher.path} has another vocabulary: {detail}; choose a teacher of "
        "the same family as the model",
        "teacher.path",
        "model.path",
    )


def _by_id(tokenizer: Any) -> Mapping[int, str]:
    return {number: text for text, number in tokenizer.get_vocab().items()}
