"""The host's side of the tests: Python's sockets on the kernel's own TCP."""

import errno
import hashlib
import os
import selectors
import socket
import struct
import sys
import time

BLOCK = 1 << 20


def say(*words):
    print(*words, flush=True)


def send_all(s, total):
    """Sends `total` bytes that no two blocks repeat; returns their digest."""
    digest = hashlib.sha256()
    block = bytearray(os.urandom(BLOCK))
    sent = 0
    while sent < total:
        block[:8] = sent.to_bytes(8, "big")
        part = memoryview(block)[: min(BLOCK, total - sent)]
        s.sendall(part)
        digest.update(part)
        sent += len(part)
    return digest.hexdigest()


def receive_all(s):
    digest = hashlib.sha256()
    buf = bytearray(BLOCK)
    total = 0
    while n := s.recv_into(buf):
        digest.update(memoryview(buf)[:n])
        total += n
    return total, digest.hexdigest()


def listener(host, port, backlog=1024):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    s = socket.create_server((host, int(port)), family=family, backlog=backlog)
    say("ready")
    return s


def accept(host, port):
    return listener(host, port).accept()[0]


def connect(host, port):
    return socket.create_connection((host, int(port)), timeout=60)


def transfer(s, what, size=0):
    if what == "send":
        digest = send_all(s, int(size))
        s.shutdown(socket.SHUT_WR)
        # The other end closes when it has everything.
        assert s.recv(1) == b""
        say(int(size), digest)
    else:
        say(*receive_all(s))
    s.close()


def reset(s):
    """Closes with a reset."""
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def outcome(f):
    """The name of the error that `f` ends with."""
    try:
        return repr(f())
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e))


def until_error(s):
    """Reads until the stream ends or fails."""
    def read():
        while s.recv(65536):
            pass
        return "end"
    return outcome(read)


def half_close(s, size):
    """Closes our direction first, then takes what still comes."""
    sent = send_all(s, 1000)
    s.shutdown(socket.SHUT_WR)
    total, digest = receive_all(s)
    assert total == int(size), total
    say(sent, digest)


def half_closed(s, size):
    """The other end closes its direction first; ours still sends."""
    total, digest = receive_all(s)
    time.sleep(0.3)
    say(digest, send_all(s, int(size)))
    s.close()


def many(host, port, count, size):
    """Opens all connections before it uses any, then echoes through all of them at once."""
    count, size = int(count), int(size)
    socks = [connect(host, port) for _ in range(count)]
    say("connected")
    sel = selectors.DefaultSelector()
    state = {}
    for i, s in enumerate(socks):
        s.setblocking(False)
        data = hashlib.sha256(str(i).encode()).digest() * (size // 32)
        state[s] = [data, 0, bytearray()]
        sel.register(s, selectors.EVENT_READ | selectors.EVENT_WRITE)
    good = 0
    while state:
        events = sel.select(timeout=30)
        assert events, f"stuck with {len(state)} connections"
        for key, mask in events:
            s = key.fileobj
            data, sent, back = state[s]
            if mask & selectors.EVENT_WRITE and sent < len(data):
                sent += s.send(memoryview(data)[sent:])
                state[s][1] = sent
                if sent == len(data):
                    s.shutdown(socket.SHUT_WR)
                    sel.modify(s, selectors.EVENT_READ)
            if mask & selectors.EVENT_READ:
                part = s.recv(65536)
                back += part
                if not part:
                    assert back == data, f"{len(back)} of {len(data)} bytes"
                    good += 1
                    sel.unregister(s)
                    s.close()
                    del state[s]
    say(good)


def echo_server(host, port, count):
    """Echoes on many connections; ends after `count` of them."""
    # Loading it takes longer than most of the other tests.
    import asyncio

    done = 0

    async def main():
        finished = asyncio.Event()

        async def serve(r, w):
            nonlocal done
            while data := await r.read(65536):
                w.write(data)
                await w.drain()
            w.close()
            # What the kernel had no room for is still in this program, and would end with it.
            await w.wait_closed()
            done += 1
            if done == int(count):
                finished.set()

        server = await asyncio.start_server(serve, host, int(port), backlog=1024)
        say("ready")
        await finished.wait()
        server.close()
        say(done)

    asyncio.run(main())


def linger(s):
    """Holds the connection until the other end has closed or reset it."""
    s.sendall(b"!")
    say(until_error(s))


def write_after(s):
    """Writes until the other end's reset makes it fail."""
    def write():
        for _ in range(500):
            s.sendall(b"x" * 1000)
            time.sleep(0.01)
        return "nothing"
    say(outcome(write))


def unread(s):
    """Waits for data, then closes without reading it: a reset (RFC 2525, section 2.17)."""
    s.recv(1, socket.MSG_PEEK)
    time.sleep(0.1)
    s.close()
    say("closed")


def greet_and_reset(s):
    s.sendall(b"hello")
    time.sleep(0.1)
    reset(s)
    say("reset")


def sleepy(s):
    """Reads only after the window has been closed for some time."""
    time.sleep(1.5)
    say(*receive_all(s))
    s.close()


def again(host, port, count):
    """Connects from the same port again and again, each time closing second."""
    for _ in range(int(count)):
        while True:
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.settimeout(10)
            try:
                s.bind(("10.99.0.1", 45678))
                s.connect((host, int(port)))
                break
            except OSError as e:
                # Our own end of the last connection waits for its last acknowledgment.
                if e.errno not in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
                    raise
                s.close()
                time.sleep(0.001)
        assert s.recv(1) == b""
        s.close()
    say(count)


ON_STREAM = {
    "sleepy": sleepy,
    "transfer": transfer,
    "half_close": half_close,
    "half_closed": half_closed,
    "linger": linger,
    "write_after": write_after,
    "unread": unread,
    "greet_and_reset": greet_and_reset,
}


def main(how, *args):
    if how in ("accept", "connect"):
        host, port, what, *rest = args
        s = accept(host, port) if how == "accept" else connect(host, port)
        s.settimeout(300)
        ON_STREAM[what](s, *rest)
    elif how == "refused":
        say(outcome(lambda: connect(*args)))
    elif how == "many":
        many(*args)
    elif how == "again":
        again(*args)
    elif how == "echo_server":
        echo_server(*args)
    else:
        sys.exit(f"what is {how}?")


main(*sys.argv[1:])
