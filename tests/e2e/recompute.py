"""Recompute the metrics of exported runs with pandas; nothing of the program is imported.

`python recompute.py FOLDER` reads the tables that `grpo-tui export` wrote there as JSON lines
(runs, metrics, rollouts, turns, tokens, evaluations) and prints, as JSON, how often each metric was
recomputed, which values differ, and which metrics are neither recomputed nor listed as open.
"""

import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

TABLES = ("runs", "metrics", "rollouts", "turns", "tokens", "evaluations")
CUT = ("length", "context")  # how an answer ends that a limit cut
CLOSE = 1e-5  # relative: metrics are sums of float32
TOKENS = 5e-6  # absolute, per token: log-probabilities are stored to 1e-6 nats
ENTROPY = 2e-3  # relative: entropies are stored as float16
BOUNDS = {
    "grpo": (0.2, 0.2),
    "dr-grpo": (0.2, 0.2),
    "dapo": (0.2, 0.28),
    "rloo": (0.2, 0.2),
    "ppo": (0.2, 0.2),
}
WHOLE_ANSWERS = ("rloo",)  # one ratio for each answer
CAP, BETA = 5.0, 0.04  # of cispo, of grpo

# what exports do not determine, and why
OPEN = {
    r"time/.*|memory/.*": "measured by the clock and the allocator",
    r"grad_norm": "gradients are not stored",
    r"value/.*": "the critic's values are not exported",
    r"target/.*": "target probabilities are not exported",
    r"eval/(greedy/)?(task/.+/)?(reward|turns)_(low|high)": "a bootstrap with its own random draws",
    r"eval/(task/.+/)?(accuracy|format|accuracy_of_formatted)_(low|high)": "the same",
}


