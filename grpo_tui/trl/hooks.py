"""The methods of TRL's trainer that are wrapped, and the thread that records what they took.

On the training thread tensors are kept and, at the end of a generation batch, copied; all else is
done by the thread. Nothing here raises into the training: after an error the run says that it is
no longer watched, while every rank goes on taking part in the gathering of each batch.
"""

import contextlib
import copy
import dataclasses
import functools
import importlib.metadata
import queue
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_engine.config.trl_config import of_trainer
from grpo_engine.config.trl_names import TRANSLATED, evaluated
from grpo_engine.events import Group
from grpo_engine.policy.embedded import EMBEDDED
from grpo_engine.rewards.right import Right
from grpo_tui import record
from grpo_tui.trl import steps
from grpo_tui.trl.steps import KEY, TARGET, Batch, MicroBatch

TESTED = ("1.16",)
END_S = 60.0  # how long the end of the training waits for what is not recorded yet
WAITING = 8  # generation batches that may wait for the thread
ROW_NUMBERS = "grpo_tui_row_numbers"  # a column of TRL's batch, which it shuffles with the others
HOOKS = {
    "_generate": "the lengths of completions",
    "_calculate_rewards": "rewards by function",
    "_generate_and_score_completions": "completions",
    "_get_per_token_logps_and_entropies": "log-probabilities of each pass",
    "_compute_loss": "losses",
    "_maybe_log_save_evaluate": "metrics, gradient norms and learning rates",
    "evaluate": "evaluations",
    "train": "the end of the run",
}


def watch(
    trainer: Any,
    name: str = "",
    *,
    store: str | Path | None = None,
    task: str = "",
    tags: Sequence[str] = (),
    accuracy: str = "",
) -> record.Run | None:
    """Record a run of TRL's GRPOTrainer; call it before `trainer.train()`, on every rank.

    `accuracy` says which held-out answers are right: a reward function, or `NAME >= NUMBER`;
    without it, one that is known to score 0 or 1. Returns the run on the main process. What keeps
    it from being recorded is a `RecordWarning`, and the training goes on without it.
    """
    try:
        run, right = None, Right.of(accuracy, "", trainer.reward_func_names)
        if trainer.accelerator.is_main_process:
            run = _begin(trainer, name, store, task, tags)
        Watch(trainer, run, right)
    except Exception as error:
        text = f"the training is not watched: {type(error).__name__}: {error}"
        warnings.warn(text, record.RecordWarning, stacklevel=2)
        return None
    return run


def _begin(
    trainer: Any, name: str, store: str | Path | None, task: str, tags: Sequence[str]
) -> record.Run:
    """Begin the run with the settings of TRL's config, translated where they can be."""
    args = trainer.args
    values = {field.name: getattr(args, field.name) for field in dataclasses.fields(args)}
    values = {key: getattr(value, "value", value) for key, value in values.items()}
    folder = str(getattr(trainer.model.config, "_name_or_path", ""))
    model = next((name for name, path in EMBEDDED.items() if str(path) == folder), folder)
    known = {key: value for key, value in values.items() if key in TRANSLATED}
    settings, notes = of_trainer(known | {"model_name_or_path": model} | _adapter(trainer))
    count = settings.pop("steps", None)
    options: dict[str, Any] = {"model": model, "task": task, "seed": args.seed, "steps": count}
    version = importlib.metadata.version("trl")
    begin = functools.partial(
        record.run, name, trainer="TRL", version=version, store=store, tags=tags, **options
    )
    try:
        run = begin(settings=settings)
    except record.RecordError as error:
        notes = [f"TRL's settings are not translated: {error}"]
        run = begin()
    missing = [f"{what} ({name})" for name, what in HOOKS.items() if not hasattr(trainer, name)]
    if missing:
        notes.append(f"TRL {version} has no method for, and so nothing records: {missing}")
    elif not version.startswith(TESTED):
        notes.append(f"TRL {version} is not a version that was tested: {', '.join(TESTED)}")
    for note in notes:
        run.note(f"settings: {note}")
    return run


