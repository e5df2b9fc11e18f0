#!/usr/bin/env python3
"""Makes tables and a plot of what the guests have measured.

    report.py FOLDER RUN...     FOLDER/RUN is the log folder of a guest that ran `measure`; FOLDER/RUN.profile what the
                                plugin counted, where it did

Writes FOLDER/results.json, report.md, ratios.svg, and the longest functions of each driver to profile.md."""

import collections
import json
import pathlib
import statistics
import sys

import counted
import plot

OURS, THEIRS = "ipoib_rs", "ib_ipoib"
TOP = 25


def unit(workload):
    """What a workload is measured by."""
    if "-rr" in workload:
        return "round trip"
    return "KiB" if workload.startswith("tcp") else "datagram"


def amount(result):
    return result["octets"] / 1024 if unit(result["workload"]) == "KiB" else result["units"]


def load(folder, run):
    """Results of one guest, with instructions by part where they were counted, and its windows."""
    results = json.loads((folder / run / "results.json").read_text())
    path = folder / f"{run}.profile"
    if not path.exists():
        return results, []
    symbols = counted.Symbols((folder / run / "kallsyms").read_text())
    windows = counted.read_windows(path, symbols)
    if len(windows) != len(results):
        sys.exit(f"report: {run}: {len(results)} results, {len(windows)} windows")
    for result in results:
        result["instructions"] = counted.parts(windows[result["window"]])
    return results, windows


def grouped(results):
    """{(workload, mtu): {driver: [result, ...]}}"""
    groups = collections.defaultdict(lambda: collections.defaultdict(list))
    for r in results:
        if amount(r):
            groups[r["workload"], r["mtu"]][r["driver"]].append(r)
    return groups


def median(results, f):
    return statistics.median(f(r) / amount(r) for r in results)


def kernel_instructions(result):
    """All but those of programs, which are the same for both drivers and measure nothing."""
    return sum(result["instructions"].values()) - result["instructions"].get(counted.PROGRAMS, 0)


def count_table(groups):
    lines = ["| workload | MTU | per | ours | ib_ipoib | ratio | driver: ours | ib_ipoib | ratio |",
             "|---|---|---|---|---|---|---|---|---|"]
    bars = []
    for (workload, mtu), of in groups.items():
        if not all("instructions" in r for d in of.values() for r in d) or len(of) < 2:
            continue
        whole = [median(of[d], kernel_instructions) for d in (OURS, THEIRS)]
        own = [median(of[d], lambda r: r["instructions"]["driver"]) for d in (OURS, THEIRS)]
        lines.append(f"| {workload} | {mtu} | {unit(workload)} | {whole[0]:.0f} | {whole[1]:.0f} | "
                     f"{whole[0] / whole[1]:.2f} | {own[0]:.0f} | {own[1]:.0f} | {own[0] / own[1]:.2f} |")
        bars.append((f"{workload}, MTU {mtu}", whole[0] / whole[1], own[0] / own[1]))
    return lines, bars


def clock_table(groups):
    lines = ["| workload | MTU | ours, per second | ib_ipoib | ratio | median, p99 (us): ours | ib_ipoib |",
             "|---|---|---|---|---|---|---|"]
    for (workload, mtu), of in groups.items():
        if any("instructions" in r for d in of.values() for r in d) or len(of) < 2:
            continue
        rate = [1e9 / median(of[d], lambda r: r["ns"]) for d in (OURS, THEIRS)]
        trips = ["-", "-"]
        if "-rr" in workload:
            trips = [", ".join(f"{statistics.median(r[k] for r in of[d]) / 1000:.0f}" for k in ("median", "p99"))
                     for d in (OURS, THEIRS)]
        lines.append(f"| {workload} ({unit(workload)}) | {mtu} | {rate[0]:.0f} | {rate[1]:.0f} | "
                     f"{rate[0] / rate[1]:.2f} | {trips[0]} | {trips[1]} |")
    return lines


def profile_text(results, windows):
    """The functions that take most in the first round of each workload."""
    lines = []
    for r in results:
        if r["round"] or not windows:
            continue
        window, per = windows[r["window"]], amount(r)
        shown = sorted(window.items(), key=lambda x: -x[1])
        shown = [s for i, s in enumerate(shown) if i < TOP or s[0][1] in counted.DRIVERS and s[1] > per]
        names = counted.readable([f for (f, _), _ in shown])
        lines += [f"## {r['workload']}, MTU {r['mtu']}, {r['driver']}: per {unit(r['workload'])}", "", "```"]
        lines += [f"{n / per:10.1f}  {part}" for part, n in counted.parts(window).most_common()]
        lines += [""] + [f"{n / per:10.1f}  {counted.part_of(f, m):9} {names[f]}" for (f, m), n in shown]
        lines += ["```", ""]
    return lines


def main():
    folder = pathlib.Path(sys.argv[1])
    everything, details = [], []
    for run in sys.argv[2:]:
        results, windows = load(folder, run)
        details += profile_text(results, windows)
        everything += [{"run": run, **r} for r in results]
    (folder / "results.json").write_text(json.dumps(everything, indent=1))
    groups = grouped(everything)
    table, bars = count_table(groups)
    timed = clock_table(groups)
    text = ["# Measured", ""]
    if len(table) > 2:
        text += ["Kernel instructions, medians; less is better:", "", *table, ""]
        (folder / "ratios.svg").write_text(plot.bars(bars))
    if len(timed) > 2:
        text += ["By the clock, medians; the times are this machine's:", "", *timed, ""]
    (folder / "report.md").write_text("\n".join(text))
    (folder / "profile.md").write_text("\n".join(["# Where the instructions go", "", *details]))
    print("\n".join(text))


if __name__ == "__main__":
    main()
