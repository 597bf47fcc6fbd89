"""The loss and the signals in NumPy, float64 and loops, independent of the package.

A recipe is a plain dict of its settings. `frozen` are the numbers that the loss treats as
constants.
"""

from typing import Any

import numpy as np

Array = Any  # NumPy, float64
Settings = dict[str, Any]
Given = dict[str, Any]


def log_ratio(how: Settings, given: Given, i: int, t: int) -> Any:
    """log r of token t of completion i."""
    own = given["mask"][i]
    steps = [given["new"][i, u] - given["old"][i, u] for u in np.flatnonzero(own)]
    if how["ratio"] == "none":
        return 0.0
    if how["ratio"] == "token":
        return float(given["new"][i, t] - given["old"][i, t])
    return sum(steps) / (len(steps) if how["ratio"] == "sequence_mean" else 1)


def bounds(how: Settings, given: Given, i: int, t: int) -> tuple[float, float]:
    """The ratios at which a push down and a push up end."""
    if how["trust"] == "target":
        return given["target_low"][i, t], given["target_high"][i, t]
    return 1 - how["clip_low"], 1 + how["clip_high"]


def objective(how: Settings, given: Given, frozen: Given, i: int, t: int) -> Any:
    """J of one token."""
    ratio, worth = float(np.exp(log_ratio(how, given, i, t))), given["advantage"][i, t]
    if how["trust"] in ("clip", "target"):
        low, high = bounds(how, given, i, t)
        delta = how["delta"] if how["trust"] == "clip" else None
        raw = ratio if delta is None else min(ratio, delta)
        return min(raw * worth, min(max(ratio, low), high) * worth)
    if how["trust"] == "cispo":
        return frozen["cispo_weight"][i, t] * worth * given["new"][i, t]
    if how["trust"] == "sapo":
        tau = how["sapo_tau_pos"] if worth > 0 else how["sapo_tau_neg"]
        return 4 / tau / (1 + np.exp(-tau * (ratio - 1))) * worth
    if how["trust"] == "vespo":
        return frozen["vespo_weight"][i, t] * worth * given["new"][i, t]
    if how["trust"] != "none":
        raise NotImplementedError(f"the oracle lacks trust={how['trust']}")
    return worth * given["new"][i, t] if how["ratio"] == "none" else ratio * worth


def vespo_weight(how: Settings, given: Given, i: int, t: int) -> Any:
    """φ(W) = e^λ W^k e^(-λW) of completion i, W with the correction for the sampler."""
    own = np.flatnonzero(given["mask"][i])
    log_w = sum(min(max(given["new"][i, u] - given["old"][i, u], -20), 20) for u in own)
    if how["importance_cap"] > 0:
        of_answer = how["importance_mode"].startswith("sequence")
        found = [importance(how, given, i, u) for u in (own[:1] if of_answer else own)]
        log_w += sum(min(float(np.log(max(w, 1e-8))), 20) for w in found)
    w = np.exp(min(max(log_w, float(np.log(1e-8))), 20))
    sign = "pos" if given["advantage"][i, t] >= 0 else "neg"
    k, rate = how[f"vespo_k_{sign}"], how[f"vespo_lambda_{sign}"]
    return np.exp(rate) * w**k * np.exp(-rate * w)


def distance(how: Settings, given: Given, i: int, t: int) -> Any:
    """k of one token, or of its completion."""
    if how["anchor"] == "none" or how["anchor_place"] == "reward":
        return 0.0
    x = given["new"][i, t] - given["ref"][i, t]
    if how["anchor_level"] == "sequence":
        own = np.flatnonzero(given["mask"][i])
        x = sum(given["new"][i, u] - given["ref"][i, u] for u in own)
    k = {"k1": x, "k2": x**2 / 2, "k3": np.exp(-x) - (-x) - 1}[how["anchor"]]
    return k * np.exp(log_ratio(how, given, i, t)) if how["anchor_reweighted"] else k


