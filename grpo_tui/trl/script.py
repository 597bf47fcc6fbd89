"""Settings as a Python script that trains with TRL.

All that is of the settings is a literal or a part of a comment in ASCII, so that none of their
texts is run.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from grpo_engine.config.settings import RunConfig
from grpo_engine.config.trl_export import ARGUMENTS, differences, evaluates, values_of
from grpo_engine.config.trl_names import DEFAULTS
from grpo_engine.policy.embedded import EMBEDDED

# What `grpo_tui.trl.problems` reads, and GRPOConfig need not have.
OF_DATA = (
    *(
        f"task.{name}"
        for name in (
            "name",
            "system_prompt",
            "prefill",
            "options",
            "train_size",
            "held_out_size",
            "columns",
            "splits",
            "bad_rows",
            "shuffle",
        )
    ),
    *(f"rewards.{name}" for name in ("functions", "weights", "options", "completions")),
    "evaluation.accuracy",
    "evaluation.problems",
)
OF_THIS_PROGRAM = ("checkpoint", "record", "alerts", "sandbox")  # sections that change no training
REMEDIES = {
    "task.tools": "give the functions to GRPOTrainer as tools",
    "task.environment": "see environment_factory of GRPOTrainer",
    "evaluation.greedy": "TRL samples the answers of its evaluations",
    "algorithm.importance_cap": "TRL corrects for vLLM's sampling alone, which the script uses",
}


def script(config: RunConfig) -> str:
    """The script; comments name what has no equivalent in TRL."""
    values = values_of(config)
    del values["reward_weights"]  # of the data, as the functions are
    values["bf16"] = False  # mixed precision, which TRL turns on by itself
    values |= {"output_dir": "trl-output", "logging_steps": 1, "report_to": "none"}
    is_adapted = values["use_peft"]
    imports = {"datasets": "Dataset", "peft": "LoraConfig" * is_adapted}
    imports |= {"trl": "GRPOConfig, GRPOTrainer"}
    lines = [
        "# Trains by TRL with settings of grpo-tui. Needs the packages trl, peft and grpo-tui.",
        *(f"from {package} import {name}" for package, name in imports.items() if name),
        "",
        "from grpo_tui import trl",
        "",
        *(f"# {note}" for note in notes_of(config)),
        "# bf16 = True: mixed precision, faster on a GPU, which grpo-tui does not have",
        "",
        f"data = trl.problems({_literal(data_of(config))})",
        "args = GRPOConfig(",
        *(
            f"    {name}={_literal(value)},"
            for name, value in sorted(values.items())
            if not (name in ARGUMENTS or value is DEFAULTS.get(name) is None)
        ),
        ")",
        "args.reward_weights = data.weights",
        "trainer = GRPOTrainer(",
        f"    model={_model(config.model.path)},",
        "    args=args,",
        "    train_dataset=Dataset.from_list(data.train),",
        *["    eval_dataset=Dataset.from_list(data.held_out),"] * evaluates(config),
        "    reward_funcs=data.functions,",
        *[f"    peft_config=LoraConfig({_adapter(config)}),"] * is_adapted,
        ")",
        f"trl.watch(trainer, {_literal(config.name)}, task={_literal(config.task.name)}, "
        "accuracy=data.accuracy)",
        "trainer.train()",
    ]
    return "\n".join(lines) + "\n"


def notes_of(config: RunConfig) -> Iterator[str]:
    """A line for each setting that has an effect and no equivalent in TRL."""
    values = {path: (value, other) for path, value, other in differences(config)}
    if cap := config.algorithm.resolved().importance_cap:
        values["algorithm.importance_cap"] = (cap, None)
    for path, (value, other) in values.items():
        if path in OF_DATA or path.partition(".")[0] in OF_THIS_PROGRAM:
            continue
        text = f"{path} = {json.dumps(value, default=str)}: "
        text += REMEDIES.get(path, "no equivalent in TRL")
        if path not in REMEDIES and other is not None:
            text += f", which has {json.dumps(other, default=str)}"
        yield text


def data_of(config: RunConfig) -> dict[str, Any]:
    """The settings of the data, of the reward functions and of what is right."""
    tree = config.model_dump(mode="json", exclude_defaults=True)
    result: dict[str, Any] = {"task": {"name": config.task.name}}
    for path in OF_DATA:
        section, _, name = path.partition(".")
        if name in tree.get(section, {}):
            result.setdefault(section, {})[name] = tree[section][name]
    return result


def _model(path: str) -> str:
    """The model as an expression; those that come with this program are known by their names."""
    return f"trl.model({_literal(path)})" if path in EMBEDDED else _literal(path)


def _adapter(config: RunConfig) -> str:
    model = config.model
    options: dict[str, Any] = {
        "r": model.lora_rank,
        "lora_alpha": model.lora_scale * model.lora_rank,
        "target_modules": list(model.lora_keys) or "all-linear",
    }
    if model.tuning == "dora":
        options["use_dora"] = True
    return ", ".join(f"{name}={_literal(value)}" for name, value in options.items())


def _literal(value: Any) -> str:
    """A value of JSON as Python reads it, in ASCII."""
    if isinstance(value, Mapping):
        pairs = (f"{_literal(str(key))}: {_literal(item)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, str):
        return ascii(str(value))
    assert value is None or isinstance(value, bool | int | float), value
    return repr(value)
