"""Actions that try the settings: example prompts, memory, rewards on a typed answer, YAML."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import App
from textual.timer import Timer

from app.rehearsal import Rehearsal, RehearsalError
from app.screens.new_run.pages import AnswerTyped, YamlTyped
from app.screens.new_run.view import View
from grpo_engine.config import RunConfig
from grpo_engine.errors import ConfigError, EngineError


def key_of(config: RunConfig, *, for_memory: bool) -> str:
    """What of the settings decides the example prompts, or the memory estimate."""
    parts = [str(config.seed), config.model.model_dump_json(), config.task.model_dump_json()]
    parts.append(str(config.rollout.max_new_tokens))
    if for_memory:
        parts += [config.rollout.model_dump_json(), config.optimizer.model_dump_json()]
    return "\n".join(parts)


class TryingActions:
    """What is asked of the trial process, each a moment after the last change."""

    REHEARSE_S: ClassVar[float] = 0.5
    SCORE_S: ClassVar[float] = 0.4
    YAML_S: ClassVar[float] = 0.3
    view: View
    rehearsal: Rehearsal
    if TYPE_CHECKING:
        app: App[Any]
        is_current: bool
        is_mounted: bool
        notify: Any
        change: Any
        run_worker: Any
        set_timer: Any

    def prepare_trying(self) -> None:
        """Nothing is started before something is asked."""
        self.rehearsal = Rehearsal()
        self._delays: dict[str, Timer] = {}
        self._known = {"examples": "", "memory": ""}
        self._answer = ""

    def _soon(self, name: str, after: float, call: Any) -> None:
        if name in self._delays:
            self._delays[name].stop()
        self._delays[name] = self.set_timer(after, call)

    def ask_for_mlx(self) -> None:
        """Find out on a thread whether MLX can train here."""
        self.run_worker(self._look_for_mlx, group="mlx")

    async def _look_for_mlx(self) -> None:
        from grpo_engine.platform.device import require_backend

        try:
            await asyncio.to_thread(require_backend)
        except EngineError as error:
            self.view = replace(self.view, lacking=str(error))

    # -- prompts and memory -----------------------------------------------------------------

    def rehearse(self) -> None:
        """Try the settings once they have been left alone for a moment."""
        if self.is_mounted:
            self._soon("rehearse", self.REHEARSE_S, self._rehearse)

    def _rehearse(self) -> None:
        config = self.view.checked.config
        if config is None or not self.is_current:
            return
        if key_of(config, for_memory=True) != self._known["memory"]:
            self.run_worker(
                partial(self._look, config, online=False), exclusive=True, group="rehearse"
            )

    async def _look(self, config: RunConfig, *, online: bool) -> None:
        prompts, memory = key_of(config, for_memory=False), key_of(config, for_memory=True)
        try:
            if prompts != self._known["examples"] or online:
                self.view = replace(self.view, busy="fetching…" if online else "reading the task…")
                found = await self._ask("examples", config, online=online)
                self._known["examples"] = prompts
                self.view = replace(self.view, examples=found, example=0)
                self._score_again()
            self.view = replace(self.view, busy="estimating memory…")
            found = await self._ask("memory", config, online=online)
            self._known["memory"] = memory
            self.view = replace(self.view, memory=found, busy="")
        except asyncio.CancelledError:
            return

    async def _ask(
        self, what: str, config: RunConfig, *, online: bool = False, **more: Any
    ) -> Mapping[str, Any]:
        question = {"do": what, "config": config.model_dump(mode="json"), **more}
        try:
            return await self.rehearsal.ask(question, what, online=online)
        except RehearsalError as error:
            return {"problem": str(error)}

    def action_fetch(self) -> None:
        """Fetch what the example prompts need from the hub."""
        config = self.view.checked.config
        if config is None:
            self.notify("Something is to fix first.", severity="warning")
            return
        names = " and ".join(dict.fromkeys([config.model.path, config.task.name]))
        self.notify(f"Fetching what is missing of {names}; this can take long.", markup=False)
        self.run_worker(partial(self._look, config, online=True), exclusive=True, group="rehearse")

    def action_example(self, by: int) -> None:
        """Another example prompt is the one that is answered and copied."""
        count = len(self.view.examples.get("examples", ()))
        if count:
            self.view = replace(self.view, example=(self.view.example + by) % count)
            self._score_again()

    # -- rewards ----------------------------------------------------------------------------

    def on_answer_typed(self, message: AnswerTyped) -> None:
        """Score it once one stops typing."""
        self._answer = message.text
        self._score_again()

    def _score_again(self) -> None:
        if self._answer:
            self._soon("score", self.SCORE_S, self._score)
        elif self.view.scores:
            self.view = replace(self.view, scores={})

    def _score(self) -> None:
        config = self.view.checked.config
        if config is None:
            problem = "Something is to fix first; see the settings marked ✗."
            self.view = replace(self.view, scores={"problem": problem})
        elif self._answer:
            self.run_worker(partial(self._scored, config), exclusive=True, group="score")

    async def _scored(self, config: RunConfig) -> None:
        try:
            found = await self._ask(
                "score", config, example=self.view.example, completion=self._answer
            )
        except asyncio.CancelledError:
            return
        self.view = replace(self.view, scores=found)

    # -- YAML -------------------------------------------------------------------------------

    def on_yaml_typed(self, message: YamlTyped) -> None:
        """Take it over once one stops typing."""
        self._soon("yaml", self.YAML_S, lambda: self._take_yaml(message.text))

    def _take_yaml(self, text: str) -> None:
        try:
            form = self.view.form.from_yaml(text)
        except ConfigError as error:
            problem = str(error).removeprefix("this YAML: ")
            self.view = replace(self.view, yaml_problem=problem)
            return
        if form.edits != self.view.form.edits or self.view.yaml_problem:
            self.change(self.view.with_form(form))
