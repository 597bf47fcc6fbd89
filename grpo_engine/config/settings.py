"""RunConfig: the tree of all settings, and the only place where defaults are written.

In `algorithm` a default of None means the recipe's value; for `importance_cap` it means what the
loaded model needs. Elsewhere 0 or None means off.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    JsonValue,
    PrivateAttr,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    create_model,
    field_validator,
    model_validator,
)

from grpo_engine.config.declaration import NEVER, Setting, as_field, as_text, declared, setting
from grpo_engine.config.recipes import SAMPLED, SETTINGS, Recipe, by_name, recipe, with_values
from grpo_engine.config.remote import address_problem, refused
from grpo_engine.config.removed import without_removed
from grpo_engine.config.stop_when import StopRule
from grpo_engine.errors import ConfigError, nearest, quoted
from grpo_engine.metrics import is_metric, spec

LONGEST_NAME = 500  # characters of a run's name
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}|[a-z]+_proxy")
UNLIMITED = 10**9  # characters: prose has no limit


class Section(BaseModel):
    """A frozen group of settings; an unknown name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    title: ClassVar[str] = ""  # the name in RunConfig of a section that has removed settings
    entries: ClassVar[Mapping[str, Mapping[str, Setting]]] = {}  # by setting that is a mapping

    @classmethod
    @cache
    def settings(cls) -> Mapping[str, Setting]:
        """The settings by name, without the sections."""
        fields: Mapping[str, Any] = cls.model_fields
        return {
            name: replace(field.json_schema_extra["setting"], annotation=field.annotation)
            for name, field in fields.items()
            if field.json_schema_extra
        }

    @model_validator(mode="before")
    @classmethod
    def _leave_out_removed(cls, section: Any) -> Any:
        if cls.title and isinstance(section, Mapping):
            return without_removed({cls.title: section})[0].get(cls.title, {})
        return section

    @field_validator("*", mode="wrap")
    @classmethod
    def _checked(
        cls, value: Any, validate: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> Any:
        name = str(info.field_name)
        item = cls.settings().get(name)
        value = item.checked(value) if item else value
        if name in cls.entries:
            return checked_entries(value, cls.entries[name])
        # pydantic checks sections, and the entries of mappings whose names are open
        return validate(value) if item is None or Mapping in item.types else value

    def option(self, name: str) -> Any:
        """An entry of a setting that is a mapping, or its default."""
        setting, allowed = next(
            (path, allowed) for path, allowed in self.entries.items() if name in allowed
        )
        return getattr(self, setting).get(name, allowed[name].default)


def checked_entries(options: Any, allowed: Mapping[str, Setting]) -> dict[str, Any]:
    """A mapping's entries that are not the default; ValueError names one that is wrong."""
    result = {}
    for name, value in options.items():
        if name not in allowed:
            raise ValueError(f"there is no option {quoted(name)}{nearest(name, allowed)}")
        try:
            result[name] = allowed[name].checked(value)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from error
    return {name: value for name, value in result.items() if value != allowed[name].default}


def mapping(allowed: Mapping[str, Setting], example: str, help: str = "") -> Any:
    """A setting that is a mapping of these."""
    texts = (f"{name} ({as_text(item.default)}): {item.help}" for name, item in allowed.items())
    return setting({}, " ".join(filter(None, (help, *texts))), example=example)


class ModelConfig(Section):
    """Which model is trained, and which of its weights."""

    path: str = setting("starter", "`starter`, `starter-guess`, a model folder, or a hub id.")
    adapter: str | None = setting(None, "Adapter folder to start from.")
    tuning: Literal["lora", "dora", "full"] = setting("lora", "Which weights are trained.")
    lora_rank: int = setting(8, "Rank of the LoRA or DoRA matrices.", ge=1, le=1024)
    lora_layers: int = setting(-1, "Number of last layers that get LoRA; -1 for all.", ge=-1)
    lora_scale: float = setting(2.0, "Factor on the LoRA product (alpha / r).", gt=0, le=1000)
    lora_keys: tuple[str, ...] = setting((), "Linear layers that get LoRA; empty for all of them.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", "Number format of the weights; auto is float32 on CPU, else as stored."
    )
    quantized: Literal["auto", "keep", "dequantize"] = setting(
        "auto", "A quantised base: auto dequantises it on CPU, where that is faster."
    )
    compute: Literal["auto", "graph", "kernels", "rows"] = setting(
        "auto",
        "MLX's graph, or compiled kernels for Linux processors; auto where they serve. "
        "rows is the graph with the prompt run again for each answer in training.",
    )
    kv_bits: Literal["off", "8", "4"] = setting(
        "off", "Bits of keys and values that are cached while sampling; off is the model's format."
    )
    grad_checkpoint: Literal["auto", "on", "off"] = setting(
        "auto",
        "Recompute layers in the backward pass to save memory; auto where that is faster "
        "than fewer answers at a time.",
    )
    trust_remote_code: bool = setting(False, "Run Python code that comes with the model.")

    @property
    def cache_bits(self) -> int:
        """Bits of the cache while sampling; 0 for the model's format."""
        return 0 if self.kv_bits == "off" else int(self.kv_bits)


class TeacherConfig(Section):
    """The model that `algorithm.teacher_weight` learns from, in the format of `model.dtype`."""

    path: str = setting(
        "", "The teacher: `starter`, a model or adapter folder, a hub id, or a run; empty for none."
    )


COLUMNS: Mapping[str, Setting] = {
    "prompt": declared("prompt", "Text or chat messages."),
    "answer": declared("answer", "The expected answer."),
    "completion": declared("completion", "The answer that recipe sft learns."),
}
SPLITS: Mapping[str, Setting] = {
    "train": declared("train", "Trained on."),
    "held_out": declared("", "Evaluated on; empty to set training rows aside."),
}


class TaskConfig(Section):
    """The problems, and how they are put to the model."""

    title = "task"
    entries = {"columns": COLUMNS, "splits": SPLITS}

    name: str = setting(
        "arithmetic",
        "`arithmetic`, `countdown`, `gsm8k`, `reasoning-gym:<name>`, `verifiers:<package>`, or a "
        "dataset: a .jsonl file, a folder, a hub id, or `file.py:function`.",
    )
    system_prompt: str | None = setting(
        None, "System message; None for the task's own.", longest=UNLIMITED
    )
    prefill: str = setting(
        "", "Text that the answer starts with, given to the model.", longest=UNLIMITED
    )
    options: Mapping[str, JsonValue] = setting({}, "Options of the task's generator.")
    train_size: int = setting(0, "Training problems to draw from; 0 for all.")
    held_out_size: int = setting(512, "Problems kept out of training.", unit="problems")
    columns: Mapping[str, JsonValue] = mapping(COLUMNS, "{prompt: question}", "Columns of data.")
    splits: Mapping[str, JsonValue] = mapping(SPLITS, "{held_out: test}", "Splits of data.")
    max_prompt_tokens: int = setting(0, "Longer prompts are an error; 0 for the context.")
    chat_template: str = setting(
        "", "Empty for the model's own, `plain` for bare text, `chatml`, or a Jinja file."
    )
    chat_template_kwargs: Mapping[str, JsonValue] = setting({}, "Passed to the chat template.")
    bad_rows: Literal["refuse", "skip"] = setting(
        "refuse", "Rows that cannot be used, such as too long ones: refuse the data, or skip them."
    )
    shuffle: bool = setting(True, "Draw training problems in a seeded random order.")
    tools: tuple[str, ...] = setting(
        (),
        "What the model can call: `file.py:function` or `module:function`, and MCP servers: "
        "`mcp: <command>` or `mcp+https://host/path`, after which may stand its key's variable.",
    )
    environment: str | Mapping[str, str] = setting(
        "",
        "What replies to answers: `file.py:Class`, `agent: <command>`, or several by the name "
        "in a row's `environment`; empty for one turn.",
        example="{name: file.py:Class}",
    )
    interpreter: str = setting(
        "",
        "Python that runs tools and environments, such as one with a `verifiers` package; "
        "empty for this one.",
    )
    max_turns: int = setting(8, "Most turns of the model with tools or an environment.", ge=1)

    @property
    def environments(self) -> Mapping[str, str]:
        """The environments by the name that a row chooses; `""` if there is no choice."""
        named = self.environment
        return {"": named} if isinstance(named, str) else named


class FurtherTask(TaskConfig):
    """A further task of a run, with the settings of a task and its share of the prompts."""

    weight: float = setting(1.0, "Prompts for each one of `task.name`; 0 leaves it out.")
    rewards: Mapping[str, float] = setting({}, "Weights by function; empty for the task's own.")
    accuracy: str = setting("", "Which answers are right; empty for the task's own.")


def _completed(value: Any) -> Any:
    """Complete `{NAME: 0.5}` and `{LABEL: {name: NAME, …}}` to all settings of a task."""
    if not isinstance(value, Mapping):
        return value
    return {
        label: {"name": label, "weight": item}
        if isinstance(item, int | float)
        else {"name": label, **item}
        if isinstance(item, Mapping)
        else item
        for label, item in value.items()
    }


PASS_RATES: Mapping[str, Setting] = {
    "lowest": declared(0.0, "Problems below are left out.", le=1),
    "highest": declared(1.0, "Problems above are left out.", le=1),
}


class TasksConfig(TaskConfig):
    """The run's task, others beside it, and which of their problems are drawn."""

    entries = {**TaskConfig.entries, "pass_rate_range": PASS_RATES}

    others: Annotated[Mapping[str, FurtherTask], BeforeValidator(_completed)] = setting(
        {},
        "Further tasks with their share of the prompts: `{countdown: 0.5}` draws one prompt of "
        "it for two of `name`; or `{LABEL: {name: …, weight: …, rewards: {FUNCTION: WEIGHT}, …}}`.",
        example="{countdown: 0.5}",
    )
    curriculum: Literal["off", "hardest", "half"] = setting(
        "off",
        "Which problems are preferred: each is drawn with probability 1 - p (hardest) or "
        "4p(1 - p) (half), where p = (right + 1)/(answers + 2) when it was last tried.",
    )
    pass_rates: str = setting(
        "",
        "Pass rates of problems before the run: a run of the store, or a JSON file such as "
        "`grpo-tui probe --json` writes.",
    )
    pass_rate_range: Mapping[str, JsonValue] = mapping(
        PASS_RATES, "{lowest: 0.1, highest: 0.9}", "Which problems of `pass_rates` are drawn."
    )

    @model_validator(mode="after")
    def _check_drawing(self) -> "TasksConfig":
        if self.pass_rate_range and not self.pass_rates:
            raise ConfigError(
                "problems can be left out by pass rate only if task.pass_rates names a file or a "
                "run that has the rates",
                "task.pass_rates",
                "task.pass_rate_range",
            )
        if self.name in self.others:
            raise ConfigError(
                f"task.others has the label {quoted(self.name)} of task.name; give it another "
                f"label: {{more: {{name: {self.name}, …}}}}",
                "task.others",
            )
        return self


class RewardsConfig(Section):
    """How an answer is scored."""

    functions: tuple[str, ...] = setting(
        (),
        "Reward functions: built-in names, `file.py:function`, `module:function` or "
        "`judge:rubric.yaml`; empty for the task's own.",
    )
    weights: tuple[float, ...] = setting(
        (), "One weight per function; empty for the task's own.", example="1,2"
    )
    time_limit: float = setting(
        30.0,
        "Longest call of a function in a step, and longest reply of an environment.",
        gt=0,
        unit="s",
        le=86400,
    )
    options: Mapping[str, Mapping[str, JsonValue]] = setting(
        {}, "Keyword options by function.", example="{function: {name: value}}"
    )
    completions: Literal["auto", "text"] = setting(
        "auto",
        "What functions get: as in TRL text after a text prompt and messages after a chat, "
        "or always text.",
    )
    on_failure: Literal["leave_out", "zero", "stop"] = setting(
        "leave_out",
        "What an answer gets on which a function fails: no reward and no part in its "
        "group, 0 by that function, or an end of the run.",
    )


ROLLOUT_OPTIONS: Mapping[str, Setting] = {
    "min_p": declared(0.0, "Drop tokens below this share of the likeliest.", lt=1),
    "repetition_penalty": declared(1.0, "Divide logits of seen tokens; 1 is off.", ge=1, le=10),
    "ignore_end": declared(False, "Sample past end tokens, for benchmarks."),
}


class RolloutConfig(Section):
    """How answers are sampled."""

    entries = {"options": ROLLOUT_OPTIONS}

    prompts: int = setting(8, "Prompts per step.", ge=1, le=65536)
    group_size: int = setting(8, "Answers per prompt.", ge=1, le=4096, condition=SAMPLED)
    max_new_tokens: int = setting(64, "Longest answer.", ge=1, le=131072, unit="tokens")
    temperature: float = setting(1.0, "Sampling temperature.", gt=0, le=10, condition=SAMPLED)
    top_p: float = setting(1.0, "Smallest set of tokens with this probability.", gt=0, le=1)
    top_k: int = setting(0, "Only the k likeliest tokens; 0 for all.")
    stop: tuple[str, ...] = setting((), "Texts that end an answer.", longest=UNLIMITED)
    think_budget: int = setting(0, "Most tokens before `</think>`; 0 for no cap.")
    max_context: int = setting(
        0, "Most tokens of prompt, answer and replies; 0 for the model's context."
    )
    max_rows: int = setting(0, "Rows decoded at a time; 0 for as many as fit in memory.")
    options: Mapping[str, JsonValue] = mapping(ROLLOUT_OPTIONS, "{min_p: 0.05}")

    @property
    def rows(self) -> int:
        """Answers of a step."""
        return self.prompts * self.group_size

    @field_validator("stop")
    @classmethod
    def _stop_texts_have_characters(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        if "" in texts:
            raise ValueError("an empty text would end every answer at once; remove it")
        return texts


_FIELDS: dict[str, Any] = {
    name: (
        item.annotation | None,
        as_field(replace(item, default=None, example=as_text(item.default))),
    )
    for name, item in SETTINGS.items()
    if not item.option
}
OPTIONS = {name: replace(item, default=NEVER) for name, item in SETTINGS.items() if item.option}


class AlgorithmConfig(
    create_model(  # type: ignore[misc]  # a base made at run time
        "AlgorithmFields",
        __base__=Section,
        recipe=(str, setting("grpo", "The named algorithm; see `grpo-tui recipes`.")),
        **_FIELDS,
        options=(
            Mapping[str, JsonValue],
            setting(
                {},
                f"Options of the recipe's rules, which papers fix: {', '.join(OPTIONS)}; "
                "`grpo-tui recipes NAME` lists those that it reads.",
                example="{lam: 0.9}",
            ),
        ),
    )
):
    """The recipe, and the settings that differ from it."""

    title = "algorithm"
    entries: ClassVar = {"options": OPTIONS}
    _resolved: Recipe = PrivateAttr()

    @property
    def choices(self) -> tuple[str, ...]:
        """The choices that are set here and that a function can make, by name."""
        return tuple(filter(None, (self.signal, self.trust, self.anchor, self.weight)))

    def resolved(self) -> Recipe:
        return self._resolved

    def differences(self) -> dict[str, tuple[Any, Any]]:
        """The settings that differ from the recipe as defined: this run's value, the recipe's."""
        defined = recipe(self.recipe)
        return {
            name: (value, usual)
            for name, value in self._set().items()
            if value != (usual := getattr(defined, name))
        }

    def _set(self) -> dict[str, Any]:
        values = self.model_dump(exclude={"recipe", "options"}, exclude_none=True)
        return {**values, **self.options}

    @field_validator("options", mode="before")
    @classmethod
    def _options_are_of_rules(cls, options: Any) -> Any:
        for name in SETTINGS.keys() - OPTIONS.keys():
            if isinstance(options, Mapping) and name in options:
                raise ValueError(f"{name} is no option; it is algorithm.{name}")
        return options

    @model_validator(mode="after")
    def _check(self) -> "AlgorithmConfig":
        self._resolved = with_values(by_name(self.recipe), self._set())
        return self


OPTIMIZER_OPTIONS: Mapping[str, Setting] = {
    "beta1": declared(0.9, "Decay of the first moment; the momentum of sgd and muon.", lt=1),
    "beta2": declared(0.999, "Decay of the second moment.", lt=1),
    "epsilon": declared(1e-8, "Added to its root, for adam and adamw.", gt=0, le=1),
    "critic_learning_rate": declared(1e-4, "Learning rate of the value head.", le=10),
    "warmup_from_zero": declared(False, "Begin the warm-up at 0, as transformers does."),
    "final_share": declared(0.0, "Final value as a share of the peak.", le=1),
}


class OptimizerConfig(Section):
    """How the weights move."""

    entries = {"options": OPTIMIZER_OPTIONS}

    name: Literal["adamw", "adam", "sgd", "muon", "lion", "adafactor"] = setting(
        "adamw", "Optimiser; sgd and muon have a momentum of `options.beta1`, 0.9 by default."
    )
    learning_rate: float = setting(1e-5, "Peak learning rate.", le=10)
    schedule: Literal["constant", "linear", "cosine"] = setting("constant", "After the warm-up.")
    warmup_steps: int = setting(0, "Steps of linear warm-up.", unit="steps")
    weight_decay: float = setting(0.0, "Weight decay of matrices.", le=1)
    max_grad_norm: float = setting(1.0, "Gradients are clipped to this norm; 0 is off.")
    micro_rows: int = setting(
        0, "Answers per forward and backward; 0 chooses by memory and speed.", unit="answers"
    )
    start: str | None = setting(
        None, "Checkpoint of another run whose optimiser's state this run begins with."
    )
    options: Mapping[str, JsonValue] = mapping(OPTIMIZER_OPTIONS, "{beta2: 0.95}")


EVALUATION_SAMPLING = {
    name: RolloutConfig.settings()[name] for name in ("temperature", "top_p", "top_k")
}


class EvaluationConfig(Section):
    """What is measured on held-out problems, and when."""

    entries = {"sampling": EVALUATION_SAMPLING}

    accuracy: str = setting(
        "",
        "Which answers are right: `REWARD >= N`, or a reward function, which means >= 1; "
        "empty for the task's own.",
    )
    every: int = setting(0, "Evaluate every N steps; 0 for only before and after.")
    before_and_after: bool = setting(True, "Evaluate before the first and after the last step.")
    problems: int = setting(128, "Held-out problems per evaluation.", ge=1, unit="problems")
    greedy: bool = setting(True, "Also one answer per problem at temperature 0.")
    samples: int = setting(1, "Sampled answers per problem; 0 for greedy only.", le=1024)
    sampling: Mapping[str, JsonValue] = mapping(
        EVALUATION_SAMPLING, "{temperature: 0.6, top_p: 0.95}"
    )
    pinned: int = setting(4, "Held-out prompts sampled throughout the run.", le=1024)
    pinned_every: int = setting(10, "Sample the pinned prompts every N steps.", ge=1, unit="steps")


class CheckpointConfig(Section):
    """What is kept to resume from."""

    every: int = setting(20, "Write a checkpoint every N steps; 0 for only at the end.")
    keep: int = setting(2, "Checkpoints kept beside the best one.", ge=1, le=1000)
    best_by: str = setting(
        "",
        "Held-out metric that decides which checkpoint is best and kept, such as "
        "eval/rewards/length; empty for accuracy, or the reward where nothing says what is right; "
        "none to keep no best one.",
    )


class RecordConfig(Section):
    """What of a run is written down."""

    tokens: Literal["all", "every", "pinned", "none", "nothing"] = setting(
        "all",
        "Whose token numbers are recorded: all groups, every 10 steps, pinned ones, none; "
        "nothing leaves out the answers themselves, too.",
    )
    kl: bool = setting(
        False, "Measure KL to the reference even if beta is 0; one more forward per answer."
    )
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = setting(
        (), "Log live to these as well, each in a process of its own.", example="[tensorboard]"
    )


class SandboxConfig(Section):
    """What the processes get that run other code than this program's."""

    environment: tuple[str, ...] = setting(
        (),
        "Variables of the environment that all code gets: agents and tools in another "
        "interpreter beside a short list, your functions beside theirs, such as a judge's key.",
        example="[OPENAI_API_KEY]",
    )

    @field_validator("environment")
    @classmethod
    def _are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not all(VARIABLE.fullmatch(name) for name in names):
            raise ValueError(  # a refused value may be a key, so it is not quoted
                "these are names of variables in capitals, such as OPENAI_API_KEY, never values"
            )
        return names


class RemoteConfig(Section):
    """A server that holds the weights, samples and trains; without one this machine does."""

    url: str = setting(
        "",
        "A server of the Tinker API that holds the weights, such as http://localhost:8000, or "
        "`tinker` for the hosted service; empty trains here.",
    )
    model: str = setting("", "The server's name of the model; empty for `model.path`.")
    key_env: str = setting(
        "", "Name of the variable with the server's key, which is never stored; empty for none."
    )
    insecure: bool = setting(
        False, "Allow http:// to another machine, which anyone between can read."
    )

    @field_validator("key_env")
    @classmethod
    def _is_name(cls, name: str) -> str:
        if name and not VARIABLE.fullmatch(name):
            raise ValueError(  # a refused value may be a key, so it is not quoted
                "this is the name of a variable in capitals, such as MY_SERVER_KEY, never the key"
            )
        return name

    @model_validator(mode="after")
    def _has_url(self) -> "RemoteConfig":
        for name in ("model", "key_env", "insecure"):
            if getattr(self, name) and not self.url:
                raise ConfigError(
                    f"remote.{name} has no effect without remote.url; set both, or neither",
                    f"remote.{name}",
                    "remote.url",
                )
        if problem := address_problem(self.url, insecure=self.insecure):
            raise ConfigError(f"remote.url: {problem}", "remote.url", "remote.insecure")
        return self


class AlertsConfig(Section):
    """The thresholds of alerts that depend on the task; training does not depend on them."""

    no_signal: float = setting(0.5, "Share of prompts without signal over 5 steps.", gt=0, le=1)
    kl: float = setting(0.1, "KL to the reference over 5 steps.", gt=0, unit="nats/token")
    cut: float = setting(0.5, "Share of answers cut at the length limit over 3 steps.", gt=0, le=1)
    duplicates: float = setting(
        0.5, "Share of answers that repeat an earlier one of their group.", gt=0, le=1
    )


class RunConfig(Section):
    """All settings of a run."""

    name: str = setting("", "Name of the run; empty for a generated one.", longest=LONGEST_NAME)
    seed: int = setting(0, "Seed of every random draw in the run.", lt=2**31)
    steps: int = setting(100, "Training steps.", ge=1, le=10_000_000, unit="steps")
    stop_when: str = setting(
        "", "End earlier when this holds, such as `kl > .3 | eval/accuracy flat for 3`."
    )
    model: ModelConfig = ModelConfig()
    task: TasksConfig = TasksConfig()
    rewards: RewardsConfig = RewardsConfig()
    rollout: RolloutConfig = RolloutConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    teacher: TeacherConfig = TeacherConfig()
    remote: RemoteConfig = RemoteConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    record: RecordConfig = RecordConfig()
    sandbox: SandboxConfig = SandboxConfig()
    alerts: AlertsConfig = AlertsConfig()

    @model_validator(mode="before")
    @classmethod
    def _leave_out_removed(cls, section: Any) -> Any:
        return without_removed(section)[0] if isinstance(section, Mapping) else section

    @property
    def training(self) -> RolloutConfig:
        """How a step's answers arise: those of data are one per prompt, at temperature 1."""
        if not self.algorithm.resolved().demonstrates:
            return self.rollout
        return self.rollout.model_copy(update={"group_size": 1, "temperature": 1.0})

    @field_validator("name")
    @classmethod
    def _name_is_no_reference(cls, name: str) -> str:
        if name.startswith("@"):
            raise ValueError(
                f"a name must not begin with @, which marks references, got {quoted(name)}"
            )
        return name

    @model_validator(mode="after")
    def _check(self) -> "RunConfig":
        chosen, rollout, rewards = self.algorithm.resolved(), self.training, self.rewards
        if rollout.group_size < 2 and chosen.compares == "completions":
            raise ConfigError(
                f"rollout.group_size must be >= 2 for signal {chosen.signal}, "
                f"got {rollout.group_size}",
                "rollout.group_size",
                "algorithm.signal",
                "algorithm.recipe",
            )
        if chosen.minibatches > rollout.rows:
            raise ConfigError(
                f"algorithm.minibatches must be at most the answers of a step ({rollout.rows}), "
                f"got {chosen.minibatches}",
                "algorithm.minibatches",
                "rollout.prompts",
                "rollout.group_size",
                "algorithm.recipe",
            )
        if chosen.ref_mix < 1 and self.model.tuning != "full":
            raise ConfigError(
                f"ref_mix {chosen.ref_mix} needs model.tuning full: mixing LoRA's "
                "A and B is not mixing BA; use 1 to copy the adapter",
                "algorithm.options",
                "model.tuning",
            )
        if rewards.weights and len(rewards.weights) != len(rewards.functions):
            raise ConfigError(
                f"rewards.weights has {len(rewards.weights)} values for "
                f"{len(rewards.functions)} rewards.functions; give one each",
                "rewards.weights",
                "rewards.functions",
            )
        self._check_watched()
        problems = list(refused(self, chosen)) if self.remote.url else []
        if problems:
            raise ConfigError(
                "; ".join(text for _, text in problems),
                *(name for name, _ in problems),
                "remote.url",
            )
        return self

    def _check_watched(self) -> None:
        """Refuse to wait for, or choose by, what the run does not measure."""
        if self.stop_when:
            names = StopRule(self.stop_when).metrics
            if any(name.startswith("eval/") for name in names) and not self.evaluation.every:
                raise ConfigError(
                    f"stop_when {quoted(self.stop_when)} reads an evaluation, and none is made "
                    "during the run; set evaluation.every",
                    "stop_when",
                    "evaluation.every",
                )
            if "kl" in names and not (self.record.kl or self.algorithm.resolved().anchor != "none"):
                raise ConfigError(
                    f"stop_when {quoted(self.stop_when)} reads kl, which is not measured without a "
                    "KL penalty; set record.kl true",
                    "stop_when",
                    "record.kl",
                )
        best_by = self.checkpoint.best_by
        is_evaluated = best_by.startswith("eval/") and is_metric(best_by)
        if best_by not in ("", "none") and not (is_evaluated and spec(best_by).direction != "none"):
            raise ConfigError(
                f"checkpoint.best_by must be none, or a held-out metric of which more or less is "
                f"better, such as eval/accuracy or eval/rewards/NAME, got {quoted(best_by)}",
                "checkpoint.best_by",
            )
