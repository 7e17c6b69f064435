//! A hand-driven host on one receive and one transmit queue, in time that the test sets.
#![allow(dead_code, reason = "each test file uses its part")]

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use perimeter_base::desc::Offload;
use perimeter_base::{Bytes, PktBuf, PktPool, Time, TxHead, TxPages, TxRing, TxSlot};
use perimeter_link::mem::{Nic, NicConfig, PeerHandle};
use perimeter_link::{Device, RxFrame, RxQueue, TxQueue};
use perimeter_sync::Native;
use perimeter_wire::{Csum, FlowKey, Frame, SegOut, Seq, TcpFlags, TcpFrame, TcpOptions, Template};

pub struct Host {
    pub rx: Vec<Box<dyn RxQueue>>,
    pub tx: Vec<Box<dyn TxQueue>>,
    pub ring: TxRing,
    pub pool: PktPool,
    pub now: Time,
    pub config: NicConfig,
    pub handle: PeerHandle<Native>,
}

/// A segment received, with its payload.
#[derive(Debug)]
pub struct Got {
    pub tcp: TcpFrame,
    pub data: Vec<u8>,
    pub hash: Option<u32>,
}

pub fn key(config: &NicConfig, port: u16, peer_port: u16) -> FlowKey {
    let next = |ip| match ip {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(Ipv4Addr::to_bits(ip) + 1).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(Ipv6Addr::to_bits(ip) + 1).into(),
    };
    FlowKey {
        local: config.address(),
        remote: next(config.address()),
        local_port: port,
        remote_port: peer_port,
    }
}

impl Host {
    pub fn new(config: NicConfig) -> Host {
        let (nic, handle) = Nic::new(&Native::new(), config);
        let config = handle.config().clone();
        let (rx, tx) = Box::new(nic).open();
        Host {
            rx,
            tx,
            ring: TxRing::new(2048),
            pool: PktPool::new(4096),
            now: Time::from_millis(10),
            config,
            handle,
        }
    }

    /// Places a segment.
    pub fn place(&mut self, key: &FlowKey, seg: &SegOut, payload: &[u8]) {
        self.place_but(key, seg, payload, |_| {});
    }

    /// Places a segment with damage done to its headers.
    pub fn place_but(
        &mut self,
        key: &FlowKey,
        seg: &SegOut,
        payload: &[u8],
        damage: impl FnOnce(&mut TxHead),
    ) {
        let l2 = Some((self.config.mac, self.config.peer_mac));
        let (template, tcp) = match self.config.v6 {
            true => (Template::new(l2, key, 64, 0), 54),
            false => (Template::new_v4(l2, key, 64, 0, true), 34),
        };
        let mut d = self.ring.push().expect("room");
        d.hdr_len = template.emit(&mut d.hdr, 1, seg, payload.len() as u32) as u8;
        refer(&mut d, &[payload]);
        d.offload = Offload {
            csum_start: tcp,
            csum_offset: 16,
            segment_size: 0,
        };
        damage(&mut d);
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        let mut d = self.ring.push().expect("room");
        d.hdr_len = 0;
        d.owned = Some(PktBuf::copy_of(bytes));
        self.ring_bell();
    }

    pub fn ring_bell(&mut self) {
        self.tx[0].doorbell(self.now, &mut self.ring);
    }

    pub fn send(&mut self, key: &FlowKey, seg: &SegOut, payload: &[u8]) {
        self.place(key, seg, payload);
        self.ring_bell();
        assert!(self.ring.is_empty());
    }

    pub fn frames(&mut self) -> Vec<RxFrame> {
        let mut out = Vec::new();
        for rx in &mut self.rx {
            rx.poll(self.now, &mut self.pool, &mut out, 10_000);
        }
        out
    }

    /// Segments that have arrived, checksums verified.
    pub fn segments(&mut self) -> Vec<Got> {
        let parse = |f: RxFrame| {
            let bytes = f.buf.as_slice();
            match Frame::parse_ethernet(bytes, Csum::Verify) {
                Ok(Frame::Tcp(tcp)) => {
                    let at = tcp.payload_off as usize;
                    Got {
                        tcp,
                        data: bytes[at..at + tcp.payload_len as usize].to_vec(),
                        hash: f.hash,
                    }
                }
                other => panic!("not a segment: {other:?}"),
            }
        };
        self.frames().into_iter().map(parse).collect()
    }

    pub fn one(&mut self) -> Got {
        let mut all = self.segments();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    pub fn after(&mut self, ns: u64) {
        self.now = self.now.plus(ns);
    }

    /// A round trip, and a frame's serialisation where there is a rate.
    pub fn rtt(&mut self) {
        let rate = if self.config.gbps.is_some() { 5_000 } else { 0 };
        self.after(self.config.peer.rtt_ns + rate);
    }

    /// Opens a connection; the state of the stack's end.
    pub fn connect(&mut self, key: FlowKey) -> Tcp {
        let syn = syn(1000);
        self.send(&key, &syn, &[]);
        self.rtt();
        let got = self.one();
        assert_eq!(got.tcp.hdr.flags, TcpFlags::SYN | TcpFlags::ACK);
        assert_eq!(got.tcp.hdr.ack, Seq(1001));
        let tcp = Tcp {
            key,
            seq: Seq(1001),
            ack: got.tcp.hdr.seq + 1,
        };
        self.send(&key, &tcp.ack(), &[]);
        tcp
    }
}

pub fn syn(iss: u32) -> SegOut {
    SegOut {
        seq: Seq(iss),
        flags: TcpFlags::SYN,
        window: 65_535,
        opts: TcpOptions {
            mss: Some(1460),
            wscale: Some(2),
            sack_permitted: true,
            ts: Some((7, 0)),
            ..TcpOptions::default()
        },
        ..SegOut::default()
    }
}

pub struct Tcp {
    pub key: FlowKey,
    pub seq: Seq,
    pub ack: Seq,
}

impl Tcp {
    pub fn ack(&self) -> SegOut {
        SegOut {
            seq: self.seq,
            ack: self.ack,
            flags: TcpFlags::ACK,
            window: 16_384,
            opts: TcpOptions {
                ts: Some((8, 1)),
                ..TcpOptions::default()
            },
            ..SegOut::default()
        }
    }

    pub fn with(&self, flags: TcpFlags) -> SegOut {
        SegOut {
            flags,
            ..self.ack()
        }
    }

    pub fn at(&self, ahead: u32) -> SegOut {
        SegOut {
            seq: self.seq + ahead,
            ..self.ack()
        }
    }
}

/// Refers to the payload; its pages go when the ring is done with them.
pub fn refer(slot: &mut TxSlot<'_>, payload: &[&[u8]]) {
    let mut pages = TxPages::default();
    payload
        .iter()
        .for_each(|p| pages.push(Bytes::copy_from_slice(p)));
    let len = payload.iter().map(|p| p.len()).sum();
    pages.refer(0, len, slot, &mut PktPool::new(0));
}