def _adapter(trainer: Any) -> dict[str, Any]:
    """The settings of PEFT's LoRA, by the names of TRL's command line."""
    adapters = getattr(trainer.model, "peft_config", None) or {}
    for adapter in adapters.values():
        if getattr(adapter, "r", None):
            return {
                "use_peft": True,
                "use_dora": bool(getattr(adapter, "use_dora", False)),
                "lora_r": adapter.r,
                "lora_alpha": adapter.lora_alpha,
            }
    return {"use_peft": False}


def facts_of(trainer: Any) -> steps.Trainer:
    """What the numbers of a trainer are read with."""
    args = trainer.args
    tokenizer = copy.deepcopy(trainer._tokenizer)  # one is not safe in two threads
    sampling = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    values = {name: getattr(args, name, None) for name in sampling}

    @functools.lru_cache(maxsize=1 << 17)
    def of_one(token: int) -> str:
        return str(tokenizer.decode([token], skip_special_tokens=True))

    def decode(ids: Sequence[int]) -> str:
        if len(ids) == 1:
            return of_one(ids[0])
        return str(tokenizer.decode(list(ids), skip_special_tokens=True))

    return steps.Trainer(
        functions=tuple(trainer.reward_func_names),
        weights=tuple(float(weight) for weight in trainer.reward_weights),
        loss_type=args.loss_type,
        processes=trainer.accelerator.num_processes,
        steps_per_generation=args.steps_per_generation,
        group_size=trainer.num_generations,
        ends=frozenset(trainer.eos_token_ids),
        sampling={name: float(value) for name, value in values.items() if value is not None},
        decode=decode,
    )


