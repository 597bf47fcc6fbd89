"""Generate `data/trl_runs.npz`: whole runs of TRL's own GRPOTrainer with random GRPOConfigs.

Needs torch, transformers and trl==1.16.0; the tests do not. Run it as
`python -m tests.engine.training.make_trl_runs [FILE [SEED [COUNT]]]` with an interpreter that has
them. The trainer is TRL's, unchanged; what it samples is replaced by answers from a script, and
its random order of rows is recorded.
"""

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer

from tests.engine.training.trl_world import (
    DIGITS,
    END,
    LETTERS,
    REWARDS,
    flat,
    ids_of,
    prompts,
    shapes,
    write_model,
)

OUT = Path(__file__).parent / "data" / "trl_runs.npz"
SEED, COUNT = 20261125, 48
LOSS_TYPES = ("grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo")
MAX_LENGTH = 9
Case = dict[str, Any]


def draw(rng: np.random.Generator, number: int) -> Case:
    """Random settings of GRPOConfig, random answers and reward functions."""

    def one_of(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    loss = LOSS_TYPES[number % len(LOSS_TYPES)]
    settings: dict[str, Any] = {
        "loss_type": loss,
        "importance_sampling_level": one_of("token", "token", "sequence"),
        "scale_rewards": one_of("group", "batch", "none", True, False),
        "multi_objective_aggregation": one_of("sum_then_normalize", "normalize_then_sum"),
        "beta": one_of(0.0, 0.04, 0.3),
        "use_bias_correction_kl": one_of(True, False),
        "epsilon": one_of(0.05, 0.2, 0.3),
        "epsilon_high": one_of(None, 0.28, 1.5),
        "num_iterations": one_of(1, 1, 2, 3),
        "num_generations": one_of(2, 4),
        "mask_truncated_completions": one_of(False, False, True),
        "top_entropy_quantile": one_of(1.0, 1.0, 1.0, 1.0, 0.5),
        "entropy_coef": one_of(0.0, 0.0, 0.02),
        "off_policy_mask_threshold": one_of(None, None, 0.02),
        "temperature": one_of(1.0, 0.7, 1.25),
        "max_completion_length": MAX_LENGTH,
        "shuffle_dataset": False,
        "max_grad_norm": one_of(0.0, 0.3, 1.0),
        "seed": int(rng.integers(1000)),
    }
    if loss in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo"):
        settings["delta"] = one_of(None, None, 1.6)
    if loss == "sapo":
        settings |= {"sapo_temperature_pos": one_of(1.0, 2.0), "sapo_temperature_neg": 1.3}
    if loss == "vespo":
        settings |= {"vespo_k_pos": one_of(1.0, 2.0), "vespo_lambda_neg": one_of(0.5, 2.0)}
    if rng.random() < 0.2:
        settings |= {"use_adaptive_entropy": True, "entropy_target": one_of(0.5, 5.0)}
    settings |= _batches(one_of, settings["num_generations"])
    generations = one_of(2, 3)
    updates = int(settings["num_iterations"]) * _minibatches(settings)
    settings["max_steps"] = generations * updates
    if settings["beta"] and rng.random() < 0.4:
        settings |= {"sync_ref_model": True, "ref_model_sync_steps": updates}
    settings |= _optimizer(one_of, updates)
    names = [list(REWARDS)[i] for i in sorted(rng.permutation(3)[: one_of(1, 2, 3)].tolist())]
    if rng.random() < 0.5:
        settings["reward_weights"] = [one_of(0.5, 1.0, 2.0) for _ in names]
    rows = settings["per_device_train_batch_size"] * settings["steps_per_generation"]
    answers = [[_answer(rng) for _ in range(rows)] for _ in range(generations)]
    first = answers[0][: settings["num_generations"]]
    if rng.random() < 0.4:  # a group whose answers are equal has no signal
        answers[0][: len(first)] = [first[0]] * len(first)
    return {"settings": settings, "rewards": names, "answers": answers}


def _batches(one_of: Any, group: int) -> dict[str, int]:
    """Micro-batches that slice groups or hold several, and whole groups in each generation."""
    rows, accumulated = one_of(2, 4, 8), one_of(1, 1, 2, 3)
    generated = accumulated * one_of(1, 1, 2)
    while rows * generated % group or rows * generated < 2 * group:
        rows *= 2
    return {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": generated,
    }


def _minibatches(settings: dict[str, Any]) -> int:
    return int(settings["steps_per_generation"]) // int(settings["gradient_accumulation_steps"])


def _optimizer(one_of: Any, updates: int) -> dict[str, Any]:
    """Optimiser and schedule; a warm-up is whole generations, as ours is counted in these."""
    optim = one_of("adamw_torch", "adamw_torch_fused", "sgd", "sgd", "adafactor")
    schedule = one_of(
        "linear",
        "cosine",
        "constant",
        "constant_with_warmup",
        "cosine_with_min_lr",
        "polynomial",
        "cosine_with_restarts",
    )
    settings = {
        "optim": optim,
        "learning_rate": one_of(0.05, 0.2) if optim == "sgd" else one_of(0.003, 0.01),
        "weight_decay": one_of(0.0, 0.0, 0.1),
        "adam_beta1": one_of(0.9, 0.8),
        "adam_beta2": one_of(0.999, 0.95),
        "adam_epsilon": one_of(1e-8, 1e-5),
        "lr_scheduler_type": schedule,
        "warmup_steps": one_of(0, 0, updates, 0.3 if updates == 1 else updates),
    }
    if optim == "sgd":
        settings["optim_args"] = one_of(None, "momentum=0.8")
    if schedule == "cosine_with_min_lr":
        settings["lr_scheduler_kwargs"] = one_of({"min_lr": 1e-3}, {"min_lr_rate": 0.2})
    if schedule == "polynomial":
        settings["lr_scheduler_kwargs"] = one_of(None, {"lr_end": 1e-3})
    return settings


def _answer(rng: np.random.Generator) -> str:
    """Random letters, with an end if they are fewer than the limit."""
    length = int(rng.integers(1, MAX_LENGTH + 1))
    letters = "".join(rng.choice(list(LETTERS + DIGITS[:2]), length))
    return letters if length == MAX_LENGTH else letters + END


class Recorder(TrainerCallback):
    """What a run did, update by update and generation by generation."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.generated = 0
        self.updates: list[dict[str, Any]] = []
        self.generations: list[dict[str, Any]] = []
        self.micro: list[dict[str, float]] = []
        self.gradients: list[Any] = []

    def attach(self, trainer: GRPOTrainer) -> None:
        """Replace sampling by the script, and listen to what the trainer computes."""
        self.trainer = trainer
        score, compute = trainer._generate_and_score_completions, trainer._compute_loss
        trainer._generate_single_turn = self.sample
        trainer._log_before = trainer.log
        trainer.log = self.log

        def scored(inputs: Any) -> Any:
            output = score(inputs)
            rewards = {
                name: list(v[-1]) if isinstance(v[-1], list) else v[-1]
                for name, v in trainer._metrics["train"].items()
            }
            self.generations.append(
                {"advantages": output["advantages"].tolist(), "metrics": rewards, "order": []}
            )
            return output

        def computed(model: Any, inputs: Any) -> Any:
            loss = compute(model, inputs)
            mask = inputs["completion_mask"]
            self.micro.append({"loss": loss.item(), "tokens": float(mask.sum()), "rows": len(mask)})
            return loss

        trainer._generate_and_score_completions = scored
        trainer._compute_loss = computed
        trainer.add_callback(self)

    def sample(self, prompt_ids: Any, *_: Any, **__: Any) -> tuple[Any, None]:
        answers = self.case["answers"][self.generated]
        self.generated += 1
        assert len(answers) == len(prompt_ids)
        return [list(ids_of(text)) for text in answers], None

    def shuffled(self, batch: dict[str, Any]) -> Any:
        """TRL's own random order, which is the same for every value of the batch."""
        rows = torch.arange(len(batch["advantages"]))
        mixed = shuffle({**batch, "row": rows})
        self.generations[-1]["order"] = mixed.pop("row").tolist()
        return mixed

    def on_pre_optimizer_step(self, *_: Any, **given: Any) -> None:
        """Gradients, clipped already."""
        named = dict(given["model"].named_parameters())
        self.gradients.append(flat({name: named[name].grad.numpy() for name in shapes()}))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """The values of the update's micro-batches, before TRL takes their mean."""
        if "grad_norm" in logs:
            values = {name: list(v) for name, v in self.trainer._metrics["train"].items()}
            kept = {name: v for name, v in values.items() if name.startswith(OF_UPDATES)}
            self.updates.append(
                {
                    "grad_norm": float(logs["grad_norm"]),
                    "learning_rate": logs["learning_rate"],
                    "micro": self.micro,
                    "metrics": kept,
                }
            )
            self.micro = []
        self.trainer._log_before(logs, start_time)


OF_UPDATES = ("kl", "entropy", "clip_ratio/", "cispo_clip_ratio", "vespo/")
OF_GENERATIONS = ("reward", "frac_reward", "completions/", "num_tokens")
shuffle = grpo_trainer.shuffle_sequence_dict


def solve(case: Case, model: Path, folder: Path) -> dict[str, Any]:
    """Run TRL's trainer on a case."""
    config = GRPOConfig(
        output_dir=str(folder),
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        save_strategy="no",
        logging_steps=1,
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"},
        **case["settings"],
    )
    data = Dataset.from_list([{"prompt": text} for text in prompts()])
    trainer = GRPOTrainer(
        model=str(model),
        reward_funcs=[REWARDS[name] for name in case["rewards"]],
        args=config,
        train_dataset=data,
    )
    recorder = Recorder(case)
    recorder.attach(trainer)
    grpo_trainer.shuffle_sequence_dict = recorder.shuffled
    trainer.train()
    for generation in recorder.generations:
        generation["metrics"] = {
            name: value
            for name, value in generation["metrics"].items()
            if name.startswith(OF_GENERATIONS)
        }
    named = dict(trainer.model.named_parameters())
    return {
        "updates": recorder.updates,
        "generations": recorder.generations,
        "gradients": np.stack([recorder.gradients[0], recorder.gradients[-1]]),
        "weights": flat({name: named[name].detach().numpy() for name in shapes()}),
    }


def rounded(value: Any) -> Any:
    """Numbers with the nine digits of float32, and none for NaN, as JSON."""
    if isinstance(value, dict):
        return {name: rounded(v) for name, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    return value


def main(out: Path = OUT, seed: int = SEED, count: int = COUNT) -> None:
    assert trl.__version__ == "1.16.0", trl.__version__
    torch.set_num_threads(1)
    rng = np.random.default_rng(seed)
    cases, arrays = [], {}
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "model")
        for number in range(count):
            case = draw(rng, number)
            result = solve(case, model, Path(folder) / "out")
            arrays[f"gradients{number}"] = result.pop("gradients")
            arrays[f"weights{number}"] = result.pop("weights")
            cases.append(rounded(case | result))
            print(number, case["settings"]["loss_type"], len(result["updates"]), flush=True)
    out.parent.mkdir(exist_ok=True)
    packed: dict[str, Any] = arrays
    np.savez_compressed(out, cases=np.array(json.dumps(cases)), **packed)
    print(f"{len(cases)} runs in {out}")


if __name__ == "__main__":
    asked = sys.argv[1:]
    main(Path(asked[0]) if asked else OUT, *map(int, asked[1:]))
