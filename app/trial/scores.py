"""Score a typed answer with a run's reward functions, in their own process as in a run."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.environments.client import specs_of as environments_of
from grpo_engine.errors import EngineError
from grpo_engine.events import total_reward
from grpo_engine.platform.scratch import scratch
from grpo_engine.rewards.client import RewardClient
from grpo_engine.rollouts.prompts import (
    RenderedPrompt,
    conversation,
    for_rewards,
)
from grpo_engine.rollouts.types import Rollout
from grpo_tui.app.trial.examples import Examples, Latest

MOST = 2_000


class Scores:
    """Keeps the reward process while the functions and their files are unchanged."""

    def __init__(self, examples: Examples) -> None:
        self._examples, self._latest = examples, Latest()
        self._stack, self._process = ExitStack(), ExitStack()
        self._folder = self._stack.enter_context(scratch("trial"))
        self._stack.callback(self._process.close)

    def close(self) -> None:
        """Stop the reward process."""
        self._stack.close()

    def score(self, config: RunConfig, index: int, completion: str) -> dict[str, Any]:
        """Return each function's score and reason, and the weighted sum."""
        from grpo_engine.rewards.scorer import check_functions

        task, example = self._examples.task(config), self._examples.first(config)[index]
        client = self._started(config)
        client.check(list(example.columns), f"task {task.name}")
        check_functions(config, task, client.names)
        prompt = for_rewards(example, conversation(task, example))
        outcomes = client.try_on(
            prompt, [completion], [self._ids(config, completion)], example.columns,
            config.rewards.completions,
        )  # fmt: skip
        rewards = [outcome.rewards[0] for outcome in outcomes]
        rows = [
            {
                "name": reward.name, "weight": reward.weight, "value": reward.value,
                "reason": reward.reason[:MOST], "seconds": outcome.seconds,
            }
            for reward, outcome in zip(rewards, outcomes, strict=True)
        ]  # fmt: skip
        return {
            "rows": rows,
            "total": total_reward([r.value for r in rewards], [r.weight for r in rewards]),
            "problems": [
                str(problem)[:MOST] for outcome in outcomes for problem in outcome.problems
            ],
        }

    def rehearse(self, config: RunConfig) -> None:
        """Start the reward process as a run does, and score two made-up answers at step 0.

        The task's own functions fit its data, so they need no process, which takes a while.
        """
        from grpo_engine.rewards.scorer import Scorer, check_functions, specs_of

        task, example = self._examples.task(config), self._examples.first(config)[0]
        specs, defaults = specs_of(config, task), {s.name: s.options for s in task.default_rewards}
        has_environment = bool(environments_of(config, task)[1])
        if not specs and has_environment:
            return  # whether it gives a reward is known once it is loaded
        if specs and all(spec.options == defaults.get(spec.name) for spec in specs):
            check_functions(config, task, [spec.name for spec in specs])
            return
        prompt = for_rewards(example, conversation(task, example))
        rendered = RenderedPrompt(ids=(), text="", prompt=prompt)
        texts = (f"<answer>{example.target or 42}</answer>", "I do not know.")
        rollouts = [
            Rollout(
                key=example.key, group=0, index=index, attempt=0, prompt_ids=(), text=text,
                ids=tuple(self._ids(config, text)), logprobs=(), raw_logprobs=(), finish="stop",
            )
            for index, text in enumerate(texts)
        ]  # fmt: skip
        names = () if has_environment else None
        with Scorer(config, task, self._folder, Control(), environments=names) as scorer:
            if not has_environment:  # made-up answers have no environment to look at
                scorer.score([example] * 2, [rendered] * 2, rollouts, step=1)

    def stamps(self, config: RunConfig) -> list[int]:
        """Return the modification times of the functions' files."""
        return [_stamp(name) for name in config.rewards.functions]

    def _ids(self, config: RunConfig, completion: str) -> list[int]:
        """Return the model's tokens; the bytes if its tokenizer cannot be loaded."""
        try:
            tokenizer = self._examples.tokenizer(config)
        except EngineError:
            return list(completion.encode("utf-8", "surrogatepass"))
        return [int(i) for i in tokenizer.encode(completion, add_special_tokens=False)]

    def _started(self, config: RunConfig) -> RewardClient:
        from grpo_engine.rewards.scorer import specs_of

        def start() -> RewardClient:
            self._process.close()
            specs = specs_of(config, self._examples.task(config))
            client = RewardClient(specs, self._folder, config.rewards.time_limit)
            return self._process.enter_context(client)

        key = self._examples.task_key(config), config.rewards, self.stamps(config)
        return self._latest.get("client", key, start)


def _stamp(name: str) -> int:
    """Return the modification time of a function's file; 0 for a function of a module."""
    file = Path(name.rpartition(":")[0]).expanduser()
    return file.stat().st_mtime_ns if file.suffix == ".py" and file.is_file() else 0
