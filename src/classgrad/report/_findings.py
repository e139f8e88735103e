"""What a result table says, in plain sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from classgrad.dynamics import Summary
from classgrad.report._results import ResultRow, percentage, points, steps

Named = list[tuple[str, Summary]]


def findings(rows: Sequence[ResultRow]) -> list[str]:
    """Say in at most two sentences what the algorithms did on one data set: who drops, who is soonest and best."""
    named = [(row.algorithm, row.summary) for row in rows if row.summary is not None]
    if not named:
        return ["Recall was not measured, so there is no result to tell."]
    return [sentence for sentence in (_drops(named), f"{_speed(named)} {_best(named)}".strip()) if sentence]


def listing(names: Sequence[str]) -> str:
    """Write names as a reader would.

    >>> listing(["gd", "sgd", "pcnsgd"])
    'gd, sgd and pcnsgd'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _drops(named: Named) -> str:
    judged = [(name, summary) for name, summary in named if not math.isnan(summary.mid_fraction)]
    dropping = [(name, summary) for name, summary in judged if summary.mid_fraction >= 0.5]
    seldom = [name for name, summary in judged if 0 < summary.mid_fraction < 0.5]
    calm = [name for name, summary in judged if summary.mid_fraction == 0]
    if not judged:
        return ""
    if not dropping and not seldom:
        return f"With {listing(calm)} the minority classes do not get worse at first."
    if not dropping:
        return f"With {listing(seldom)} the minority classes first get worse in some runs, but not in most."
    depths = [summary.mid_depth.mean for _, summary in dropping]
    least, most = points(min(depths)), points(max(depths))
    extent = most if least == most else f"{least.removesuffix('s').removesuffix(' point')} to {most}"
    told = (
        f"With {listing([name for name, _ in dropping])} the minority classes first get worse, by {extent}, "
        "before they are learnt (the minority initial drop)"
    )
    return f"{told}; with {listing(calm)} they do not." if calm else f"{told}."


def _speed(named: Named) -> str:
    goal = f"{percentage(named[0][1].tau.threshold)} macro recall"
    reached = sorted(
        ((summary.tau.value, name) for name, summary in named if math.isfinite(summary.tau.value)),
        key=lambda pair: pair[0],
    )
    never = [name for name, summary in named if not summary.tau.reached]
    if not reached:
        return f"No algorithm reaches {goal} with every seed."
    soonest, (latest, last) = reached[0][0], reached[-1]
    counted = steps(soonest)
    first = [name for value, name in reached if steps(value) == counted]
    told = f"{listing(first)} {'are' if len(first) > 1 else 'is'} the first to reach {goal}"
    told += f", after {counted} {'step' if counted == '1' else 'steps'}"
    if last not in first:
        told += f"; {last} needs {steps(latest)}"
        told += f", {latest / soonest:.2g} times as many" if soonest >= 1 else ""
    return f"{told}; {listing(never)} never {'do' if len(never) > 1 else 'does'}." if never else f"{told}."


def _best(named: Named) -> str:
    known = [(summary.peak.mean, name) for name, summary in named if not math.isnan(summary.peak.mean)]
    if len(known) < 2:
        return ""
    highest = percentage(max(known)[0], 1)
    best = [name for value, name in known if percentage(value, 1) == highest]
    if len(best) == len(known):
        return f"The highest macro recall, {highest}, is the same with all."
    return f"The highest macro recall, {highest}, is that of {listing(best)}."
