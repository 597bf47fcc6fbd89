"""Watch a run of TRL's GRPOTrainer: `trl.watch(trainer)` before `trainer.train()`."""

from grpo_tui.trl.hooks import watch
from grpo_tui.trl.problems import Problems, model, problems

__all__ = ["Problems", "model", "problems", "watch"]
