//! The pcapng format (draft-ietf-opsawg-pcapng): blocks of a section with nanosecond timestamps,
//! and the direction in each packet's flags.

use crate::device::Medium;

/// Which way a packet went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The device received it.
    Inbound = 1,
    /// The device sent it.
    Outbound = 2,
}

/// A packet to record.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Number of its interface: the interface blocks of a section are counted from 0.
    pub interface: u32,
    /// When it passed, nanoseconds since 1970.
    pub ns: u64,
    /// Which way it went.
    pub direction: Direction,
    /// Its length, octets.
    pub len: u32,
    /// Its first octets, or all.
    pub bytes: &'a [u8],
}

fn put32(out: &mut Vec<u8>, v: u32) {
    out.extend_from_slice(&v.to_le_bytes());
}

fn put16(out: &mut Vec<u8>, v: u16) {
    out.extend_from_slice(&v.to_le_bytes());
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

/// An option of a block: code, value padded to 32 bits.
fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    put16(out, code);
    put16(out, value.len() as u16);
    out.extend_from_slice(value);
    pad(out);
}

/// A block: its type, and a length before and after the body (section 3.1).
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    put32(out, kind);
    put32(out, 0);
    body(out);
    let len = (out.len() - start + 4) as u32;
    put32(out, len);
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
}

/// Appends a section header block, which a file begins with.
pub fn section(out: &mut Vec<u8>) {
    block(out, 0x0a0d_0d0a, |b| {
        put32(b, 0x1a2b_3c4d);
        put16(b, 1);
        put16(b, 0);
        b.extend_from_slice(&u64::MAX.to_le_bytes());
        option(b, 4, b"perimeter");
        option(b, 0, b"");
    });
}

/// Appends an interface description block. `snap_len`: the octets of each packet that are kept at
/// most.
pub fn interface(out: &mut Vec<u8>, name: &str, medium: Medium, snap_len: u32) {
    // LINKTYPE_ETHERNET and LINKTYPE_RAW.
    let link_type = match medium {
        Medium::Ethernet => 1,
        Medium::Ip => 101,
    };
    block(out, 1, |b| {
        put16(b, link_type);
        put16(b, 0);
        put32(b, snap_len);
        option(b, 2, &name.as_bytes()[..name.len().min(255)]);
        option(b, 9, &[9]);
        option(b, 0, b"");
    });
}

/// Appends an enhanced packet block.
pub fn packet(out: &mut Vec<u8>, p: &Packet<'_>) {
    block(out, 6, |b| {
        put32(b, p.interface);
        put32(b, (p.ns >> 32) as u32);
        put32(b, p.ns as u32);
        put32(b, p.bytes.len() as u32);
        put32(b, p.len);
        b.extend_from_slice(p.bytes);
        pad(b);
        option(b, 2, &(p.direction as u32).to_le_bytes());
        option(b, 0, b"");
    });
}
