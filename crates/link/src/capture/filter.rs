//! Which packets are wanted, in the words of pcap-filter(7), as far as they go here.

use super::summary::Summary;
use crate::device::Medium;
use crate::pcap::format::Direction;
use perimeter_wire::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTO_ICMP, PROTO_ICMPV6, PROTO_TCP, PROTO_UDP,
};
use std::net::IpAddr;
use std::str::FromStr;

/// The longest filter, bytes.
const LONGEST: usize = 1024;
/// How deep parentheses and `not` may go.
const DEEPEST: usize = 32;

/// A filter: `tcp and port 80 and not host 10.0.0.1`. The words are those of pcap-filter(7):
///
/// - `ip`, `ip6`, `arp`, `icmp`, `icmp6`, `tcp`, `udp`, `inbound`, `outbound`
/// - `host ADDRESS`, `net PREFIX/LENGTH`, `port N`, `portrange A-B`, each also after `src` or
///   `dst`, the last two also after `tcp` or `udp`
/// - `and` (`&&`), `or` (`||`), `not` (`!`), parentheses. `and` and `or` bind alike, from left to
///   right, as they do there.
///
/// The empty filter lets everything pass.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Filter(Option<Expr>);

/// Why a text is no filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("filter: {0}")]
pub struct FilterError(String);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Expr {
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Not(Box<Expr>),
    Ethertype(u16),
    Protocol(u8),
    Passing(Direction),
    Net(Side, IpAddr, u8),
    Ports(Side, u16, u16),
}

/// Which end is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Any,
    Src,
    Dst,
}

impl Side {
    fn holds<T>(self, (src, dst): (T, T), is: impl Fn(T) -> bool) -> bool {
        match self {
            Side::Any => is(src) || is(dst),
            Side::Src => is(src),
            Side::Dst => is(dst),
        }
    }
}

impl Filter {
    /// Whether it wants that frame.
    pub fn wants(&self, frame: &[u8], medium: Medium, direction: Direction) -> bool {
        match &self.0 {
            None => true,
            Some(e) => e.holds(&Summary::of(frame, medium), direction),
        }
    }
}

impl Expr {
    fn holds(&self, s: &Summary, direction: Direction) -> bool {
        match self {
            Expr::And(a, b) => a.holds(s, direction) && b.holds(s, direction),
            Expr::Or(a, b) => a.holds(s, direction) || b.holds(s, direction),
            Expr::Not(a) => !a.holds(s, direction),
            Expr::Ethertype(t) => s.ethertype == *t,
            Expr::Protocol(p) => s.protocol == Some(*p),
            Expr::Passing(d) => direction == *d,
            Expr::Net(side, net, len) => s
                .ends
                .is_some_and(|ends| side.holds(ends, |ip| within(ip, *net, *len))),
            Expr::Ports(side, low, high) => s
                .ports
                .is_some_and(|ports| side.holds(ports, |p| (*low..=*high).contains(&p))),
        }
    }
}

/// Whether `ip` is one of the prefix's.
fn within(ip: IpAddr, net: IpAddr, len: u8) -> bool {
    let (a, b) = match (ip, net) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            (u128::from(a.to_bits()) << 96, u128::from(b.to_bits()) << 96)
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits()),
        _ => return false,
    };
    len == 0 || (a ^ b) >> (128 - u32::from(len)) == 0
}

struct Parser<'a> {
    words: Vec<&'a str>,
    next: usize,
}

