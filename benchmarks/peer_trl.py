"""One of TRL's training steps per turn: python peer_trl.py MODEL WORK [all-weights].

It runs in TRL's own environment.
"""

import os
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks import gate, work
else:  # run by its path, without the package
    import gate
    import work

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MICRO_ROWS = 8


class Phases:
    """Seconds of the current step by phase."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.seconds = {"rollout": 0.0, "logprobs": 0.0}
        self.sampled = 0
        self.begun = time.perf_counter()

    def timed(self, name: str, call: Any, only: Any = lambda: True) -> Any:
        """Wrap a call to add its time to a phase while `only` holds."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                if only():
                    self.seconds[name] += time.perf_counter() - begun

        return wrapped


class Gate(TrainerCallback):
    """Holds the trainer before each step until its turn."""

    def __init__(self, phases: Phases, passes: int) -> None:
        self.phases, self.passes, self.count = phases, passes, 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report the last step and wait."""
        if self.count % self.passes == 0:
            if self.count == 0:
                gate.send(ready=True)
            gate.wait()
            self.phases.reset()
        self.count += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count a step once all passes over one batch of answers are done."""
        if self.count % self.passes:
            return
        total = time.perf_counter() - self.phases.begun
        parts = self.phases.seconds
        gate.send(
            seconds=total,
            **parts,
            update=total - sum(parts.values()),
            sampled=self.phases.sampled,
            memory=gate.peak_gigabytes(),
        )


def main(model: str, name: str, *options: str) -> None:
    """Train one step for every `go`."""
    torch.set_num_threads(int(os.environ.get("BENCH_THREADS", "2")))
    chosen = work.WORKS[name]
    micro = min(MICRO_ROWS, chosen.rows)
    data = [{"prompt": [{"role": "user", "content": text}]} for text in chosen.prompts] * 1000
    phases = Phases()

    def letters(completions: Any, completion_ids: Any, **_: Any) -> list[float]:
        phases.sampled += sum(map(len, completion_ids))
        return [work.reward(answer[0]["content"]) for answer in completions]

    config = GRPOConfig(
        output_dir=os.environ.get("BENCH_FOLDER", "/tmp/trl-out"),
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        max_steps=1000 * chosen.passes,
        shuffle_dataset=False,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=chosen.rows // micro,
        num_generations=work.GROUP,
        max_completion_length=chosen.new_tokens,
        num_iterations=chosen.passes,
        beta=work.BETA,
        loss_type="grpo",
        epsilon=0.2,
        learning_rate=work.LEARNING_RATE,
        lr_scheduler_type="constant",
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        model_init_kwargs={"dtype": "float32"},
        generation_kwargs={"min_new_tokens": chosen.new_tokens} if chosen.ignore_end else None,
    )
    adapter = LoraConfig(
        r=work.RANK,
        lora_alpha=int(work.RANK * work.SCALE),
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=letters,
        args=config,
        train_dataset=Dataset.from_list(data),
        peft_config=None if "all-weights" in options else adapter,
        callbacks=[Gate(phases, chosen.passes)],
    )
    trainer._generate_single_turn = phases.timed("rollout", trainer._generate_single_turn)
    trainer._get_per_token_logps_and_entropies = phases.timed(
        "logprobs", trainer._get_per_token_logps_and_entropies, lambda: not torch.is_grad_enabled()
    )
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
