"""The answers that a comparison's runs give: what several coordinated schedulers bring over one, over
uncoordinated ones and over a partitioned cluster, and what they cost. Every setting (load, nodes, fill,
decision cost) is considered with the most workers that HOSS ran with. A rate is called different only if the
difference is beyond the noise, see `hossctl.compare.report.summary.NoiseTest`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hoss.errors import counted
from hossctl.choices import DEFAULT_SCHEDULER, ON_KUBERNETES, WITH_HOSS, Load, Mode
from hossctl.compare.catalogue import (
    BOUND,
    CONFLICTS,
    CPU_PER_POD,
    OVERCOMMITTED,
    STRANDED,
    STRANDED_ROOM,
    THROUGHPUT,
    Better,
    Figure,
    Unit,
    utilisation,
    written,
)
from hossctl.compare.cells import has_cost
from hossctl.compare.document import Cell, Comparison
from hossctl.compare.report.summary import (
    CellRuns,
    FigureDifference,
    NoiseTest,
    Summary,
    decision_title,
    mode_title,
    pairs,
    short_name,
)
from hossctl.figures import median
from hossctl.load.report import CARDS

Pair = tuple[CellRuns, CellRuns]  # another mode's cell, that of HOSS


@dataclass(frozen=True, slots=True)
class Headline:
    """One number for the top of the report."""

    value: str
    meaning: str


def sentences(comparison: Comparison, summary: Summary) -> list[str]:
    """An answer for each of: over one scheduler, over uncoordinated ones, over a partition; also where
    nothing was measured. Then, where they were measured, utilisation of a full cluster, schedulers, and
    kube-scheduler."""
    answers = [_over_one(comparison, summary), _over_uncoordinated(summary), _over_partitions(summary)]
    return [*answers, *_at_full(summary), *_between_schedulers(summary), *_beside_the_peer(summary)]


def headlines(summary: Summary) -> list[Headline]:
    """The measured ones of five numbers, and one more for each decision cost."""
    found = []
    for where, same in _by_cost(pairs(summary, Mode.SINGLE)):
        if one := _differences(summary, same, THROUGHPUT):
            noise = "" if any(difference.beyond_noise for difference in one) else "; not beyond the noise"
            meaning = (
                f"pods/s of {_workers(same)} with HOSS, by those of one{', ' * bool(where)}{where}{noise}"
            )
            found.append(Headline(f"{_ratio(one)} x", meaning))
    unchecked = pairs(summary, Mode.UNCOORDINATED)
    if unchecked:
        worst = _worst(unchecked)
        share = OVERCOMMITTED.written(worst.median(OVERCOMMITTED.of))
        found.append(Headline(share, f"of {worst.cell.nodes:,} nodes overcommitted when nobody coordinates"))
    if hoss := _largest(summary):
        found.append(
            Headline(f"{_overcommitted_with_hoss(summary):,}", "nodes overcommitted with HOSS, in any run")
        )
        refused = median([group.median(CONFLICTS.of) or 0.0 for group in hoss])
        found.append(
            Headline(CONFLICTS.written(refused), "of proposals refused with HOSS, and decided again")
        )
    parted = pairs(summary, Mode.PARTITIONED)
    if parted:
        left, right = (sum(pair[side].median(STRANDED.of) or 0.0 for pair in parted) for side in (0, 1))
        found.append(
            Headline(
                f"{left:,.0f}", f"pods left over by partitions though there was room; {right:,.0f} by HOSS"
            )
        )
    return found


def _over_one(comparison: Comparison, summary: Summary) -> str:
    found = pairs(summary, Mode.SINGLE)
    if not found:
        return "Over one scheduler: not measured."
    parts = []
    for where, same in _by_cost(found):
        cores = comparison.machine.cores
        crowded = (
            not has_cost(same[0][1].cell.decision) and max(hoss.cell.workers for _, hoss in same) >= cores
        )
        limits = f"on {counted(cores, 'core')} that all services share " if crowded else ""
        rates = _rates(_differences(summary, same, THROUGHPUT))
        parts.append(f"{where}{' ' * bool(where)}{limits}{_workers(same)} placed {rates}")
    refused = median([hoss.median(CONFLICTS.of) or 0.0 for _, hoss in found])
    cost = f"{CONFLICTS.written(refused)} of proposals refused and decided again"
    cpu = _differences(summary, found, CPU_PER_POD)
    if any(difference.beyond_noise for difference in cpu):
        cost += f", {_ratio(cpu)} times the CPU a pod"
    elif cpu and all(difference.noise_known for difference in cpu):
        cost += ", no more CPU a pod beyond the noise"
    return f"Over one scheduler: {'; '.join(parts)}; the price is {cost}."


def _by_cost(found: Sequence[Pair]) -> Iterator[tuple[str, list[Pair]]]:
    """The pairs of each decision cost, with words for the cost; no words where none was added in any."""
    costs = list(dict.fromkeys(hoss.cell.decision for _, hoss in found))
    for decision in costs:
        without = "without decision cost" if len(costs) > 1 else ""
        where = f"with {decision_title(decision)}" if has_cost(decision) else without
        yield where, [pair for pair in found if pair[1].cell.decision == decision]


def _over_uncoordinated(summary: Summary) -> str:
    found = pairs(summary, Mode.UNCOORDINATED)
    if not found:
        return "Over uncoordinated ones: not measured."
    worst = _worst(found)
    nodes = worst.median(OVERCOMMITTED.of) or 0.0
    if nodes:
        factor = max(run.overcommit.worst for run in worst.runs)
        share = written(Unit.SHARE, nodes / worst.cell.nodes)
        harm = (
            f"they overcommitted up to {nodes:,.0f} of {worst.cell.nodes:,} nodes ({share}), "
            f"the worst to {factor:.2f} times what it has"
        )
    else:
        harm = "they overcommitted no node in these runs"
    kept = _overcommitted_with_hoss(summary)
    ours = "HOSS none" if not kept else f"HOSS {kept:,}, which it must never do"
    rates = _rates(_differences(summary, found, THROUGHPUT))
    return f"Over uncoordinated ones: {harm}, {ours}; HOSS placed {rates}."


def _over_partitions(summary: Summary) -> str:
    parts = []
    if parted := pairs(summary, Mode.PARTITIONED):
        parts.append(
            f"{_left_over(parted)}, and HOSS placed {_rates(_differences(summary, parted, THROUGHPUT))}"
        )
    if locked := pairs(summary, Mode.LOCKED):
        parts.append(f"against one global lock it placed {_rates(_differences(summary, locked, THROUGHPUT))}")
    return f"Over a partitioned cluster: {'; '.join(parts) if parts else 'not measured'}."


def _at_full(summary: Summary) -> list[str]:
    """Whether several schedulers leave room unused that one scheduler fills, when all of it is requested. The
    difference is the median over runs of one seed, which have the same load."""
    parts = []
    full = [pair for pair in pairs(summary, Mode.SINGLE) if pair[0].cell.fill >= 1]
    for one, hoss in full:
        what, of = (
            ("cards", utilisation(CARDS)) if one.cell.load == Load.OPENB else ("cpu", utilisation("cpu"))
        )
        filled_by_one = {run.seed: filled for run in one.runs if (filled := of(run)) is not None}
        apart = [
            filled - filled_by_one[run.seed]
            for run in hoss.runs
            if (filled := of(run)) is not None and run.seed in filled_by_one
        ]
        if apart:
            shares = [written(Unit.SHARE, group.median(of) or 0.0) for group in (one, hoss)]
            points = f"{100 * median(apart):+.2f} points on the same load"
            where = ", ".join([*_named(one.cell), points])
            parts.append(f"{shares[1]} of all {what}, one scheduler {shares[0]} ({where})")
    return [f"Asked for all there is: {_workers(full)} with HOSS filled {'; '.join(parts)}."] if parts else []


def _named(cell: Cell) -> list[str]:
    """The load, and a scheduler that is not the default."""
    scheduler = [] if cell.scheduler == DEFAULT_SCHEDULER else [short_name(cell.scheduler)]
    return [short_name(cell.load), *scheduler]


def _between_schedulers(summary: Summary) -> Iterator[str]:
    """Which scheduler bound most pods, left the least room that pods cannot use, and was quickest, of each
    setting and mode with several."""
    for setting in summary.settings:
        groups = summary.of_setting(setting)
        for mode in dict.fromkeys(group.cell.mode for group in groups):
            cells = {
                scheduler: group
                for scheduler in summary.schedulers
                if (
                    group := summary.find(
                        setting, mode, summary.most_workers(setting, mode, scheduler), scheduler
                    )
                )
            }
            if len(cells) > 1:
                parts = [
                    f"{words} {text}"
                    for words, figure in _JUDGED
                    if (text := _ranked(summary, list(cells.items()), figure))
                ]
                yield f"Between schedulers ({mode_title(mode)}, {setting.title}): {'; '.join(parts)}."


_JUDGED = (("pods bound:", BOUND), ("room that pods cannot use:", STRANDED_ROOM), ("pods/s:", THROUGHPUT))


def _ranked(summary: Summary, cells: Sequence[tuple[str, CellRuns]], figure: Figure) -> str:
    """The schedulers with their medians, the best first. Those that differ from it by no more than noise are
    marked. Empty where fewer than two have the figure."""
    known = [
        (middle, name, group) for name, group in cells if (middle := group.median(figure.of)) is not None
    ]
    if len(known) < 2:
        return ""
    known.sort(key=lambda cell: cell[0], reverse=figure.better is Better.HIGHER)
    test = NoiseTest(figure.of, summary.groups.values(), figure.least)
    best, texts = known[0][2], []
    for middle, name, group in known:
        difference = test.difference(best, group)
        alike = difference is not None and difference.noise_known and not difference.beyond_noise
        mark = " (within the noise)" if alike and group is not best else ""
        texts.append(f"{short_name(name)} {figure.written(middle)}{mark}")
    return ", ".join(texts)


def _beside_the_peer(summary: Summary) -> list[str]:
    found = pairs(summary, Mode.KUBE_SCHEDULER)
    if not found:
        return []
    cpu = [
        difference.ratio
        for difference in _differences(summary, found, CPU_PER_POD)
        if difference.ratio is not None
    ]
    cost = f", at {median(cpu):.2f} times the CPU a pod" if cpu else ""
    rates = _rates(_differences(summary, found, THROUGHPUT))
    text = f"on the same API server {_workers(found)} with HOSS placed {rates}{cost}"
    return [f"Beside kube-scheduler: {text}. These cells pay for an API server and etcd, all others do not."]


def _left_over(parted: Sequence[Pair]) -> str:
    left, kept = (sum(pair[side].median(STRANDED.of) or 0.0 for pair in parted) for side in (0, 1))
    over = f", in {len(parted)} settings together" if len(parted) > 1 else ""
    if not left and not kept:
        return "neither left a pod over that had room"
    return f"partitions left {left:,.0f} pods over though some node had room, HOSS {kept:,.0f}{over}"


def _worst(found: Sequence[Pair]) -> CellRuns:
    """The other mode's cell with the largest share of nodes overcommitted."""
    return max(
        (other for other, _ in found),
        key=lambda group: (group.median(OVERCOMMITTED.of) or 0.0) / group.cell.nodes,
    )


