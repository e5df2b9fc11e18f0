"""The suites of guest tests: one file per suite in suites/, one boot per suite.

    suite.py --list [NAME]     one line per suite: name, time limit, runner options (shell-quoted);
                               without a name, all but those that run by hand
    suite.py --list-checked [--short]   the same for the suites that a kernel with checkers can run; --short: for
                               those that the routine run boots there
    suite.py --files NAME [--short]   the suite's test files, and pytest's options that select from them; --short:
                               what that routine run takes of it
    suite.py --count NAME DIR  "passed failed" from what the guest left in DIR, complaints on stderr

A suite file (TOML) has: fabric, driver (as for `scripts/guest run`), tests (files of this folder), and may
have: param, smp, mem, timeout (seconds), allow_log (list of expressions), plain (true), icount (true), kernel, append
(kernel parameters), by_hand (true: runs only when it is named), only (which tests, as an expression of pytest's -k),
checked (true, or such an expression: what the routine run takes of it on a kernel with checkers; false: it cannot
run there).
"""

import pathlib
import shlex
import sys
import tomllib

HERE = pathlib.Path(__file__).parent
KNOWN = {"fabric", "driver", "tests", "param", "smp", "mem", "timeout", "allow_log", "plain", "kernel", "about",
         "append", "by_hand", "only", "checked", "icount"}


def load(name):
    path = HERE / "suites" / f"{name}.toml"
    if not path.is_file():
        sys.exit(f"there is no suite '{name}'; suites: {' '.join(names())}")
    suite = tomllib.loads(path.read_text())
    unknown = set(suite) - KNOWN
    missing = {"fabric", "driver", "tests"} - set(suite)
    if unknown or missing:
        sys.exit(f"{path}: unknown keys {sorted(unknown)}, missing keys {sorted(missing)}")
    for f in suite["tests"]:
        if not (HERE / f).is_file():
            sys.exit(f"{path}: there is no {f}")
    return suite


def names():
    return sorted(p.stem for p in (HERE / "suites").glob("*.toml"))


def routine():
    return [name for name in names() if not load(name).get("by_hand")]


def options(suite):
    args = ["--fabric", suite["fabric"], "--driver", suite["driver"], "--timeout", str(suite.get("timeout", 900))]
    for key in ("param", "smp", "mem", "kernel", "append"):
        if key in suite:
            args += [f"--{key}", str(suite[key])]
    for expression in suite.get("allow_log", []):
        args += ["--allow-log", expression]
    if suite.get("icount"):
        args.append("--icount")
    if suite.get("plain"):
        args.append("--plain")
    return args


def selection(suite, short):
    """Options of pytest that select tests."""
    expressions = [suite["only"]] if "only" in suite else []
    if short and isinstance(suite.get("checked"), str):
        expressions.append(suite["checked"])
    return ["-k", " and ".join(f"({e})" for e in expressions)] if expressions else []


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


def count(folder):
    """(passed, failed, complaints). A test without a result counts as failed, and so does a skipped one:
    a suite names only tests that must run on its fabric."""
    collected = lines(folder / "collected")
    results = dict(reversed(line.split(" ", 1)) for line in lines(folder / "results"))
    complaints = []
    if not collected:
        complaints.append("no test was collected")
    for test in collected:
        result = results.get(test, "no result")
        if result != "passed":
            complaints.append(f"{result}: {test}")
    return len(collected) - len(complaints) if collected else 0, len(complaints), complaints


def main():
    match sys.argv[1:]:
        case ["--list", *which]:
            # One argument may hold several names: `make test SUITE="x y"`.
            for name in [n for w in which for n in w.split()] or routine():
                print(name, shlex.join(options(load(name))))
        case ["--list-checked", *short] if short in ([], ["--short"]):
            for name in [n for n in names() if load(n).get("checked")] if short else routine():
                if load(name).get("checked", True):
                    print(name, shlex.join(options(load(name))))
        case ["--files", name, *short] if short in ([], ["--short"]):
            suite = load(name)
            print("\n".join([*suite["tests"], *selection(suite, bool(short))]))
        case ["--count", name, folder]:
            passed, failed, complaints = count(pathlib.Path(folder))
            for c in complaints:
                print(f"{name}: {c}", file=sys.stderr)
            print(passed, failed)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
