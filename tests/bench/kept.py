#!/usr/bin/env python3
"""Compares what was counted with the figures in kept.json, so that no change makes the driver slower unnoticed.

    kept.py FOLDER            fails when a workload takes more instructions than kept, by more than the tolerance, or
                              was not counted
    kept.py --write FOLDER    keeps what was counted; raising a figure needs a reason in the commit

FOLDER/results.json is what report.py has made. The figures are those of the kernel `stock` and its compiler."""

import json
import pathlib
import sys

import report

KEPT = pathlib.Path(__file__).with_name("kept.json")
# What runs differ by, in hundredths: where interrupts fall, and what the allocator has at hand.
TOLERANCE = 3
# The figures: of the driver alone, and of all that the kernel does.
FIGURES = ("driver", "whole")


def figures(results):
    """{workload: {figure: instructions a unit}} of our driver, medians."""
    groups = {key: of[report.OURS] for key, of in report.grouped(results).items() if report.OURS in of}
    return {
        f"{workload}, MTU {mtu}": {
            "driver": round(report.median(of, lambda r: r["instructions"]["driver"]), 1),
            "whole": round(report.median(of, report.kernel_instructions), 1),
        }
        for (workload, mtu), of in groups.items()
        if all("instructions" in r for r in of)
    }


def compare(kept, counted):
    """Lines for people, and whether nothing is worse."""
    lines, good = [], True
    for name, figure in ((n, f) for n in kept for f in FIGURES):
        before, now = kept[name][figure], counted.get(name, {}).get(figure)
        if now is None:
            lines.append(f"WORSE {name}: {figure} was not counted")
            good = False
            continue
        change = 100 * (now / before - 1)
        worse = change > TOLERANCE
        word = "WORSE" if worse else "better" if change < -TOLERANCE else "same"
        lines.append(f"{word} {name}: {figure} {before} -> {now} ({change:+.1f} %)")
        good &= not worse
    return lines, good and bool(kept)


def main():
    write = sys.argv[1] == "--write"
    folder = pathlib.Path(sys.argv[-1])
    counted = figures(json.loads((folder / "results.json").read_text()))
    if write:
        KEPT.write_text(json.dumps(counted, indent=1) + "\n")
        return
    lines, good = compare(json.loads(KEPT.read_text()), counted)
    print("\n".join(lines))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
