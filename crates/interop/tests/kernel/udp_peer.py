"""The host's side of the tests of datagrams: Python's sockets on the kernel's own UDP."""

import errno
import socket
import struct
import sys

LONGEST = 65507


def say(*words):
    print(*words, flush=True)


def content(n):
    return bytes((i * 7 + i // 251) & 0xFF for i in range(n))


def bound(host, port):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    s.bind((host, int(port)))
    s.settimeout(30)
    return s


def echo(host, port, count):
    """Sends `count` datagrams back to whoever sent them."""
    s = bound(host, port)
    say("ready")
    total = 0
    for _ in range(int(count)):
        data, peer = s.recvfrom(65536)
        assert data == content(len(data)), len(data)
        s.sendto(data, peer)
        total += len(data)
    say(total)


def ask(host, port, *sizes):
    """Sends datagrams of these sizes, each when the last one has come back."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.settimeout(30)
    s.connect((host, int(port)))
    for n in map(int, sizes):
        s.send(content(n))
        back = s.recv(65536)
        assert back == content(n), (n, len(back))
    say("good")


def refused(host, port):
    """What is told of a port that nobody has."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(30)
    s.connect((host, int(port)))
    s.send(b"anybody?")
    try:
        say(s.recv(100))
    except OSError as e:
        say(errno.errorcode[e.errno])


def burst(host, port, count, size):
    """Sends many datagrams as fast as it can, numbered."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((host, int(port)))
    pad = bytes(int(size) - 4)
    for n in range(int(count)):
        s.send(struct.pack(">I", n) + pad)
    say("sent")


def collect(host, port, count):
    """Takes `count` datagrams; how long they were, as runs of one length, and whether their octets
    follow on from one to the next."""
    s = bound(host, port)
    say("ready")
    runs, whole = [], b""
    for _ in range(int(count)):
        data = s.recv(65536)
        whole += data
        if runs and runs[-1][1] == len(data):
            runs[-1][0] += 1
        else:
            runs.append([1, len(data)])
    assert whole == content(len(whole))
    say(" ".join(f"{n}x{size}" for n, size in runs))


def dns(host, port, name, want):
    """Asks a name server for an address (RFC 1035)."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(30)
    labels = b"".join(bytes([len(p)]) + p.encode() for p in name.split("."))
    question = labels + b"\0" + struct.pack(">HH", 1, 1)
    s.sendto(struct.pack(">HHHHHH", 0x1234, 0x0100, 1, 0, 0, 0) + question, (host, int(port)))
    answer, peer = s.recvfrom(512)
    assert peer == (host, int(port)), peer
    ident, flags, questions, answers = struct.unpack(">HHHH", answer[:8])
    assert (ident, flags & 0x800F, questions, answers) == (0x1234, 0x8000, 1, 1)
    assert socket.inet_ntoa(answer[-4:]) == want, answer
    say("good")


WHAT = {"echo": echo, "ask": ask, "refused": refused, "burst": burst, "collect": collect, "dns": dns}

WHAT[sys.argv[1]](*sys.argv[2:])
