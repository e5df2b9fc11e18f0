"""TCP and UDP flows with checked contents; an amount of data, not a time, ends them.

    flows.py serve PORT                              answers until killed
    flows.py send ADDRESS PORT FLOWS OCTETS [both]   exit status 0 when every flow came through whole
    flows.py datagrams ADDRESS PORT COUNT            exit status 0 when every UDP datagram came back unchanged

Each flow sends OCTETS of its own pattern; the server answers with their CRC. With "both" the server
sends as much back at the same time, which is checked too. Prints "N flows ok".

Datagrams have sizes from 8 octets to 9000, WINDOW of them are under way at a time, and none is sent twice:
a lost one fails. Prints "N datagrams ok".
"""

import random
import socket
import struct
import sys
import threading
import zlib

HEADER = struct.Struct("!QQ?")
CHUNK = 1 << 16
WINDOW = 8
LARGEST = 9000
# How long a datagram may take before it counts as lost; a loaded machine without KVM is slow.
PATIENCE_SECONDS = 60


def pattern(seed):
    return random.Random(seed).randbytes(CHUNK)


def pieces(seed, octets):
    data = pattern(seed)
    while octets:
        n = min(octets, CHUNK)
        yield data[:n]
        octets -= n


def crc_of(seed, octets):
    crc = 0
    for p in pieces(seed, octets):
        crc = zlib.crc32(p, crc)
    return crc


def send_all(sock, seed, octets):
    for p in pieces(seed, octets):
        sock.sendall(p)


def receive_crc(sock, octets):
    crc = 0
    while octets:
        data = sock.recv(min(octets, CHUNK))
        if not data:
            raise EOFError(f"{octets} octets missing")
        crc = zlib.crc32(data, crc)
        octets -= len(data)
    return crc


def receive_exactly(sock, n):
    data = b""
    while len(data) < n:
        more = sock.recv(n - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def answer(sock):
    with sock:
        try:
            seed, octets, both = HEADER.unpack(receive_exactly(sock, HEADER.size))
            back = threading.Thread(target=send_all, args=(sock, seed + 1, octets))
            if both:
                back.start()
            crc = receive_crc(sock, octets)
            if both:
                back.join()
            sock.sendall(struct.pack("!I", crc))
        except (OSError, EOFError) as e:
            print(f"flow broke off: {e}", file=sys.stderr)


def echo(port):
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        sock.bind(("::", port))
        while True:
            data, peer = sock.recvfrom(1 << 16)
            sock.sendto(data, peer)


def datagrams(address, port, count):
    kind = socket.AF_INET6 if ":" in address else socket.AF_INET
    numbers = random.Random(count)
    waiting, sent, good = {}, 0, 0
    with socket.socket(kind, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        sock.connect((address, port))
        sock.settimeout(PATIENCE_SECONDS)
        while good < count:
            while sent < count and len(waiting) < WINDOW:
                waiting[sent] = struct.pack("!Q", sent) + numbers.randbytes(numbers.randrange(LARGEST - 7))
                sock.send(waiting[sent])
                sent += 1
            try:
                data = sock.recv(1 << 16)
            except TimeoutError:
                print(f"lost: {sorted(waiting)}")
                break
            number = struct.unpack("!Q", data[:8])[0] if len(data) >= 8 else None
            if waiting.pop(number, None) != data:
                print(f"datagram {number} came twice or changed ({len(data)} octets)")
                break
            good += 1
    print(f"{good} datagrams ok")
    return 0 if good == count else 1


def serve(port):
    threading.Thread(target=echo, args=(port,), daemon=True).start()
    with socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024) as listener:
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=answer, args=(sock,), daemon=True).start()


def one_flow(address, port, seed, octets, both, failures):
    try:
        with socket.create_connection((address, port)) as sock:
            sock.sendall(HEADER.pack(seed, octets, both))
            sender = threading.Thread(target=send_all, args=(sock, seed, octets))
            sender.start()
            if both and receive_crc(sock, octets) != crc_of(seed + 1, octets):
                failures.append(f"flow {seed}: changed on the way back")
            sender.join()
            if struct.unpack("!I", receive_exactly(sock, 4))[0] != crc_of(seed, octets):
                failures.append(f"flow {seed}: changed on the way")
    except (OSError, EOFError) as e:
        failures.append(f"flow {seed}: {e!r}")


def send(address, port, flows, octets, both):
    failures = []
    threads = [
        threading.Thread(target=one_flow, args=(address, port, 2 * i, octets, both, failures)) for i in range(flows)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for f in failures:
        print(f)
    print(f"{flows - len(failures)} flows ok")
    return 1 if failures else 0


def main():
    match sys.argv[1:]:
        case ["serve", port]:
            serve(int(port))
        case ["send", address, port, flows, octets, *both]:
            sys.exit(send(address, int(port), int(flows), int(octets), both == ["both"]))
        case ["datagrams", address, port, count]:
            sys.exit(datagrams(address, int(port), int(count)))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