class Watch:
    """The hooks of one rank; `run` is None where another rank records."""

    def __init__(self, trainer: Any, run: record.Run | None, right: Right | None = None) -> None:
        self.trainer, self.run, self.right = trainer, run, right or Right("")
        self.facts = facts_of(trainer)
        self.broken = self.begun = False
        self.batch: Batch | None = None  # the generation batch that is trained on
        self.evaluated: list[Batch] = []
        self.scored = Batch()  # what is taken until its arrays are complete
        self.micro: MicroBatch | None = None  # inside the loss
        self.seen: dict[str, int] = {}  # values of each of TRL's metrics that were taken
        self.queue: queue.Queue[Callable[[record.Run], None] | None] = queue.Queue(WAITING)
        args, state = trainer.args, trainer.state
        self.per_step = max(
            1,
            args.steps_per_generation * trainer.num_iterations // args.gradient_accumulation_steps,
        )
        self.updates = state.global_step
        self.step = self.updates // self.per_step
        self.thread = threading.Thread(target=self._record, name="trl", daemon=True)
        if run is not None:
            self.thread.start()
        for name in HOOKS:
            if hasattr(trainer, name):
                hook = getattr(self, f"on_{name.removeprefix('_')}")
                setattr(trainer, name, functools.partial(hook, getattr(trainer, name)))

    # -- hooks: each takes the method that it replaces, and what this is called with --------------

    def on_generate(self, original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        with self._guard():  # truncated completions have an empty mask afterwards
            self.scored.lengths = [len(ids) for ids in result[1]]
        return result

    def on_calculate_rewards(self, original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self._phase("score")
        scores = original(*args, **options)
        with self._guard():
            self.scored.rewards = scores.detach().clone()
        return scores

    def on_generate_and_score_completions(self, original: Callable[..., Any], inputs: Any) -> Any:
        training = self.trainer.model.training
        if training:
            self._finish_step()
            self.begun = True
            self.step += 1
            self._phase("generate")
        self.scored = Batch()
        output = original(inputs)
        with self._guard():
            self._take(inputs, output, training)
        self._phase("update" if training else "evaluate")
        return output

    def _take(self, inputs: Any, output: dict[str, Any], training: bool) -> None:
        batch = self.scored
        batch.prompts = [copy.deepcopy(row["prompt"]) for row in inputs]
        if all(KEY in row for row in inputs):
            batch.keys = [str(row[KEY]) for row in inputs]
            batch.targets = [str(row.get(TARGET, "")) for row in inputs]
        batch.arrays = {name: value for name, value in output.items() if hasattr(value, "detach")}
        if not training:
            self.evaluated.append(_copied(batch))
            return
        ids = output["completion_ids"]
        output[ROW_NUMBERS] = ids.new_tensor(range(len(ids)))
        self.batch = batch

    def on_get_per_token_logps_and_entropies(
        self, original: Callable[..., Any], *args: Any, **options: Any
    ) -> Any:
        result = original(*args, **options)
        with self._guard():
            if self.micro is not None:
                self.micro.logprobs = result[0].detach()
                self.micro.entropies = result[1].detach()
        return result

    def on_compute_loss(self, original: Callable[..., Any], model: Any, inputs: Any) -> Any:
        batch = self.batch
        with self._guard():
            if batch is not None and self.trainer.model.training:
                parts = self.trainer.current_gradient_accumulation_steps
                self.micro = MicroBatch(len(batch.updates), inputs[ROW_NUMBERS], parts)
        try:
            loss = original(model, inputs)
        finally:
            micro, self.micro = self.micro, None
        with self._guard():
            if batch is not None and micro is not None:
                micro.loss = loss.detach()
                batch.micro_batches.append(micro)
        return loss

    def on_maybe_log_save_evaluate(
        self, original: Callable[..., Any], *args: Any, **options: Any
    ) -> Any:
        with self._guard():  # before TRL clears its metrics
            updates = self.trainer.state.global_step
            if self.batch is not None and updates > self.updates:  # not at an epoch's end
                self.updates = updates
                norm = args[1] if len(args) > 1 else options.get("grad_norm")
                values = {"grad_norm": norm, "learning_rate": options.get("learning_rate")}
                self.batch.updates.append(values | self._new_metrics())
        result = original(*args, **options)
        with self._guard():
            if not self.trainer._metrics["train"]:
                self.seen.clear()
        return result

    def _new_metrics(self) -> dict[str, float]:
        """Add TRL's metrics since the last call to the batch's, and return their means."""
        assert self.batch is not None
        means = {}
        for name, values in self.trainer._metrics["train"].items():
            new = [float(value) for value in values[self.seen.get(name, 0) :]]
            self.seen[name] = len(values)
            if new:
                self.batch.metrics.setdefault(name, []).extend(new)
                means[name] = sum(new) / len(new)
        return means

    def on_evaluate(self, original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.evaluated = []
        metrics = original(*args, **options)
        batches, self.evaluated = self.evaluated, []
        step, ranks = self.step, self._gathered(batches)
        with self._guard():
            size = self.trainer.args.num_generations_eval or self.facts.group_size
            facts = dataclasses.replace(self.facts, group_size=size)
            self._put(lambda run: _evaluation(run, step, ranks, metrics, facts, self.right))
        return metrics

    def on_train(self, original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            result = original(*args, **options)
        except BaseException as error:
            failure = error  # the name of an except clause ends with it
            self._end(lambda run: run.__exit__(type(failure), failure, None))
            raise
        self._finish_step()
        self._end(lambda run: run.close())
        return result

    # -- the end of a generation batch ------------------------------------------------------------

    def _finish_step(self) -> None:
        """Hand the batch of all ranks to the thread; every rank that trains calls this equally."""
        if not self.begun:
            return
        batch, self.batch, copied = self.batch, None, None
        with self._guard():
            copied = None if batch is None else _copied(batch)
        ranks = self._gathered([] if copied is None else [copied])
        step, facts = self.step, self.facts
        batches = [batch for rank in ranks for batch in rank]
        if len(batches) == facts.processes:
            self._put(lambda run: _finished(run, step, batches, facts))

    def _gathered(self, batches: list[Batch]) -> list[list[Batch]]:
        """The batches of each rank."""
        if self.facts.processes == 1:
            return [batches]
        from accelerate.utils import gather_object

        result: list[list[Batch]] = gather_object([batches])
        return result

    # -- the thread -------------------------------------------------------------------------------

    def _phase(self, phase: Any) -> None:
        step = max(1, self.step)
        if self.queue.qsize() < WAITING - 1:
            self._put(lambda run: run.phase(step, phase))

    def _put(self, act: Callable[[record.Run], None]) -> None:
        if self.run is None or self.broken:
            return
        try:
            self.queue.put_nowait(act)
        except queue.Full:
            self.run.note("a step is not recorded: recording is slower than training", "warning")

    def _end(self, act: Callable[[record.Run], None]) -> None:
        """Record the end, of a run that is no longer watched too, and wait for the thread."""
        if self.run is not None:
            with contextlib.suppress(queue.Full):
                self.queue.put(act, timeout=END_S)
                self.queue.put(None, timeout=END_S)
            self.thread.join(END_S)

    def _record(self) -> None:
        assert self.run is not None
        while (act := self.queue.get()) is not None:
            with self._guard():
                act(self.run)

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """Keep an error from the training; warn of the first, and record nothing more."""
        try:
            yield
        except Exception as error:
            if self.broken:
                return
            self.broken = True
            text = f"the training is no longer watched: {type(error).__name__}: {error}"
            with contextlib.suppress(Exception):
                if self.run is not None:
                    self.run.note(text, "warning")
                warnings.warn(text, record.RecordWarning, stacklevel=3)


def _copied(batch: Batch) -> Batch:
    """The batch with its tensors as arrays of NumPy."""
    return dataclasses.replace(
        batch,
        arrays={name: _array(value) for name, value in batch.arrays.items()},
        rewards=None if batch.rewards is None else _array(batch.rewards),
        micro_batches=[
            dataclasses.replace(
                micro,
                rows=_array(micro.rows),
                loss=None if micro.loss is None else float(micro.loss),
                logprobs=None if micro.logprobs is None else _array(micro.logprobs),
                entropies=None if micro.entropies is None else _array(micro.entropies),
            )
            for micro in batch.micro_batches
        ],
        updates=[
            {name: None if value is None else float(value) for name, value in update.items()}
            for update in batch.updates
        ],
    )


def _array(tensor: Any) -> Any:
    tensor = tensor.detach()
    if tensor.is_floating_point():
        tensor = tensor.float()
    return tensor.cpu().numpy().copy()


def _finished(run: record.Run, step: int, batches: list[Batch], facts: steps.Trainer) -> None:
    updates = steps.updates_of(batches, facts)
    metrics = steps.metrics_of(batches[0], updates)
    run.step(step, steps.groups_of(batches, facts), metrics=metrics, updates=updates)


def _evaluation(
    run: record.Run,
    step: int,
    ranks: list[list[Batch]],
    metrics: Mapping[str, Any],
    facts: steps.Trainer,
    right: Right,
) -> None:
    """Record the answers of an evaluation, and the means that TRL took of them."""
    groups = [
        group
        for batches in zip(*ranks, strict=True)  # of one batch of all ranks
        for group in steps.groups_of(batches, facts, "eval")
    ]
    run.groups(step, groups)
    run.evaluation(
        step,
        [record.problem_of(item.group, _correct(item.group, right)) for item in groups],
        metrics=evaluated(metrics),
        seconds=metrics.get("eval_runtime", float("nan")),
    )


def _correct(group: Group, right: Right) -> int | None:
    """How many of the answers are right; None if none of them was judged."""
    scores = [
        score.value
        for answer in group.rollouts
        for score in answer.rewards
        if score.name == right.function and score.value is not None
    ]
    return sum(map(right.accepts, scores)) if scores else None
