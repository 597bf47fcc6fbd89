"""Score completions with a run's reward functions, in their own process as in a run."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from grpo_engine import consent
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.environments.client import specs_of as environments_of
from grpo_engine.errors import EngineError
from grpo_engine.rewards.scorer import Scorer, check_functions
from grpo_engine.rewards.scoring import Scores
from grpo_engine.rewards.specs import specs_of
from grpo_engine.rollouts.prompts import RenderedPrompt, conversation, for_rewards
from grpo_engine.rollouts.types import Trajectory
from grpo_tui.app.trial.loaded import Loaded, changed

MAX_CHARS = 2_000
WRONG_COMPLETION = "I do not know."


class TrialRewards:
    """Keeps the reward process while the functions and their files are unchanged."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded, self._process = loaded, ExitStack()

    def close(self) -> None:
        """Stop the reward process."""
        self._process.close()

    def score(self, config: RunConfig, index: int, completion: str) -> dict[str, Any]:
        """Each function's score and reason, and the weighted sum."""
        scores = self._scores(
            config, index, [completion], step=2
        )  # From step 2 on errors are reported as alerts.
        return {
            "rows": [
                {**asdict(reward), "reason": reward.reason[:MAX_CHARS]}
                for reward in scores.rewards[0]
            ],
            "total": scores.totals()[0],
            "problems": [alert.explanation[:MAX_CHARS] for alert in scores.alerts],
        }

    def rehearse(self, config: RunConfig) -> None:
        """Score two made-up completions as a run does at its start; once for the same settings."""
        self._loaded.latest("rehearsed", self._key(config), lambda: self._rehearse(config))

    def _rehearse(self, config: RunConfig) -> None:
        """The task's own functions fit its data, so they need no process, which takes a while."""
        task, example = self._loaded.task(config), self._loaded.first(config)[0]
        specs, defaults = specs_of(config, task), {s.name: s.options for s in task.default_rewards}
        has_environment = bool(environments_of(config, task)[1])
        if not specs and has_environment:
            return  # whether it gives a reward is known once it is loaded
        if specs and all(spec.options == defaults.get(spec.name) for spec in specs):
            check_functions(config, task, [spec.name for spec in specs])
        elif has_environment:  # Made-up completions have no environment.
            self._scorer(config)
        else:
            completions = f"<answer>{example.target or 42}</answer>", WRONG_COMPLETION
            self._scores(config, 0, completions, step=1)

    def _scores(
        self, config: RunConfig, index: int, completions: Sequence[str], *, step: int
    ) -> Scores:
        """The scores of completions of an example problem."""
        task, example = self._loaded.task(config), self._loaded.first(config)[index]
        prompt = for_rewards(example, conversation(task, example))
        rendered = RenderedPrompt(ids=(), text="", prompt=prompt)
        rollouts = [
            Trajectory(
                key=example.key,
                group=0,
                index=number,
                prompt_ids=(),
                text=text,
                ids=tuple(self._ids(config, text)),
                finish="stop",
            )
            for number, text in enumerate(completions)
        ]
        count = len(completions)
        scorer = self._scorer(config)
        return scorer.score([example] * count, [rendered] * count, rollouts, step=step)

    def _ids(self, config: RunConfig, completion: str) -> list[int]:
        """The model's tokens; the bytes if its tokenizer cannot be loaded."""
        try:
            tokenizer = self._loaded.policy(config).tokenizer
        except EngineError:
            return list(completion.encode("utf-8", "surrogatepass"))
        return [int(i) for i in tokenizer.encode(completion, add_special_tokens=False)]

    def _scorer(self, config: RunConfig) -> Scorer:
        def start() -> Scorer:
            self._process.close()
            task = self._loaded.task(config)
            names = () if environments_of(config, task)[1] else None
            return Scorer(
                config,
                task,
                None,
                Control(),
                self._process.enter_context,
                environments=names,
                foreign=consent.is_foreign(config),
            )

        return self._loaded.latest("scorer", self._key(config), start)

    def _key(self, config: RunConfig) -> object:
        """What the functions and their data depend on: settings, and the times of files."""
        times = [changed(name) for name in config.rewards.functions]
        return self._loaded.task_key(config), config.rewards, config.algorithm, times
