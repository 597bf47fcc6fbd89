"""How often the intervals of Compare hold: simulated sweeps, by settings, seeds and problems.

    python -m benchmarks.sweeps [--sweeps 2000]

A model's chance at a problem is the logistic function of a normal sum: how good the setting is, how
easy the problem, how well the two go together, and the run's own luck, which is the seed's. A sweep
counts as covered if the intervals of all settings hold the true difference to the first one.
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from grpo_tui.experiments.compare.effects import Shares, effect, spread_of
from grpo_tui.experiments.compare.values import Effect

EASY, LAST = 1.2, 1.0  # spread of the problems; how much better the last setting is than the first


@dataclass(frozen=True)
class Case:
    """A kind of sweep; `uneven` multiplies the seeds' spread of the second setting."""

    settings: int
    seeds: int
    problems: int
    samples: int = 1
    seed_spread: float = 0.3
    match_spread: float = 0.5
    uneven: float = 1.0

    def spread(self, setting: int) -> float:
        """How far the runs of a setting lie apart."""
        return self.seed_spread * (self.uneven if setting == 1 else 1.0)

    def levels(self) -> "np.typing.NDArray[np.float64]":
        """How good each setting is."""
        return np.linspace(0.0, LAST, self.settings)


CASES = (
    *(
        Case(settings, seeds, problems)
        for settings in (2, 4, 8)
        for seeds in (2, 3, 5)
        for problems in (40, 200)
    ),
    *(Case(4, 3, 100, 4, seeds, match) for seeds in (0.0, 0.1, 0.6, 1.0) for match in (0.0, 1.0)),
    *(Case(settings, 3, 200, 4, uneven=uneven) for settings in (2, 8) for uneven in (2.0, 3.0)),
    *(
        Case(settings, 1, problems, seed_spread=0.0)
        for settings in (2, 8)
        for problems in (40, 100)
    ),
    Case(4, 1, 100, seed_spread=0.6),
)


def sweep(case: Case, random: np.random.Generator) -> list[Shares]:
    """Draw one sweep: the shares of right answers by run and problem, for each setting."""
    easy = random.normal(0, EASY, case.problems)
    shares = []
    for setting, level in enumerate(case.levels()):
        match = random.normal(0, case.match_spread, case.problems)
        luck = random.normal(0, case.spread(setting), (case.seeds, 1))
        chance = 1 / (1 + np.exp(-(level + easy + match + luck)))
        shares.append(random.binomial(case.samples, chance) / case.samples)
    return shares


def truth(case: Case) -> list[float]:
    """Each setting's mean chance over all problems and seeds, by Gauss-Hermite quadrature."""
    points, weights = np.polynomial.hermite_e.hermegauss(80)
    means = []
    for setting, level in enumerate(case.levels()):
        wide = math.hypot(EASY, case.match_spread, case.spread(setting))
        means.append(float((weights / (1 + np.exp(-level - wide * points))).sum() / weights.sum()))
    return means


def effects(shares: list[Shares]) -> list[Effect]:
    """Every setting against the first."""
    spread = spread_of(shares)
    return [
        effect(setting_shares, shares[0], spread, len(shares) - 1) for setting_shares in shares[1:]
    ]


def coverage(case: Case, sweeps: int, seed: int = 0) -> tuple[float, float]:
    """The share of sweeps in which all intervals hold, and the mean half width."""
    random, means = np.random.default_rng(seed), truth(case)
    held, widths = 0, []
    for _ in range(sweeps):
        estimates = effects(sweep(case, random))
        held += all(
            estimate.low <= mean - means[0] <= estimate.high
            for estimate, mean in zip(estimates, means[1:], strict=True)
        )
        widths.append(np.mean([(estimate.high - estimate.low) / 2 for estimate in estimates]))
    return held / sweeps, float(np.mean(widths))


def table(sweeps: int) -> Iterator[str]:
    """The lines of a table, of which docs/comparing.md has some."""
    yield (
        "| settings | seeds | problems | answers each | spread of seeds | of the second setting "
        "| spread of matches | all intervals hold | half width |"
    )
    yield "|" + " --- |" * 9
    for case in CASES:
        held, half = coverage(case, sweeps)
        yield (
            f"| {case.settings} | {case.seeds} | {case.problems} | {case.samples} "
            f"| {case.seed_spread:g} | × {case.uneven:g} | {case.match_spread:g} "
            f"| {100 * held:.1f} % | {100 * half:.1f} points |"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=2000)
    for line in table(parser.parse_args().sweeps):
        print(line, flush=True)
