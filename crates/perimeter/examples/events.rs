//! A protocol added purely by events, and a live connection traced.
//!
//! `cargo run --example events`
//!
//! Two stacks stand back to back over a wire in memory. The server's organization is `pef`. Its
//! stack has no notion of IP protocol 253 (set aside for experiments, RFC 3692): an event on the
//! list of packets without a connection answers a greeting in that protocol. Then a connection is
//! opened, its segments are traced by an event that takes itself off after eight of them, and
//! two more events encipher what the server writes and decipher what it reads.

use perimeter::link::wire::{WireConfig, pair};
use perimeter::pef::{Direction, End, EventSpec, Layer, Packet, PacketEvent, Under, Verdict};
use perimeter::{Native, Stack};
use std::error::Error;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// IP's number for experiments.
const EXPERIMENT: u8 = 253;
/// Offset of the IP header in an Ethernet frame.
const IP: usize = 14;

fn event(name: &str, direction: Direction, layer: Layer, event: impl PacketEvent) -> EventSpec {
    EventSpec {
        name: name.to_string(),
        direction,
        layer,
        under: Under::Layer,
        event: Arc::new(event),
    }
}

/// The one's complement checksum of an IP header.
fn checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks(2)
        .map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
    let mut sum: u32 = words.sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// A datagram of the experiment in an Ethernet frame to everybody.
fn greeting(from: [u8; 4], to: [u8; 4], text: &[u8]) -> Vec<u8> {
    let mut f = vec![0xff; 6];
    f.extend([2, 0, 0, 0, 0, 9, 0x08, 0x00]);
    let len = (20 + text.len()) as u16;
    let mut ip = vec![
        0x45,
        0,
        (len >> 8) as u8,
        len as u8,
        0,
        0,
        0,
        0,
        64,
        EXPERIMENT,
        0,
        0,
    ];
    ip.extend(from);
    ip.extend(to);
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    f.extend(ip);
    f.extend(text);
    f
}

/// The text of a datagram of the experiment, and who sent it to whom.
fn read(frame: &[u8]) -> Option<([u8; 4], [u8; 4], &[u8])> {
    let ip = frame.get(IP..)?;
    if ip.len() < 20 || ip[9] != EXPERIMENT {
        return None;
    }
    let len = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let address = |at: usize| ip[at..at + 4].try_into().ok();
    Some((address(12)?, address(16)?, ip.get(20..len)?))
}

fn main() -> Result<(), Box<dyn Error>> {
    let native = Native::default();
    let ([a, b], _) = pair(&native, WireConfig::default());
    let server = Stack::builder()
        .on_native(native)
        .organization("pef:horizontal")?
        .interface(a, &["10.0.0.1/24"])?
        .build()?;
    let client = Stack::builder()
        .on_native(native)
        .organization("pef:vertical")?
        .interface(b, &["10.0.0.2/24"])?
        .build()?;

    // The protocol: who is greeted greets back.
    let answer = |p: &mut Packet<'_>| {
        if let Some((from, to, text)) = read(p.payload) {
            let mut reply = b"and a good day to you, who said: ".to_vec();
            reply.extend(text);
            p.send.push((p.iface, greeting(to, from, &reply)));
            return Verdict::Done;
        }
        Verdict::Next
    };
    server.register_event(event("greet", Direction::Unbound, Layer::Ip, answer))?;
    let (heard, hear) = mpsc::channel();
    let listen = move |p: &mut Packet<'_>| {
        if let Some((_, _, text)) = read(p.payload) {
            let _ = heard.send(String::from_utf8_lossy(text).into_owned());
        }
        Verdict::Done
    };
    client.register_event(event("hear", Direction::Unbound, Layer::Ip, listen))?;
    client.send_frame(0, &greeting([10, 0, 0, 2], [10, 0, 0, 1], b"good morning"))?;
    println!("{}\n", hear.recv_timeout(Duration::from_secs(5))?);

    // A connection, watched.
    let listener = server.listen("10.0.0.1:80")?;
    let mut theirs = client.connect("10.0.0.1:80")?;
    let (mut ours, _) = listener.accept()?;
    let (lines, traced) = mpsc::channel();
    let left = AtomicU32::new(8);
    ours.trace(move |segment| {
        let heard = lines.send(segment.to_string()).is_ok();
        heard && left.fetch_sub(1, Ordering::Relaxed) > 1
    })?;
    // A sublayer of the socket's: every octet is turned over on its way out and in.
    let turn = |p: &mut Packet<'_>| {
        p.payload.iter_mut().for_each(|b| *b = !*b);
        Verdict::Next
    };
    ours.insert_event(
        End::Front,
        event("decipher", Direction::Receive, Layer::Sockfs, turn),
    )?;
    ours.insert_event(
        End::Back,
        event("encipher", Direction::Transmit, Layer::Sockfs, turn),
    )?;
    let binding = ours.binding();
    println!("receive  {}", binding.events[0].join(" "));
    println!("transmit {}", binding.events[1].join(" "));
    println!("layers   {}\n", binding.perimeters.join(", "));
    let secret: Vec<u8> = b"hello".iter().map(|b| !b).collect();
    theirs.write_all(&secret)?;
    let mut word = [0; 5];
    ours.read_exact(&mut word)?;
    assert_eq!(&word, b"hello");
    ours.write_all(b"world")?;
    theirs.read_exact(&mut word)?;
    assert_eq!(word.map(|b| !b), *b"world");
    for line in traced.try_iter() {
        println!("{line}");
    }
    Ok(())
}
