"""The control files of the vibfab module (tests/vibfab/README.md), as Python values."""

import contextlib
import pathlib
import re
import subprocess

import net

DEBUG = pathlib.Path("/sys/kernel/debug/vibfab")

# enum ib_port_state, enum ib_qp_state, enum ib_qp_type, enum ib_wc_status
DOWN, INIT, ARMED, ACTIVE = 1, 2, 3, 4
RESET, QINIT, RTR, RTS, SQD, SQE, ERR = range(7)
RC, UD = 2, 4
LOC_LEN_ERR, LOC_QP_OP_ERR, FLUSH_ERR, RETRY_EXC, RNR_EXC = 1, 2, 5, 12, 13
FAR_PORT = 65


def write(path, text):
    """One write: buffered files write again what failed, when they are closed."""
    with open(path, "wb", buffering=0) as f:
        f.write(text.encode())


def ctl(*commands):
    """Runs commands; an error of the module is an OSError here."""
    for c in commands:
        write(DEBUG / "ctl", c)


def value(text):
    with contextlib.suppress(ValueError):
        return int(text, 0)
    return text


def read_lines(path, first=None):
    """Lines of "key=value ..." of a file as dictionaries; with `first`, those that begin with that key."""
    found = []
    for line in path.read_text().splitlines():
        fields = dict(w.partition("=")[::2] for w in line.split())
        if first is None or next(iter(fields)) == first:
            found.append({k: value(v) for k, v in fields.items()})
    return found


def lines(name, first=None):
    """Lines of one of the module's files, see read_lines()."""
    return read_lines(DEBUG / name, first)


def port(name):
    """State and counters of a port, for example of vib0/1."""
    return next(p for p in lines("state", "port") if p["port"] == name)


def ports():
    return lines("state", "port")


def qps(port_name, kind=UD):
    """Queue pairs of a kind on a port; each has "device" and "qpn"."""
    device, num = port_name.split("/")
    found = []
    for q in lines("state", "qp"):
        owner, qpn = q["qp"].split("/")
        if owner == device and q["port"] == int(num) and q["type"] == kind:
            found.append({**q, "device": owner, "qpn": int(qpn, 0)})
    return found


def break_qps(which):
    """Moves queue pairs to ERR; who hears of the first may have taken others away, or be about to."""
    for q in which:
        try:
            ctl(f"qp {q['device']} {q['qpn']} err")
        except FileNotFoundError:
            pass
        except OSError:
            name = f"{q['device']}/{q['qpn']:#x}"
            if any(o["state"] != RESET for o in lines("state", "qp") if o["qp"] == name):
                raise


def hca(name):
    return next((h for h in lines("state", "hca") if h["hca"] == name), None)


def groups():
    """Groups of the embedded SA: {mgid: {..., "members": {switch port: join state}}}."""
    found = {}
    for g in lines("groups", "group"):
        members = re.findall(r"(\d+):(\d+),", str(g["members"]))
        found[g["mgid"]] = {**g, "members": {int(p): int(s) for p, s in members}}
    return found


def sa():
    return lines("groups", "sa")[0]


def rules():
    return lines("rules", "rule")


def strict():
    """Counters of the strict checks that are not zero."""
    return {k: v for line in lines("strict") for k, v in line.items() if v}


def ring():
    """The recorded packets, oldest first; "data" is bytes."""
    found = []
    for line in (DEBUG / "ring").read_text().splitlines():
        fields = dict(w.partition("=")[::2] for w in line.split())
        data = bytes.fromhex(fields.pop("data", ""))
        found.append({**{k: value(v) for k, v in fields.items()}, "data": data})
    return found


@contextlib.contextmanager
def rule(*words):
    """A fault rule for as long as the block lasts; gives a function that returns its line."""
    before = {r["rule"] for r in rules()}
    ctl("rule add " + " ".join(words))
    number = next(r["rule"] for r in rules() if r["rule"] not in before)
    try:
        yield lambda: next(r for r in rules() if r["rule"] == number)
    finally:
        ctl(f"rule del {number}")


def tshark(*args):
    """Decodes the ring with tshark; the text it prints."""
    path = "/tmp/ring.pcap"
    with open(path, "wb") as f:
        f.write((DEBUG / "pcap").read_bytes())
    return net.run(["tshark", "-n", "-r", path, *args]).stdout


def reset():
    """Back to a quiet fabric: no rules, no faults of the SA, all links up."""
    ctl("rule clear", "sa clear")
    for p in ports():
        if not p["link"]:
            ctl(f"port {p['port']} up")


@contextlib.contextmanager
def quiet(sound):
    """The frame of a test: it starts on a quiet fabric when `sound()` says yes, and leaves a quiet one, with nothing
    that the strict checks counted."""
    reset()
    net.wait_until("a sound start", sound)
    yield
    reset()
    assert strict() == {}


def kernel_log(pattern):
    return [line for line in subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout.splitlines()
            if re.search(pattern, line)]
