"""Advertises a router and a prefix on an interface, once: INTERFACE PREFIX LIFETIME MTU."""

import fcntl
import ipaddress
import socket
import struct
import sys

name, prefix, lifetime, mtu = sys.argv[1:5]
index = socket.if_nametoindex(name)
# Not from /sys, which shows the namespace that it was mounted in.
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    request = struct.pack("256s", name.encode())
    SIOCGIFHWADDR = 0x8927
    mac = fcntl.ioctl(probe.fileno(), SIOCGIFHWADDR, request)[18:24]

# RFC 4861, section 4.2; the kernel fills in the checksum.
message = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, int(lifetime), 0, 0)
message += bytes([1, 1]) + mac
message += struct.pack("!BBHI", 5, 1, 0, int(mtu))
message += struct.pack("!BBBBIII", 3, 4, 64, 0xC0, 3600, 1800, 0)
message += ipaddress.IPv6Address(prefix).packed

s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
s.sendto(message, ("ff02::1", 0, 0, index))