def weight(how: Settings, given: Given, i: int) -> Any:
    """w of the tokens of completion i."""
    rows, own, every = len(given["mask"]), given["mask"][i].sum(), given["mask"].sum()
    divisors = {
        "per_sequence": rows * max(own, 1),
        "per_completion": rows,
        "per_token": max(every, 1),
        "per_batch_token": max(every, 1),
        "constant": rows * given["max_length"],
        "sum": 1,
    }
    return float(1 / divisors[how["weight"]])


def value_loss(how: Settings, given: Given, i: int, t: int) -> Any:
    """The critic's loss on one token."""
    if given.get("values") is None:
        return 0.0
    value, before, goal = (given[k][i, t] for k in ("values", "old_values", "returns"))
    squares = [(value - goal) ** 2]
    if how["value_clip"] > 0:
        near = min(max(value, before - how["value_clip"]), before + how["value_clip"])
        squares.append((near - goal) ** 2)
    return float(max(squares) / 2)


def freeze(how: Settings, given: Given) -> Given:
    """Everything behind a stop_gradient, evaluated at the point `given`."""
    shape = given["mask"].shape
    names = ("cispo_weight", "vespo_weight", "importance", "top")
    frozen = {name: np.ones(shape) for name in names}
    if how["entropy_top_quantile"] < 1:
        floor = np.quantile(given["entropy"][given["mask"]], 1 - how["entropy_top_quantile"])
        frozen["top"] = (given["entropy"] >= floor).astype(float)
    for i, t in np.argwhere(given["mask"]):
        ratio = np.exp(log_ratio(how, given, i, t))
        frozen["cispo_weight"][i, t] = min(ratio, how["cispo_cap"])
        frozen["importance"][i, t] = near(how, given, i, t)
        if how["trust"] == "vespo":
            frozen["vespo_weight"][i, t] = vespo_weight(how, given, i, t)
        else:
            frozen["importance"][i, t] *= importance(how, given, i, t)
    return frozen


def importance(how: Settings, given: Given, i: int, t: int) -> Any:
    """The importance weight of token t of completion i, relative to the sampler."""
    if how["importance_cap"] == 0:
        return 1.0
    of_answer = how["importance_mode"].startswith("sequence")
    counted = np.flatnonzero(given["mask"][i]) if of_answer else [t]
    found = np.exp(sum(given["old"][i, u] - given["sampler"][i, u] for u in counted))
    inside = how["importance_floor"] <= found <= how["importance_cap"]
    if how["importance_mode"].endswith("mask"):
        return found if inside else 0.0
    return max(how["importance_floor"], min(found, how["importance_cap"]))


def near(how: Settings, given: Given, i: int, t: int) -> float:
    """0 if completion i is worse than its siblings and far from its sampler, otherwise 1."""
    worth = given["signs"][i] if how["trust"] == "target" else given["advantage"][i, t]
    if how["off_policy_mask"] == 0 or worth >= 0:
        return 1.0
    own = np.flatnonzero(given["mask"][i])
    gaps = [given["sampler"][i, u] - given["new"][i, u] for u in own]
    return float(np.mean(gaps) <= how["off_policy_mask"])


def loss(how: Settings, given: Given, frozen: Given) -> Any:
    """The number to minimise."""
    total = 0.0
    updated = sum(frozen["top"][i, t] for i, t in np.argwhere(given["mask"]))
    for i, t in np.argwhere(given["mask"]):
        pushed = frozen["top"][i, t] * frozen["importance"][i, t]
        pushed *= objective(how, given, frozen, i, t)
        term = how["beta"] * distance(how, given, i, t) - pushed
        term += how["value_coefficient"] * value_loss(how, given, i, t)
        total += weight(how, given, i) * term
        if how["entropy_bonus"] > 0:
            total -= (
                how["entropy_bonus"]
                * frozen["top"][i, t]
                * given["entropy"][i, t]
                / max(updated, 1)
            )
    return total


def gradient(how: Settings, given: Given, name: str, step: float = 1e-5) -> Array:
    """Central differences of the loss in one of its arrays, with frozen values held constant."""
    frozen, out = freeze(how, given), np.zeros(given["mask"].shape)
    for i, t in np.ndindex(*out.shape):
        ends = []
        for sign in (1, -1):
            moved = given[name].copy()
            moved[i, t] += sign * step
            ends.append(loss(how, given | {name: moved}, frozen))
        out[i, t] = (ends[0] - ends[1]) / (2 * step)
    return out


