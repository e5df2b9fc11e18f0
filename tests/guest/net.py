"""What guest tests are written with: the two sides of a fabric, polling, traffic.

Limits on waiting are there to end a hanging test, not to measure: a loaded machine without KVM is ten
times slower than an idle one.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

SECONDS = 120


def asked(name, default):
    """A number that the environment or the guest's kernel line asks for (--append, or a suite's `append`)."""
    found = re.search(rf"\b{name}=(\d+)", pathlib.Path("/proc/cmdline").read_text())
    return int(os.environ.get(name) or (found[1] if found else default))


def wait_until(what, predicate, seconds=SECONDS, pause=0.05):
    """Polls until the predicate gives something true, and returns that."""
    deadline = time.monotonic() + seconds
    while True:
        value = predicate()
        if value:
            return value
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(pause)


def run(cmd, check=True, timeout=SECONDS, **kwargs):
    """Runs a command in the first namespace; text output, both streams captured."""
    kwargs.setdefault("stdin", subprocess.DEVNULL if "input" not in kwargs else None)
    if "input" in kwargs:
        kwargs.pop("stdin")
    done = subprocess.run(cmd, capture_output=True, text=True, timeout=timeout, **kwargs)
    if check:
        assert done.returncode == 0, f"{' '.join(cmd)}: status {done.returncode}\n{done.stdout}{done.stderr}"
    return done


@contextlib.contextmanager
def netns(name):
    """Moves this thread into a network namespace; sockets that it opens stay there."""
    with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{name}") as other:
        os.setns(other.fileno(), os.CLONE_NEWNET)
        try:
            yield
        finally:
            os.setns(home.fileno(), os.CLONE_NEWNET)


@dataclasses.dataclass
class Pings:
    sent: int
    received: int
    duplicates: int
    errors: int
    output: str

    @property
    def lost(self):
        return self.sent - self.received


class Side:
    """One end of the fabric: a namespace with one interface, in this guest or in the second one."""

    def __init__(self, letter):
        env = os.environ
        self.letter = letter
        self.remote = letter == "B" and env.get("GUEST_GUESTS") == "2"
        self.ns = letter.lower() if self.remote else env[f"NS_{letter}"]
        self.ip4, self.ip6 = env[f"IP4_{letter}"], env[f"IP6_{letter}"]
        self.port = env[f"PORT_{letter}"]
        self._iface = env[f"IF_{letter}"]

    def __repr__(self):
        return f"side {self.letter}"

    @property
    def iface(self):
        if not self._iface:
            # The other guest's interface: the only one besides lo in its namespace.
            links = json.loads(self.run("ip", "-j", "link").stdout)
            self._iface = next(x["ifname"] for x in links if x["ifname"] != "lo")
        return self._iface

    def forget_iface(self, name=""):
        """After the driver was loaded anew the interface may have another name."""
        self._iface = name

    def command(self, *cmd):
        inner = ["ip", "netns", "exec", self.ns, *map(str, cmd)]
        return ["on-b", *inner] if self.remote else inner

    def run(self, *cmd, **kwargs):
        return run(self.command(*cmd), **kwargs)

    def start(self, *cmd, **kwargs):
        """Starts a command and returns the process; its output is discarded unless asked for."""
        kwargs = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **kwargs}
        return subprocess.Popen(self.command(*cmd), **kwargs)

    def link(self):
        """`ip -s -d link` of the interface, as a dictionary."""
        return json.loads(self.run("ip", "-j", "-s", "-s", "-d", "link", "show", "dev", self.iface).stdout)[0]

    def stats(self):
        """The 64-bit interface counters: {"rx": {...}, "tx": {...}}."""
        return self.link()["stats64"]

    def ethtool_statistics(self):
        """`ethtool -S` of the interface."""
        shown = re.findall(r"^\s+(\w+): (\d+)$", self.run("ethtool", "-S", self.iface).stdout, re.MULTILINE)
        return {name: int(n) for name, n in shown}

    @property
    def mtu(self):
        return self.link()["mtu"]

    @property
    def hwaddr(self):
        return self.link()["address"]

    def read(self, path):
        return self.run("cat", path).stdout.strip()

    def carrier(self):
        """Whether the interface, which is up, has carrier."""
        return self.read(f"/sys/class/net/{self.iface}/carrier") == "1"

    def carrier_changes(self):
        return int(self.read(f"/sys/class/net/{self.iface}/carrier_changes"))

    def set_link(self, *args):
        self.run("ip", "link", "set", "dev", self.iface, *args)

    def neighbours(self, family=4):
        out = self.run("ip", f"-{family}", "-j", "neigh", "show", "dev", self.iface).stdout
        return {n["dst"]: n for n in json.loads(out or "[]")}

    def flush_neighbours(self):
        self.run("ip", "neigh", "flush", "dev", self.iface)

    def address(self, family):
        return self.ip4 if family == 4 else self.ip6

    def ping(self, dst, count=3, size=56, flood=False, extra=(), seconds=SECONDS):
        """Pings; no loss is asserted here. Without flood, replies set the pace (-A)."""
        before = self.echo_replies(dst)
        cmd = ["ping", "-q", "-n", "-c", count, "-s", size, "-W", 10, "-f" if flood else "-A", *extra, dst]
        out = self.run(*cmd, check=False, timeout=seconds).stdout
        m = re.search(r"(\d+) packets transmitted, (\d+) received", out)
        assert m, f"ping {dst} did not run: {out}"
        dup = re.search(r"\+(\d+) duplicates", out)
        err = re.search(r"\+(\d+) errors", out)
        sent, received, dups = int(m[1]), int(m[2]), int(dup[1]) if dup else 0
        # Once it has had a reply, ping leaves twice its longest round trip after the last request: on a machine
        # that is short of time the last replies come later than that.
        deadline = time.monotonic() + 5
        while 0 < received < sent and time.monotonic() < deadline:
            received = max(received, min(sent, self.echo_replies(dst) - before - dups))
            time.sleep(0.1)
        return Pings(sent, received, dups, int(err[1]) if err else 0, out)

    def echo_replies(self, dst):
        """How many echo replies the namespace has received so far."""
        name = "snmp6" if ":" in dst else "snmp"
        if self.remote:
            text = self.run("cat", f"/proc/net/{name}").stdout
        else:
            with netns(self.ns), open(f"/proc/thread-self/net/{name}") as f:
                text = f.read()
        if name == "snmp6":
            return int(re.search(r"^Icmp6InEchoReplies\s+(\d+)$", text, re.MULTILINE)[1])
        heads, values = re.findall(r"^Icmp: (.*)$", text, re.MULTILINE)
        return int(values.split()[heads.split().index("InEchoReps")])

    def reaches(self, dst):
        return self.run("ping", "-q", "-n", "-c", 1, "-W", 1, dst, check=False).returncode == 0

    def listening(self, port):
        return bool(self.run("ss", "-Hltn", f"sport = {port}").stdout)

    def kill_all(self, deadline):
        """Ends every process in the namespace."""
        where = ["on-b"] if self.remote else []
        while True:
            out = run([*where, "ip", "netns", "pids", self.ns], check=False).stdout
            # This process is in a namespace only while it opens a socket there.
            pids = [int(p) for p in out.split() if self.remote or int(p) != os.getpid()]
            if not pids:
                return
            assert time.monotonic() < deadline, f"processes {pids} on {self} do not end"
            for p in pids:
                if self.remote:
                    run(["on-b", "kill", "-KILL", str(p)], check=False)
                else:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(p, signal.SIGKILL)
            time.sleep(0.05)


class Iperf:
    """One iperf3 measurement; the numbers are for checks of delivery, not of speed."""

    port = 5200
    lock = threading.Lock()

    def __init__(self, client, server, *args, family=4, timeout=300):
        with Iperf.lock:
            Iperf.port += 1
            port = Iperf.port
        process = server.start("iperf3", "-s", "-1", "-p", port)
        try:
            wait_until("the iperf3 server", lambda: server.listening(port))
            cmd = ["iperf3", "-J", "-c", server.address(family), "-p", port, *args]
            done = client.run(*cmd, check=False, timeout=timeout)
        finally:
            if process.poll() is None and not server.remote:
                # It ends by itself after its client, unless that failed.
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
            process.wait(SECONDS)
        self.json = json.loads(done.stdout)
        assert "error" not in self.json, self.json["error"]
        assert done.returncode == 0, done.stderr
        self.end = self.json["end"]

    @property
    def received(self):
        """Octets that the receiving side got (client to server; the reverse with -R)."""
        return self.end["sum_received"]["bytes"] if "sum_received" in self.end else self.end["sum"]["bytes"]

    @property
    def received_reverse(self):
        """With --bidir: octets that the client got."""
        return self.end["sum_received_bidir_reverse"]["bytes"]

    @property
    def lost_percent(self):
        return self.end["sum"]["lost_percent"]

    @property
    def streams(self):
        return self.end["streams"]


class FlowServer:
    """The receiving end of flows.py on a side, for as long as the `with` block lasts."""

    port = 7100

    def __init__(self, side):
        self.side = side
        FlowServer.port += 1
        self.port = FlowServer.port

    def __enter__(self):
        self.process = self.side.start("python3", "-B", "/src/tests/guest/flows.py", "serve", self.port)
        wait_until("the flow server", lambda: self.side.listening(self.port))
        return self

    def __exit__(self, *exc):
        self.side.run("pkill", "-KILL", "-f", f"flows.py serve {self.port}", check=False)
        self.process.wait(SECONDS)

    def command(self, client, flows, octets, both=False, family=4):
        """The command that sends; to be run on the client side."""
        cmd = ["python3", "-B", "/src/tests/guest/flows.py", "send", self.side.address(family), self.port]
        return client.command(*cmd, flows, octets, *(["both"] if both else []))

    def datagrams(self, client, count, family=4, timeout=600):
        """Exchanges UDP datagrams; "N datagrams ok" when none was lost."""
        cmd = ["python3", "-B", "/src/tests/guest/flows.py", "datagrams", self.side.address(family), self.port, count]
        done = client.run(*cmd, check=False, timeout=timeout)
        return done.stdout.strip() or done.stderr

    def run(self, client, flows, octets, both=False, family=4, timeout=600):
        """Sends and returns what the sender says last; "N flows ok" when all went well."""
        done = run(self.command(client, flows, octets, both, family), check=False, timeout=timeout)
        return done.stdout.strip() or done.stderr
