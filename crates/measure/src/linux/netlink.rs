//! Just enough netlink (RFC 3549) to make veth pairs, give them addresses and switch their
//! offloads, without an external program.

use crate::{Error, error::Context as _};
use rustix::{
    fd::OwnedFd,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, sockopt},
};
use std::{io, time::Duration};

// linux/netlink.h
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
/// Fail if the object exists.
pub const NLM_F_EXCL: u16 = 0x200;
/// Create the object.
pub const NLM_F_CREATE: u16 = 0x400;
const NLA_F_NESTED: u16 = 0x8000;
const NLA_TYPE_MASK: u16 = 0x3fff;
const HEADER: usize = 16;

/// A request under construction.
#[derive(Debug, Clone)]
pub struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// A request of `kind` with extra `flags` and the family's fixed header `body`.
    pub fn new(kind: u16, flags: u16, body: &[u8]) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&(flags | NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
        bytes.extend_from_slice(&1u32.to_ne_bytes());
        bytes.extend_from_slice(&0u32.to_ne_bytes());
        bytes.extend_from_slice(body);
        Request { bytes }
    }

    /// Appends an attribute.
    pub fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let length = (4 + value.len()) as u16;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.pad();
        self
    }

    /// Appends a NUL-terminated string.
    pub fn string(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    /// Appends a nested attribute whose content `fill` appends.
    pub fn nested(mut self, kind: u16, fill: impl FnOnce(Request) -> Request) -> Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes
            .extend_from_slice(&(kind | NLA_F_NESTED).to_ne_bytes());
        let mut this = fill(self);
        let length = (this.bytes.len() - start) as u16;
        this.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        this
    }

    /// Appends bytes that are no attribute (a header inside a nest).
    pub fn raw(mut self, value: &[u8]) -> Self {
        self.bytes.extend_from_slice(value);
        self.pad();
        self
    }

    fn pad(&mut self) {
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
    }

    fn finish(mut self) -> Vec<u8> {
        let length = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes
    }
}

/// A netlink socket, bound to the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
}

impl Netlink {
    /// Opens a socket for links and addresses.
    ///
    /// # Errors
    /// What the system says.
    pub fn route() -> Result<Self, Error> {
        // NETLINK_ROUTE is protocol 0, the family's default.
        Self::open(None)
    }

    /// Opens a socket for generic netlink families.
    ///
    /// # Errors
    /// What the system says.
    pub fn generic() -> Result<Self, Error> {
        Self::open(Some(netlink::GENERIC))
    }

    fn open(protocol: Option<rustix::net::Protocol>) -> Result<Self, Error> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )
        .context("opening a netlink socket")?;
        // The kernel answers at once; the bound only keeps a lost answer from hanging the run.
        let patience = Some(Duration::from_secs(5));
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, patience)
            .context("setting a timeout")?;
        Ok(Netlink { socket })
    }

    /// Sends `request` and returns the payloads of all answers before its acknowledgement.
    ///
    /// # Errors
    /// The kernel's error for this request, or the socket's.
    pub fn call(&self, request: Request) -> io::Result<Vec<Vec<u8>>> {
        rustix::net::send(&self.socket, &request.finish(), SendFlags::empty())?;
        let mut answers = Vec::new();
        let mut buffer = vec![0; 64 * 1024];
        // A bound on answers: none of our requests has more than a handful.
        for _ in 0..64 {
            let (n, _) = rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::empty())?;
            for (kind, payload) in messages(&buffer[..n]) {
                if kind != NLMSG_ERROR {
                    answers.push(payload.to_vec());
                    continue;
                }
                let code = payload.first_chunk().map(|c| i32::from_ne_bytes(*c));
                return match code {
                    Some(0) => Ok(answers),
                    Some(code) => Err(io::Error::from_raw_os_error(-code)),
                    None => Err(io::ErrorKind::InvalidData.into()),
                };
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// The messages of one datagram as (type, payload).
fn messages(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut list = Vec::new();
    while bytes.len() >= HEADER {
        let length = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
        if length < HEADER || length > bytes.len() {
            break;
        }
        let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
        list.push((kind, &bytes[HEADER..length]));
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    list
}

/// The attributes in `bytes` as (type without flags, value).
pub fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut list = Vec::new();
    while bytes.len() >= 4 {
        let length = usize::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
        if length < 4 || length > bytes.len() {
            break;
        }
        let kind = u16::from_ne_bytes([bytes[2], bytes[3]]) & NLA_TYPE_MASK;
        list.push((kind, &bytes[4..length]));
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    list
}

/// First attribute of `kind`.
pub fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes)
        .into_iter()
        .find(|(k, _)| *k == kind)
        .map(|(_, v)| v)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn builds_what_it_parses() {
        let request = Request::new(16, NLM_F_CREATE, &[0; 16])
            .string(3, "ab")
            .nested(18, |r| r.attribute(1, &[1, 2, 3, 4, 5]).attribute(2, &[9]))
            .attribute(4, &7u32.to_ne_bytes());
        let bytes = request.finish();
        assert_eq!(bytes.len() % 4, 0);
        let all = messages(&bytes);
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].0, 16);
        let body = &all[0].1[16..];
        assert_eq!(find(body, 3), Some(&b"ab\0"[..]));
        let nest = find(body, 18).unwrap();
        assert_eq!(find(nest, 1), Some(&[1u8, 2, 3, 4, 5][..]));
        assert_eq!(find(nest, 2), Some(&[9u8][..]));
        assert_eq!(find(body, 4), Some(&7u32.to_ne_bytes()[..]));
        assert_eq!(find(body, 99), None);
    }

    proptest! {
        #[test]
        fn parsers_take_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = messages(&bytes);
            let _ = attributes(&bytes);
        }
    }
}