def _overcommitted_with_hoss(summary: Summary) -> int:
    """The most overcommitted nodes in any run."""
    hoss = [group for group in summary.groups.values() if group.cell.mode in WITH_HOSS]
    return max(run.overcommit.nodes for group in hoss for run in group.runs)


def _largest(summary: Summary) -> list[CellRuns]:
    """The cell of HOSS with the most workers, of each setting and scheduler."""
    found = [
        summary.find(setting, Mode.HOSS, summary.most_workers(setting, Mode.HOSS, scheduler), scheduler)
        for setting in summary.settings
        for scheduler in summary.schedulers
    ]
    return [group for group in found if group is not None]


def _differences(summary: Summary, found: Sequence[Pair], figure: Figure) -> list[FigureDifference]:
    # The noise of runs at an API server is not that of the other runs.
    comparable = summary.only(on_kubernetes=any(hoss.cell.mode in ON_KUBERNETES for _, hoss in found))
    test = NoiseTest(figure.of, comparable.groups.values(), figure.least)
    differences = [test.difference(other, hoss) for other, hoss in found]
    return [
        difference for difference in differences if difference is not None and difference.ratio is not None
    ]


def _rates(differences: Sequence[FigureDifference]) -> str:
    """Words for the ratios of throughput, with no more certainty than the runs give."""
    if not differences:
        return "at rates that were not measured"
    within = sum(not difference.beyond_noise for difference in differences)
    count = len(differences)
    ratios = [difference.ratio or 0.0 for difference in differences]
    span = f"{min(ratios):.2f} to {max(ratios):.2f}" if count > 1 else f"{ratios[0]:.2f}"
    if not all(difference.noise_known for difference in differences):
        return f"{span} times as many pods a second in single runs, which is no proof: the noise is unknown"
    if within == count:
        return f"{span} times as many pods a second, which is within the noise of these runs"
    if 2 * within > count:
        return f"{span} times as many pods a second, in {within} of {count} settings within the noise"
    text = f"{_ratio(differences)} times as many pods a second"
    if count == 1:
        return text
    return f"{text} ({span} in {count} settings{f', {within} of them within the noise' if within else ''})"


def _ratio(differences: Sequence[FigureDifference]) -> str:
    return f"{median([difference.ratio or 0.0 for difference in differences]):.2f}"


def _workers(found: Sequence[Pair]) -> str:
    counts = sorted({hoss.cell.workers for _, hoss in found})
    return " or ".join(f"{count}" for count in counts) + (" scheduler" if counts == [1] else " schedulers")