type Parsed = Result<Expr, FilterError>;

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Parser<'a> {
        let mut words = Vec::new();
        for mut word in text.split_whitespace() {
            while let Some(rest) = word.strip_prefix(['(', ')', '!']) {
                words.push(&word[..1]);
                word = rest;
            }
            let tail = word.len() - word.trim_end_matches(')').len();
            let (body, closing) = word.split_at(word.len() - tail);
            if !body.is_empty() {
                words.push(body);
            }
            words.extend((0..tail).map(|i| &closing[i..=i]));
        }
        Parser { words, next: 0 }
    }

    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.next).copied()
    }

    fn take(&mut self, any: &[&str]) -> bool {
        let is = self.peek().is_some_and(|w| any.contains(&w));
        self.next += usize::from(is);
        is
    }

    fn word(&mut self, what: &str) -> Result<&'a str, FilterError> {
        let word = self.peek();
        self.next += 1;
        word.ok_or_else(|| FilterError(format!("it ends where {what} is expected")))
    }

    fn all(&mut self, depth: usize) -> Parsed {
        let mut left = self.one(depth)?;
        loop {
            if self.take(&["and", "&&"]) {
                left = Expr::And(Box::new(left), Box::new(self.one(depth)?));
            } else if self.take(&["or", "||"]) {
                left = Expr::Or(Box::new(left), Box::new(self.one(depth)?));
            } else {
                return Ok(left);
            }
        }
    }

    fn one(&mut self, depth: usize) -> Parsed {
        if depth == DEEPEST {
            return Err(FilterError(format!(
                "more than {DEEPEST} parentheses within each other"
            )));
        }
        if self.take(&["not", "!"]) {
            return Ok(Expr::Not(Box::new(self.one(depth + 1)?)));
        }
        if self.take(&["("]) {
            let inner = self.all(depth + 1)?;
            return match self.word("`)`")? {
                ")" => Ok(inner),
                other => Err(FilterError(format!("`{other}` where `)` is expected"))),
            };
        }
        let protocol = |n| Expr::Protocol(n);
        let simple = match self.peek() {
            Some("ip") => Expr::Ethertype(ETHERTYPE_IPV4),
            Some("ip6") => Expr::Ethertype(ETHERTYPE_IPV6),
            Some("arp") => Expr::Ethertype(ETHERTYPE_ARP),
            Some("icmp") => protocol(PROTO_ICMP),
            Some("icmp6") => protocol(PROTO_ICMPV6),
            Some("tcp") => protocol(PROTO_TCP),
            Some("udp") => protocol(PROTO_UDP),
            Some("inbound") => Expr::Passing(Direction::Inbound),
            Some("outbound") => Expr::Passing(Direction::Outbound),
            _ => return self.end(),
        };
        self.next += 1;
        // `tcp dst port 80`: the protocol narrows what follows.
        match self.peek() {
            Some("src" | "dst" | "port" | "portrange" | "host" | "net") => {
                Ok(Expr::And(Box::new(simple), Box::new(self.end()?)))
            }
            _ => Ok(simple),
        }
    }

    /// `[src|dst] host|net|port|portrange VALUE`.
    fn end(&mut self) -> Parsed {
        let side = match self.peek() {
            Some("src") => Side::Src,
            Some("dst") => Side::Dst,
            _ => Side::Any,
        };
        self.next += usize::from(side != Side::Any);
        let kind = self.word("a condition")?;
        let address = |text: &str| {
            text.parse::<IpAddr>()
                .map_err(|_| FilterError(format!("`{text}` is not an IP address")))
        };
        let port = |text: &str| {
            text.parse::<u16>()
                .map_err(|_| FilterError(format!("`{text}` is not a port (0 to 65535)")))
        };
        match kind {
            "host" => {
                let ip = address(self.word("an address")?)?;
                Ok(Expr::Net(side, ip, if ip.is_ipv4() { 32 } else { 128 }))
            }
            "net" => {
                let text = self.word("a prefix")?;
                let (ip, len) = text.split_once('/').ok_or_else(|| {
                    FilterError(format!("`{text}` is not a prefix, as 10.0.0.0/8"))
                })?;
                let ip = address(ip)?;
                let most = if ip.is_ipv4() { 32 } else { 128 };
                let fits = len.parse::<u8>().ok().filter(|n| *n <= most);
                let len = fits.ok_or_else(|| {
                    FilterError(format!("`{len}` is not a prefix length (0 to {most})"))
                })?;
                Ok(Expr::Net(side, ip, len))
            }
            "port" => {
                let p = port(self.word("a port")?)?;
                Ok(Expr::Ports(side, p, p))
            }
            "portrange" => {
                let text = self.word("a range of ports")?;
                let (a, b) = text.split_once('-').ok_or_else(|| {
                    FilterError(format!("`{text}` is not a range of ports, as 8000-8080"))
                })?;
                let (a, b) = (port(a)?, port(b)?);
                Ok(Expr::Ports(side, a.min(b), a.max(b)))
            }
            other => Err(FilterError(format!(
                "`{other}` is not understood; there are host, net, port, portrange, src, dst, ip, \
                 ip6, arp, icmp, icmp6, tcp, udp, inbound, outbound, and, or, not"
            ))),
        }
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Filter, FilterError> {
        if text.len() > LONGEST {
            return Err(FilterError(format!("longer than {LONGEST} bytes")));
        }
        let mut p = Parser::new(text);
        if p.words.is_empty() {
            return Ok(Filter(None));
        }
        let all = p.all(0)?;
        match p.peek() {
            None => Ok(Filter(Some(all))),
            Some(word) => Err(FilterError(format!(
                "`{word}` where `and`, `or` or the end is expected"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perimeter_wire::IpHdr;
    use std::net::SocketAddr;

    /// A datagram with a TCP header.
    fn segment(src: &str, dst: &str) -> Vec<u8> {
        let (src, dst): (SocketAddr, SocketAddr) = (src.parse().unwrap(), dst.parse().unwrap());
        let mut frame = vec![0; 60];
        let header = IpHdr {
            src: src.ip(),
            dst: dst.ip(),
            protocol: PROTO_TCP,
            hop_limit: 64,
            tos: 0,
            header_len: 0,
            total_len: IpHdr::len_to(dst.ip()) as u32 + 20,
        };
        let len = header.emit(&mut frame);
        frame.truncate(len);
        frame.extend(src.port().to_be_bytes());
        frame.extend(dst.port().to_be_bytes());
        frame.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        frame
    }

    #[test]
    fn what_passes() {
        let v4 = segment("10.0.0.1:40000", "10.0.9.2:80");
        let v6 = segment("[2001:db8::1]:443", "[2001:db8:1::2]:50000");
        let wants = |text: &str, frame: &[u8]| {
            let f: Filter = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            f.wants(frame, Medium::Ip, Direction::Inbound)
        };
        for (text, of_v4, of_v6) in [
            ("", true, true),
            ("tcp", true, true),
            ("udp", false, false),
            ("ip", true, false),
            ("ip6", false, true),
            ("arp or icmp or icmp6", false, false),
            ("inbound", true, true),
            ("outbound", false, false),
            ("host 10.0.0.1", true, false),
            ("dst host 10.0.0.1", false, false),
            ("src host 10.0.0.1", true, false),
            ("net 10.0.9.0/24", true, false),
            ("src net 10.0.9.0/24", false, false),
            ("net 0.0.0.0/0", true, false),
            ("net 2001:db8::/32", false, true),
            ("host 2001:db8:1::2", false, true),
            ("port 80", true, false),
            ("src port 80", false, false),
            ("tcp dst port 80", true, false),
            ("udp port 80", false, false),
            ("portrange 400-500", false, true),
            ("not port 80", false, true),
            ("!(port 80 or port 443)", false, false),
            ("tcp && !port 80", false, true),
            // From left to right: (udp and ip) or tcp; (tcp or udp) and udp.
            ("udp and ip or tcp", true, true),
            ("tcp or udp and udp", false, false),
            ("tcp or (udp and udp)", true, true),
            ("((port 80))", true, false),
        ] {
            assert_eq!(
                (wants(text, &v4), wants(text, &v6)),
                (of_v4, of_v6),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_filter() {
        let deep = "(".repeat(40) + "tcp";
        let long = "tcp or ".repeat(400) + "tcp";
        for (text, want) in [
            ("prot 80", "`prot` is not understood"),
            ("port", "ends where a port"),
            ("port http", "`http` is not a port"),
            ("port 70000", "`70000` is not a port"),
            ("host example.org", "not an IP address"),
            ("net 10.0.0.0", "is not a prefix"),
            ("net 10.0.0.0/33", "0 to 32"),
            ("tcp udp", "`udp` where `and`"),
            ("(tcp", "ends where `)`"),
            ("tcp)", "`)` where"),
            ("tcp and", "ends where a condition"),
            ("src", "ends where a condition"),
            ("portrange 5", "range of ports"),
            (&deep, "parentheses"),
            (&long, "longer than"),
        ] {
            let error = text.parse::<Filter>().expect_err(text).to_string();
            assert!(error.contains(want), "{text}: {error}");
        }
    }
}
