"""Questions about rollouts: the groups of a step, one token by token, one prompt over the steps."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments import values as v
from experiments.db.numbers import loads, maybe
from experiments.db.paths import run_folder, tokens_file
from experiments.db.texts import escape
from experiments.errors import NothingStoredError
from experiments.read.connection import Reading, marks, text
from grpo_engine import events as ev

GROUP = (
    "id, run_id, attempt, step, idx, origin, example_key, prompt_hash, prompt_text, target, "
    "sampling, reward_mean, reward_std, no_signal, refill, has_tokens, nonfinite"
)
ROLLOUT = "id, group_id, idx, text, reward, advantage, tokens, finish, clip_fraction, kl, nonfinite"
CHUNK = 400


class RolloutQuestions(Reading):
    """What can be asked about rollouts."""

    def group_steps(self, run: int, origin: str = "train") -> tuple[int, ...]:
        """The steps that have groups of this origin."""
        rows = self._all(
            "SELECT DISTINCT step FROM rollout_group WHERE run_id = ? AND origin = ? "
            "AND hidden = 0 ORDER BY step",
            (run, origin),
        )
        return tuple(row[0] for row in rows)

    def groups(
        self, run: int, step: int | None, origin: str | None = None, *, rollouts: bool = True,
        after: int = 0, limit: int | None = None,
    ) -> tuple[v.GroupView, ...]:  # fmt: skip
        """The groups of a step, or of all, with their rollouts unless they are not wanted.

        For more pages give the last group's key as `after`.
        """
        condition, values = "run_id = ? AND hidden = 0 AND id > ?", [run, after]
        origins = (origin,) if origin else ("train", "eval", "pinned")
        condition += f" AND origin IN ({marks(origins)})"
        values += origins  # type: ignore[arg-type]
        if step is not None:
            condition += " AND step = ?"
            values.append(step)
        order = "id" if step is None else "origin DESC, idx, seq"
        rows = self._all(
            f"SELECT {GROUP} FROM rollout_group WHERE {condition} ORDER BY {order} LIMIT ?",
            [*values, -1 if limit is None else limit],
        )
        return self._groups(rows, rollouts)

    def group(self, group: int) -> v.GroupView:
        """One group with its rollouts."""
        found = self.groups_by_key([group])
        if not found:
            raise NothingStoredError(f"group {group} is not in the store")
        return found[0]

    def groups_by_key(self, keys: Sequence[int]) -> tuple[v.GroupView, ...]:
        """Groups with their rollouts, in the order of their keys."""
        rows = self._all(
            f"SELECT {GROUP} FROM rollout_group WHERE id IN ({marks(keys)}) ORDER BY id", keys
        )
        return self._groups(rows, True)

    def history(self, run: int, prompt_hash: str) -> tuple[v.GroupView, ...]:
        """The same prompt over the steps, oldest first."""
        rows = self._all(
            f"SELECT {GROUP} FROM rollout_group WHERE run_id = ? AND prompt_hash = ? "
            "AND hidden = 0 ORDER BY step, seq",
            (run, escape(prompt_hash)),
        )
        return self._groups(rows, True)

    def of_example(self, run: int, example_key: str) -> tuple[v.GroupView, ...]:
        """The groups of one example, oldest first, without rollouts."""
        rows = self._all(
            f"SELECT {GROUP} FROM rollout_group WHERE run_id = ? AND example_key = ? "
            "AND hidden = 0 ORDER BY step, seq",
            (run, escape(example_key)),
        )
        return self._groups(rows, False)

    def examples(self, run: int, origin: str, *, since: int = 0) -> dict[str, tuple[str, str]]:
        """Prompt and target of each example that has groups of this origin, first met first."""
        rows = self._all(
            "SELECT example_key, prompt_text, target, min(id) FROM rollout_group "
            "WHERE run_id = ? AND origin = ? AND step >= ? AND hidden = 0 "
            "GROUP BY example_key ORDER BY min(id)",
            (run, origin, since),
        )
        return {text(row[0]): (text(row[1]), text(row[2])) for row in rows}

    def pinned(self, run: int) -> tuple[v.PinnedPrompt, ...]:
        """The prompts that are followed through the run, in the order they were pinned."""
        rows = self._all(
            "SELECT example_key, prompt_hash, prompt_text, target, step, reward_mean "
            "FROM rollout_group WHERE run_id = ? AND origin = 'pinned' AND hidden = 0 "
            "ORDER BY step, idx",
            (run,),
        )
        by_hash: dict[str, list[Any]] = {}
        for row in rows:
            by_hash.setdefault(row[1], []).append(row)
        return tuple(
            v.PinnedPrompt(
                example_key=text(same[0][0]), prompt_hash=text(key),
                prompt_text=text(same[0][2]), target=text(same[0][3]),
                steps=tuple(row[4] for row in same),
                reward_means=tuple(row[5] for row in same),
            )
            for key, same in by_hash.items()
        )  # fmt: skip

    def tokens(self, run: int, group: int) -> v.TokenView | None:
        """The token numbers of a group; None where they were not recorded."""
        from experiments.db.tokens import read_blob

        row = self._one(
            "SELECT seq, has_tokens FROM rollout_group WHERE id = ? AND run_id = ?", (group, run)
        )
        if row is None or not row[1]:
            return None
        found = read_blob(tokens_file(run_folder(self.path, self._short(run))), row[0])
        if found is None:
            return None
        return v.TokenView(group=group, prompt_ids=found[0], rows=found[1])

    # -- rows to values -------------------------------------------------------------------------

    def _groups(self, rows: Sequence[Any], with_rollouts: bool) -> tuple[v.GroupView, ...]:
        rollouts = self._rollouts([row[0] for row in rows]) if with_rollouts else {}
        return tuple(_group(row, tuple(rollouts.get(row[0], ()))) for row in rows)

    def _rollouts(self, groups: Sequence[int]) -> dict[int, list[v.RolloutView]]:
        found: dict[int, list[v.RolloutView]] = {}
        for place in range(0, len(groups), CHUNK):
            part = groups[place : place + CHUNK]
            rows = self._all(
                f"SELECT {ROLLOUT} FROM rollout WHERE group_id IN ({marks(part)}) "
                "ORDER BY group_id, idx",
                part,
            )
            rewards = self._rewards([row[0] for row in rows])
            for row in rows:
                view = rollout_view(row, tuple(rewards.get(row[0], ())))
                found.setdefault(row[1], []).append(view)
        return found

    def _rewards(self, rollouts: Sequence[int]) -> dict[int, list[ev.RewardValue]]:
        found: dict[int, list[ev.RewardValue]] = {}
        for place in range(0, len(rollouts), CHUNK):
            part = rollouts[place : place + CHUNK]
            rows = self._all(
                "SELECT rollout_id, function, value, weight, reason, nonfinite "
                f"FROM rollout_reward WHERE rollout_id IN ({marks(part)}) "
                "ORDER BY rollout_id, position",
                part,
            )
            for key, name, value, weight, reason, nonfinite in rows:
                found.setdefault(key, []).append(
                    ev.RewardValue(
                        name=text(name),
                        value=maybe(value, "value", nonfinite),
                        weight=float("nan") if weight is None else weight,
                        reason=text(reason),
                    )
                )
        return found


def _group(row: Any, rollouts: Iterable[v.RolloutView]) -> v.GroupView:
    return v.GroupView(
        key=row[0], run=row[1], attempt=row[2], step=row[3], index=row[4], origin=row[5],
        example_key=text(row[6]), prompt_hash=text(row[7]), prompt_text=text(row[8]),
        target=text(row[9]), sampling=loads(row[10]),
        reward_mean=maybe(row[11], "reward_mean", row[16]),
        reward_std=maybe(row[12], "reward_std", row[16]), no_signal=text(row[13]), refill=row[14],
        has_tokens=bool(row[15]), rollouts=tuple(rollouts),
    )  # fmt: skip


def rollout_view(row: Any, rewards: tuple[ev.RewardValue, ...] = ()) -> v.RolloutView:
    """A row of `ROLLOUT` as a value."""
    return v.RolloutView(
        key=row[0], group=row[1], index=row[2], text=text(row[3]),
        reward=maybe(row[4], "reward", row[10]), advantage=maybe(row[5], "advantage", row[10]),
        tokens=row[6], finish=row[7], clip_fraction=maybe(row[8], "clip_fraction", row[10]),
        kl=maybe(row[9], "kl", row[10]), rewards=rewards,
    )  # fmt: skip
