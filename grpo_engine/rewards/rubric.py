"""The file of a judge: which chat endpoint it is, and what it scores."""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from grpo_engine.config.safe_json import read_text
from grpo_engine.config.safe_yaml import parse_yaml
from grpo_engine.errors import ConfigError, RewardError
from grpo_engine.names import JUDGE

Positive = Annotated[float, Field(gt=0)]
# Host, port and path: there is no room for a key.
ADDRESS = re.compile(r"https?://([^\s@?#/:\[\]]+|\[[\da-fA-F:.]+\])(:[1-9]\d{0,4})?(/[^\s@?#]*)?")


class Rubric(BaseModel):
    """Either `criteria`, each scored on the `scale`, or a `ranking` of a group by one question.

    `price` is that of a million tokens of a prompt and of a reply.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    endpoint: str
    model: str
    key_variable: str = ""
    criteria: dict[str, str] = {}
    weights: dict[str, Positive] = {}
    scale: tuple[float, float] = (0.0, 10.0)
    ranking: str = ""
    columns: tuple[str, ...] = ()
    concurrency: int = Field(8, ge=1, le=256)
    time_limit: Positive = 60.0
    retries: int = Field(3, ge=0, le=20)
    cache: int = Field(10_000, ge=0)
    price: tuple[float, float] = (0.0, 0.0)
    options: dict[str, JsonValue] = {}

    @property
    def url(self) -> str:
        return f"{self.endpoint.rstrip('/')}/chat/completions"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not ADDRESS.fullmatch(self.endpoint):
            raise ValueError("endpoint is host, port and path, as in https://api.openai.com/v1")
        if not re.fullmatch(r"([A-Z][A-Z0-9_]{0,63})?", self.key_variable):
            raise ValueError(
                "key_variable is the name of an environment variable in capitals, such as "
                "OPENAI_API_KEY, never the key itself"
            )
        if bool(self.criteria) == bool(self.ranking):
            raise ValueError("give either criteria or a ranking")
        if not self.weights.keys() <= self.criteria.keys():
            raise ValueError("weights are by the names of criteria")
        if not self.scale[0] < self.scale[1]:
            raise ValueError("scale is the lowest score and a higher one, such as [1, 5]")
        return self


def key_variables(names: Iterable[str]) -> set[str]:
    """The variables that the judges among reward functions name; a file with a fault has none."""
    variables = set()
    for name in names:
        if name.startswith(JUDGE):
            with suppress(RewardError, OSError):
                rubric = read_rubric(Path(name.removeprefix(JUDGE)).expanduser())
                variables.add(rubric.key_variable)
    return variables


def read_rubric(path: Path) -> Rubric:
    """Read and check a rubric; what is refused is never quoted, for it may be a key."""
    try:
        return Rubric.model_validate(parse_yaml(read_text(path)))
    except (ConfigError, yaml.YAMLError) as error:
        problem = str(error)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        entry = ".".join(map(str, first["loc"]))
        problem = f"{entry}: {first['msg']}".removeprefix(": Value error, ")
        if first["type"] == "extra_forbidden":
            problem = f"{entry} is no entry of it; there are {', '.join(Rubric.model_fields)}"
    raise RewardError(f"reward judge:{path}: {problem}")