class Step:
    """The exported rows of one step of a run."""

    def __init__(self, run: pd.Series, tables: dict[str, pd.DataFrame], step: int) -> None:
        self.run, self.recipe = run, run["recipe"]
        own = {name: rows[rows["step"] == step] for name, rows in tables.items()}
        self.metrics = own["metrics"].iloc[0]
        before = tables["metrics"][tables["metrics"]["step"] < step]["elapsed"].dropna()
        self.elapsed_before = before.max() if len(before) else 0.0
        rollouts = own["rollouts"]
        self.sampled = rollouts[rollouts["origin"] == "train"]
        replaced = self.sampled["no_signal"].str.endswith(", replaced")
        self.kept, self.replaced = self.sampled[~replaced], self.sampled[replaced]
        self.turns, self.all_tokens = own["turns"], own["tokens"]
        self.evaluations, self.held_out = own["evaluations"], rollouts[rollouts["origin"] == "eval"]
        self.tokens = self._trained_tokens()

    def _trained_tokens(self) -> pd.DataFrame:
        """The model's tokens of the update, with the log-probabilities of the last pass."""
        rows = self.all_tokens[self.all_tokens["origin"] == "train"]
        rows = rows[rows["old"].notna()]
        if rows.empty:
            return rows
        keys = ["group", "index"]
        spans = self.turns[self.turns["origin"] == "train"]
        spans = spans[spans["group"].isin(rows["group"])].copy()
        ends = spans.groupby(keys)["tokens"].cumsum()
        spans["start"], spans["end"] = ends - spans["tokens"], ends
        spans = spans[spans["kind"] == "model"][[*keys, "start", "end"]]
        rows = rows.merge(spans, on=keys)
        rows = rows[(rows["position"] >= rows["start"]) & (rows["position"] < rows["end"])]
        passes = [name for name in rows if name.startswith("pass_")]
        last = rows[passes].ffill(axis=1).iloc[:, -1]
        return rows.assign(
            new=last, passes=rows[passes].notna().sum(axis=1), log_ratio=last - rows["old"]
        )

    @property
    def answers(self) -> Any:
        return self.tokens.groupby(["group", "index"])

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each reward column; other rewards than the run's functions weigh 1."""
        names = [name.rpartition(":")[2] for name in self.run["cfg.rewards.functions"]]
        given = self.run["cfg.rewards.weights"] or [1.0] * len(names)
        return dict(zip(names, given, strict=True))

    def column(self, rows: pd.DataFrame, function: str) -> pd.Series:
        return rows[f"reward/{function}"].dropna()

    def evaluated(self, mode: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """An evaluation's rows by problem, and its answers; greedy groups are numbered first."""
        rows = self.evaluations[self.evaluations["mode"] == mode]
        first = 0
        if mode == "sampled":
            first = len(self.evaluations) - len(rows)
        groups = self.held_out["group"]
        return rows, self.held_out[(groups >= first) & (groups < first + len(rows))]


# -- rewards, lengths, groups -------------------------------------------------------------------


def flat_groups(rows: pd.DataFrame) -> float:
    return float((rows.groupby("group")["reward"].nunique(dropna=True) < 2).mean())


def duplicates(step: Step) -> float:
    tokens = step.all_tokens[step.all_tokens["origin"] == "train"]
    tokens = tokens[tokens["group"].isin(step.kept["group"])]
    ids = tokens.groupby(["group", "index"])["id"].agg(tuple)
    return float(
        ids.groupby("group").agg(lambda group: len(group) - group.nunique()).sum() / len(ids)
    )


def ended(step: Step) -> pd.Series:
    return step.kept[~step.kept["finish"].isin(CUT)]["tokens"]


def turns_of(step: Step, rows: pd.DataFrame) -> pd.Series:
    spans = step.turns[
        (step.turns["kind"] == "model") & step.turns["rollout"].isin(rows["rollout"])
    ]
    counts = spans.groupby("rollout").size()
    return counts.reindex(rows["rollout"], fill_value=0)


def told(step: Step, name: str) -> float:
    """The mean of what environments told last, over the answers that have it."""
    spans = step.turns[step.turns["rollout"].isin(step.kept["rollout"])]
    return float(spans.groupby("rollout")[f"info/{name}"].last().dropna().mean())


# -- the loss -----------------------------------------------------------------------------------


def k3(log_ratio: pd.Series) -> pd.Series:
    """exp(x) - x - 1 with x = log(q/p), of samples of p."""
    return np.exp(log_ratio) - log_ratio - 1


def side(step: Step, where: str, by: float = 0.0) -> pd.Series:
    """Tokens or answers whose push a bound has stopped, with the bound moved outwards by `by`."""
    low, high = BOUNDS[step.recipe]
    tokens = step.tokens
    log_ratio, advantage = tokens["log_ratio"], tokens["advantage"]
    if step.recipe in WHOLE_ANSWERS:
        log_ratio, advantage = step.answers["log_ratio"].sum(), step.answers["advantage"].first()
    ratio = np.exp(log_ratio)
    below = (ratio < 1 - low - by) & (advantage < 0)
    above = (ratio > 1 + high + by) & (advantage > 0)
    return {"low": below, "high": above, "region": below | above}[where]


def clipped(
    where: str, pick: Callable[[pd.Series], float]
) -> Callable[[Step], tuple[float, float]]:
    """The least and the greatest value, as a token at the bound may be on either side of it."""

    def value(step: Step) -> tuple[float, float]:
        found = []
        for by in (TOKENS, -TOKENS):
            flags = side(step, where, by).astype(float)
            if step.recipe not in WHOLE_ANSWERS and pick is not mean:
                flags = flags.groupby([step.tokens["group"], step.tokens["index"]]).mean()
            found.append(pick(flags))
        return found[0], found[1]

    return value


def mean(values: pd.Series) -> float:
    return float(values.mean())


def loss(step: Step) -> float:
    """The loss of the recipes with one minibatch and a formula that fits on a line."""
    tokens, count = step.tokens, len(step.kept)
    ratio, advantage = np.exp(tokens["log_ratio"]), tokens["advantage"]
    if step.recipe == "cispo":
        terms = np.minimum(ratio, CAP) * advantage * tokens["new"]
        return float(-terms.sum() / step.kept["tokens"].sum())
    low, high = BOUNDS[step.recipe]
    terms = np.minimum(ratio * advantage, ratio.clip(1 - low, 1 + high) * advantage)
    if step.recipe == "dr-grpo":
        return float(-terms.sum() / (count * step.run["cfg.rollout.max_new_tokens"]))
    terms = terms - BETA * k3(tokens["reference"] - tokens["new"])
    return float(-terms.groupby([tokens["group"], tokens["index"]]).mean().sum() / count)


# -- held-out answers ---------------------------------------------------------------------------


def wilson(right: float, count: int, sign: int) -> float:
    z = 1.959964
    share = right / count
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return float((share + z * z / (2 * count) + sign * half) / (1 + z * z / count))


def formed(answers: pd.DataFrame) -> pd.Series:
    """Whether each answer has the format, of those whose task asks for one."""
    (name,) = [name for name in answers if name.startswith("reward/") and "format" in name]
    return answers[name].dropna() > 0


def right_of_formed(answers: pd.DataFrame) -> pd.Series:
    flags = formed(answers)
    return right(answers.loc[flags.index[flags]])


def right(answers: pd.DataFrame) -> pd.Series:
    return answers["reward/accuracy"] >= 1


def held_out(name: str, step: Step, mode: str) -> float | None:
    """A metric of an evaluation by its name without `eval/` and the mode; None if it is open."""
    rows, answers = step.evaluated(mode)
    if task := re.fullmatch(r"task/(.+?)/((?:scored/)?(?:rewards/)?[^/]+)", name):
        label, name = task[1], task[2]
        others = list(step.run["cfg.task.others"] or {})
        key = f"{label}/" if label in others else tuple(f"{other}/" for other in others)
        inside = label in others
        rows = rows[rows["example_key"].str.startswith(key) == inside]
        answers = answers[answers["example_key"].str.startswith(key) == inside]
    judged = rows.dropna(subset="correct")
    low_or_high = {
        "accuracy_low": -1,
        "accuracy_high": 1,
        "format_low": -1,
        "format_high": 1,
        "accuracy_of_formatted_low": -1,
        "accuracy_of_formatted_high": 1,
    }
    if name in low_or_high and mode == "greedy":
        kind, sign = name.rpartition("_")[0], low_or_high[name]
        if kind == "accuracy":
            return wilson(judged["correct"].sum(), len(judged), sign)
        flags = formed(answers) if kind == "format" else right_of_formed(answers)
        return wilson(flags.sum(), len(flags), sign)
    if at := re.fullmatch(r"pass@(\d+)", name):
        k = int(at[1])
        misses = [
            math.comb(int(n - c), k) / math.comb(int(n), k)
            for c, n in zip(judged["correct"], judged["samples"], strict=True)
        ]
        return 1 - float(np.mean(misses))
    if name == "scored/accuracy":
        return float(judged["samples"].sum())
    if name == "scored/reward":
        return float(answers["reward"].count())
    if name.startswith("scored/rewards/"):
        return float(step.column(answers, name.removeprefix("scored/rewards/")).count())
    if name.startswith("rewards/"):
        return mean(step.column(answers, name.removeprefix("rewards/")))
    plain: dict[str, Callable[[], float]] = {
        "accuracy": lambda: float(judged["correct"].sum() / judged["samples"].sum()),
        "reward": lambda: mean(answers.groupby("group")["reward"].mean().dropna()),
        "mean_length": lambda: mean(answers["tokens"]),
        "truncated": lambda: mean(answers["finish"].isin(CUT)),
        "turns": lambda: mean(turns_of(step, answers)),
        "format": lambda: mean(formed(answers)),
        "accuracy_of_formatted": lambda: mean(right_of_formed(answers)),
    }
    return plain[name]() if name in plain else None


# -- the list -----------------------------------------------------------------------------------

Value = float | tuple[float, float] | None

OF_STEP: dict[str, Callable[[Step], Value]] = {
    "reward": lambda s: mean(s.kept["reward"].dropna()),
    "reward_std": lambda s: float(s.kept["reward"].std()),
    "frac_reward_zero_std": lambda s: None if s.recipe in ("rloo", "ppo") else flat_groups(s.kept),
    "sampled/reward": lambda s: mean(s.sampled["reward"].dropna()),
    "groups/refilled": lambda s: float(s.replaced["group"].nunique()),
    "groups/skipped": lambda s: float(s.kept["group"].nunique() - s.tokens["group"].nunique()),
    "completions/mean_length": lambda s: mean(s.kept["tokens"]),
    "completions/min_length": lambda s: float(s.kept["tokens"].min()),
    "completions/max_length": lambda s: float(s.kept["tokens"].max()),
    "completions/clipped_ratio": lambda s: mean(s.kept["finish"].isin(CUT)),
    "completions/mean_terminated_length": lambda s: mean(ended(s)),
    "completions/min_terminated_length": lambda s: float(ended(s).min()),
    "completions/max_terminated_length": lambda s: float(ended(s).max()),
    "completions/duplicates": duplicates,
    "turns/mean": lambda s: mean(turns_of(s, s.kept)),
    "turns/max": lambda s: float(turns_of(s, s.kept).max()),
    "environment/errors": lambda s: mean(s.kept["finish"] == "environment_error"),
    # the environments of these runs have no tools
    "tools/call_frequency": lambda _: 0.0,
    "num_tokens": lambda s: float(s.metrics["tokens"]),
    "step_time": lambda s: float(s.metrics["elapsed"] - s.elapsed_before),
    "tokens_per_second": lambda s: s.sampled["tokens"].sum() / s.metrics["time/generate"],
    "learning_rate": lambda s: float(s.run["cfg.optimizer.learning_rate"]),
    # a pass that only found the targets reached is stored and not counted
    "passes": lambda s: None if s.recipe == "how-much" else float(s.tokens["passes"].max()),
    "ratio/mean": lambda s: mean(ratios(s)),
    "ratio/clamped": lambda s: mean(s.tokens["log_ratio"].abs() > 60),
    # of targets, the pushes of equal prefixes are joined
    "advantage/abs_mean": lambda s: (
        None if s.recipe == "how-much" else mean(s.tokens["advantage"].abs())
    ),
    "kl": lambda s: mean(k3(s.tokens["reference"] - s.tokens["new"])),
    # of targets it is measured once more after the last update
    "kl_to_old": lambda s: mean(
        k3(
            (s.tokens["after"] - s.tokens["old"])
            if s.recipe == "how-much"
            else s.tokens["log_ratio"]
        )
    ),
    "entropy": lambda s: mean(s.tokens["entropy"]),
    "sampling/sampling_logp_difference/mean": lambda s: mean(
        (s.tokens["old"] - s.tokens["sampler"]).abs()
    ),
    "sampling/sampling_logp_difference/max": lambda s: float(
        (s.tokens["old"] - s.tokens["sampler"]).abs().max()
    ),
    "cispo_clip_ratio": lambda s: mean(
        (np.exp(s.tokens["log_ratio"]) > CAP) & (s.tokens["advantage"] > 0)
    ),
    "loss": lambda s: loss(s) if s.recipe in ("grpo", "dr-grpo", "cispo") else None,
    "clip_ratio/low_mean": lambda s: clipped("low", mean)(s) if s.recipe in BOUNDS else None,
    "clip_ratio/high_mean": lambda s: clipped("high", mean)(s) if s.recipe in BOUNDS else None,
    "clip_ratio/region_mean": lambda s: clipped("region", mean)(s) if s.recipe in BOUNDS else None,
    "clip_ratio/low_min": lambda s: clipped("low", min)(s) if s.recipe in BOUNDS else None,
    "clip_ratio/high_max": lambda s: clipped("high", max)(s) if s.recipe in BOUNDS else None,
}


def ratios(step: Step) -> pd.Series:
    if step.recipe not in WHOLE_ANSWERS:
        return np.exp(step.tokens["log_ratio"])
    return np.exp(step.answers["log_ratio"].transform("sum"))


def by_pattern(name: str, step: Step) -> Value:
    """A metric that is named after a reward function, a task or a mode of evaluation."""
    if name.startswith("eval/"):
        rest = name.removeprefix("eval/")
        mode = "greedy" if rest.startswith("greedy/") else "sampled"
        return held_out(rest.removeprefix("greedy/"), step, mode)
    if match := re.fullmatch(r"(sampled/)?rewards/(.+)/(mean|std)", name):
        values = step.column(step.sampled if match[1] else step.kept, match[2])
        return mean(values) if match[3] == "mean" else float(values.std())
    if match := re.fullmatch(r"rewards/(.+)/failed", name):
        named = step.sampled["failed"].fillna("").str.split(", ")
        return float(named.map(lambda names: match[1] in names).sum())
    if match := re.fullmatch(r"env/(.+)", name):
        return told(step, match[1])
    if match := re.fullmatch(
        r"task/(.+?)/(reward|frac_reward_zero_std|groups|rewards/.+/mean)", name
    ):
        others = [f"{other}/" for other in step.run["cfg.task.others"] or {}]
        inside = f"{match[1]}/" in others
        key = f"{match[1]}/" if inside else tuple(others)
        rows = step.sampled[step.sampled["example_key"].str.startswith(key) == inside]
        if match[2] == "groups":
            return float(rows["group"].nunique())
        if match[2] == "frac_reward_zero_std":
            return flat_groups(rows)
        if match[2] == "reward":
            return mean(rows["reward"].dropna())
        return mean(step.column(rows, match[2].removeprefix("rewards/").removesuffix("/mean")))
    return None


TOLERANCES = {  # relative, absolute
    "entropy": (ENTROPY, 1e-4),
    "kl": (1e-3, TOKENS),
    "kl_to_old": (1e-3, TOKENS),
    "loss": (1e-4, 2e-5),
    "ratio/mean": (CLOSE, 10 * TOKENS),
    "sampling/sampling_logp_difference/mean": (1e-3, TOKENS),
    "sampling/sampling_logp_difference/max": (1e-3, TOKENS),
    "advantage/abs_mean": (1e-3, 1e-4),
}


def agrees(name: str, stored: float, value: float | tuple[float, float]) -> bool:
    relative, absolute = TOLERANCES.get(name, (CLOSE, 1e-7))
    if isinstance(value, tuple):
        return value[0] - absolute <= stored <= value[1] + absolute
    return math.isclose(stored, value, rel_tol=relative, abs_tol=absolute)


def answers_wrong(step: Step) -> list[str]:
    """Totals, statistics of groups, and the advantages of recipes whose signal is the group's."""
    wrong = []
    rows = pd.concat([step.sampled, step.held_out])
    others = {
        label: {name.rpartition(":")[2]: weight for name, weight in other["rewards"].items()}
        for label, other in (step.run["cfg.task.others"] or {}).items()
    }
    for row in rows.to_dict("records"):
        label = row["example_key"].partition("/")[0]
        weights = others.get(label, step.weights)
        terms = [
            weights.get(
                name.removeprefix("reward/"),
                0.0 if weights and name in ("reward/numeric_answer",) else 1.0,
            )
            * value
            for name, value in row.items()
            if name.startswith("reward/") and not pd.isna(value)
        ]
        total = sum(terms) if terms else math.nan  # an answer whose environment failed has none
        if not np.isclose(total, row["reward"], rtol=CLOSE, atol=1e-7, equal_nan=True):
            wrong.append(f"reward of rollout {row['rollout']}: {row['reward']}, not {total}")
    groups = rows.groupby(["origin", "group"])
    for name, found in (
        ("reward_mean", groups["reward"].transform("mean")),
        ("reward_std", groups["reward"].transform("std")),
    ):
        if not np.allclose(rows[name].astype(float), found, rtol=CLOSE, atol=1e-7, equal_nan=True):
            wrong.append(f"{name} of a group")
    if step.recipe in ("grpo", "dapo", "dr-grpo", "cispo"):
        own = step.kept.groupby("group")["reward"]
        advantage = step.kept["reward"] - own.transform("mean")
        if step.recipe != "dr-grpo":
            advantage = advantage / (own.transform("std") + 1e-4)
        # an answer without a reward pushes nothing
        if not np.allclose(step.kept["advantage"], advantage.fillna(0.0), rtol=1e-4, atol=1e-5):
            wrong.append("advantages")
    return wrong


def summaries_wrong(run: pd.Series, metrics: pd.DataFrame) -> list[str]:
    """The last and the best value of each metric in the list of runs."""
    wrong = []
    for name in [name.removeprefix("last ") for name in run.index if name.startswith("last ")]:
        if name not in metrics:
            continue
        values = metrics.set_index("step")[name].dropna()
        if values.empty:
            continue
        if (run[f"last {name}"], run[f"last_step {name}"]) != (values.iloc[-1], values.index[-1]):
            wrong.append(f"last {name}")
        if run[f"best {name}"] not in (values.max(), values.min(), values.iloc[-1]):
            wrong.append(f"best {name}")
        if values.get(run[f"best_step {name}"]) != run[f"best {name}"]:
            wrong.append(f"best_step {name}")
    return wrong


def recompute(folder: Path) -> dict[str, Any]:
    tables = {name: table(folder / f"{name}.jsonl") for name in TABLES}
    counts: dict[str, int] = {}
    wrong: list[str] = []
    left: set[str] = set()
    for _, run in tables["runs"].iterrows():
        own = {
            name: rows[rows["run"] == run["id"]].dropna(axis=1, how="all")
            for name, rows in tables.items()
            if name != "runs"
        }
        own["rollouts"] = own["rollouts"].assign(no_signal=own["rollouts"]["no_signal"].fillna(""))
        wrong += [f"{run['name']}: {one}" for one in summaries_wrong(run, own["metrics"])]
        for step in own["metrics"]["step"]:
            rows = Step(run, own, step)
            wrong += [f"{run['name']}, step {step}: {one}" for one in answers_wrong(rows)]
            for name, stored in rows.metrics.drop(["run", "name", "step", "at"]).items():
                if pd.isna(stored) or name in ("elapsed", "tokens"):
                    continue
                value = OF_STEP[name](rows) if name in OF_STEP else by_pattern(name, rows)
                if value is None:
                    left.add(name)
                    continue
                counts[name] = counts.get(name, 0) + 1
                if not agrees(name, stored, value):
                    wrong.append(f"{run['name']}, step {step}: {name} is {stored}, not {value}")
    unknown = [
        name
        for name in left
        if name not in counts and not any(re.fullmatch(pattern, name) for pattern in OPEN)
    ]
    missing = [name for name in OF_STEP if name not in counts]
    wrong += csv_wrong(folder, tables["metrics"])
    return {"counts": counts, "wrong": wrong, "unknown": unknown, "missing": missing}


def csv_wrong(folder: Path, metrics: pd.DataFrame) -> list[str]:
    """Columns of the CSV file that hold other numbers than the lines of JSON."""
    csv = pd.read_csv(folder / "metrics.csv")
    if (csv["run"] != metrics["run"]).any():
        return ["metrics.csv: run"]
    return [
        f"metrics.csv: {name}"
        for name in metrics.select_dtypes("number").columns
        if not np.array_equal(csv[name], metrics[name].astype(float), equal_nan=True)
    ]


def table(file: Path) -> pd.DataFrame:
    return pd.DataFrame([json.loads(line) for line in file.read_text("utf-8").splitlines()])


if __name__ == "__main__":
    print(json.dumps(recompute(Path(sys.argv[1])), indent=1))