def kink_distance(how: Settings, given: Given) -> Any:
    """The distance of the nearest token from a point where the loss is not differentiable."""
    far = [1.0]
    for i, t in np.argwhere(given["mask"]):
        ratio = np.exp(log_ratio(how, given, i, t))
        far += [abs(ratio - bound) for bound in bounds(how, given, i, t)]
        far += [abs(ratio - how["delta"])] if how["delta"] else []
        if given.get("values") is not None:
            value, before, goal = (given[k][i, t] for k in ("values", "old_values", "returns"))
            far.append(abs(abs(value - before) - how["value_clip"]))
            near = min(max(value, before - how["value_clip"]), before + how["value_clip"])
            if near != value:
                far.append(abs((value - goal) ** 2 - (near - goal) ** 2))
    return float(min(far))


def signal(how: Settings, rewards: Array, groups: Array) -> Array:
    """The advantage of each completion from rewards [B], where NaN means none."""
    out = np.zeros(len(rewards))
    every = rewards[~np.isnan(rewards)]
    ddof = 1 if how["std"] == "sample" else 0
    for i, r in enumerate(rewards):
        own = rewards[(groups == groups[i]) & ~np.isnan(rewards)]
        others = np.delete(own, np.flatnonzero(own == r)[:1])
        same = len(own) == 0 or own.max() - own.min() <= 1e-6 * np.abs(own).max()
        kind = how["signal"]
        if np.isnan(r):
            continue
        if kind == "return":
            out[i] = r
        elif kind == "minus_batch_mean":
            out[i] = r - every.mean()
        elif same:
            continue
        elif kind == "group_mean":
            out[i] = r - own.mean()
        elif kind == "group_standard":
            out[i] = (r - own.mean()) / (own.std(ddof=ddof) + how["signal_eps"])
        elif kind == "batch_standard":
            out[i] = (r - own.mean()) / (every.std(ddof=ddof) + how["signal_eps"])
        elif kind == "leave_one_out":
            out[i] = r - others.mean()
        elif kind == "group_sign":
            far = abs(r - own.mean()) > 0.1 * own.std(ddof=ddof)
            out[i] = np.sign(r - own.mean()) if far else 0.0
    return out


def targets(given: Given) -> tuple[Array, Array, Array, Array]:
    """(sign, target probability, low, high) per token, by walking the tree of prefixes."""
    rows, columns = given["mask"].shape
    sign, target = np.zeros((rows, columns)), np.exp(given["old"])
    for i, t in np.argwhere(given["mask"]):
        seen: dict[int, list[int]] = {}
        for j in range(rows):
            same_group = given["group_ids"][i] == given["group_ids"][j]
            pushed = given["mask"][j, t]  # earlier tokens may be forced: the prefix has their ids
            equal = (given["token_ids"][i, :t] == given["token_ids"][j, :t]).all()
            if same_group and pushed and equal:
                seen.setdefault(int(given["token_ids"][j, t]), []).append(j)
        p = {token: float(np.exp(given["old"][js[0], t])) for token, js in seen.items()}
        signs = {token: np.sign(sum(given["signs"][j] for j in js)) for token, js in seen.items()}
        good = [token for token in seen if signs[token] > 0]
        bad = [token for token in seen if signs[token] < 0]
        room = 1 - sum(p[k] ** 2 for k in bad) - sum(p[k] for k in good)
        reach = sum(p[k] ** 0.5 - p[k] for k in good)
        own = int(given["token_ids"][i, t])
        sign[i, t] = signs[own]
        mine = float(np.exp(given["old"][i, t]))
        if own in good:
            share = min(1.0, max(room, 0.0) / reach)
            target[i, t] = mine + share * (mine**0.5 - mine)
        elif own in bad:
            target[i, t] = mine**2
    low = np.exp(given["old"])
    return sign, target, low, target / low
