//! Questions and answers as messages (RFC 1035, section 4; RFC 6891).

use crate::name;
use simple_dns::rdata::{OPT, RData};
use simple_dns::{CLASS, Name, OPCODE, Packet, PacketFlag, Question, RCODE, ResourceRecord};
use simple_dns::{QCLASS, QTYPE, TYPE, header_buffer};
use std::net::IpAddr;

/// The longest datagram that is asked for (DNS flag day 2020): one that no path has to cut.
pub(crate) const EDNS_SIZE: u16 = 1232;
/// The most records that an answer may have: many more than any name's addresses with all that comes
/// along, and few enough that reading them is quick, whatever they are.
const MAX_RECORDS: usize = 256;
/// The most addresses that are taken from an answer.
const MAX_ADDRS: usize = 32;
/// The most aliases that are followed from a name to its addresses.
pub(crate) const MAX_ALIASES: u32 = 16;

/// Which addresses are asked for.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// Of IPv4.
    A,
    /// Of IPv6.
    Aaaa,
}

impl Kind {
    fn qtype(self) -> QTYPE {
        match self {
            Kind::A => TYPE::A.into(),
            Kind::Aaaa => TYPE::AAAA.into(),
        }
    }
}

/// A question that was sent.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub id: u16,
    pub name: String,
    pub kind: Kind,
    /// It said that it knows EDNS.
    pub edns: bool,
    /// Over a stream, where nothing is cut.
    pub stream: bool,
}

impl Asked {
    /// The question as a message.
    pub fn message(&self) -> Vec<u8> {
        let mut packet = Packet::new_query(self.id);
        packet.set_flags(PacketFlag::RECURSION_DESIRED);
        let name = Name::new_unchecked(&self.name);
        let (qtype, qclass) = (self.kind.qtype(), QCLASS::CLASS(CLASS::IN));
        packet
            .questions
            .push(Question::new(name, qtype, qclass, false));
        if self.edns {
            *packet.opt_mut() = Some(OPT {
                opt_codes: Vec::new(),
                udp_packet_size: EDNS_SIZE,
                version: 0,
            });
        }
        packet.build_bytes_vec().unwrap_or_default()
    }

    /// What `message` answers; `None`: it is no answer to this question.
    pub fn read(&self, message: &[u8]) -> Option<Answer> {
        if header_buffer::id(message) != Ok(self.id) || !self.is_repeated_by(message) {
            return None;
        }
        let cut = header_buffer::has_flags(message, PacketFlag::TRUNCATION);
        if cut == Ok(true) && !self.stream {
            return Some(Answer::Cut);
        }
        if records(message) > MAX_RECORDS {
            return Some(Answer::Bad(
                "sent a message of more records than it can need",
            ));
        }
        let Ok(packet) = Packet::parse(message) else {
            // A server that knows no EDNS may stop at the question.
            return Some(Answer::Bad("sent what is no message of DNS"));
        };
        Some(match packet.rcode() {
            RCODE::NoError | RCODE::NameError => self.follow(&packet),
            RCODE::FormatError | RCODE::NotImplemented | RCODE::BADVERS if self.edns => {
                Answer::NoEdns
            }
            RCODE::ServerFailure => Answer::Bad("has failed (SERVFAIL)"),
            RCODE::Refused => Answer::Bad("refuses to answer (REFUSED)"),
            RCODE::FormatError => Answer::Bad("does not understand the question (FORMERR)"),
            RCODE::NotImplemented => Answer::Bad("does not know how to answer (NOTIMP)"),
            _ => Answer::Bad("answers with an error"),
        })
    }

    /// Whether it is a response that repeats this question. The rest may be cut anywhere.
    fn is_repeated_by(&self, message: &[u8]) -> bool {
        // The header and the longest question.
        let mut head = message[..message.len().min(12 + 255 + 4)].to_vec();
        let Some(counts) = head.get_mut(6..12) else {
            return false;
        };
        counts.fill(0);
        if header_buffer::questions(message) != Ok(1) {
            return false;
        }
        let Ok(packet) = Packet::parse(&head) else {
            return false;
        };
        let [q] = &packet.questions[..] else {
            return false;
        };
        packet.has_flags(PacketFlag::RESPONSE)
            && packet.opcode() == OPCODE::StandardQuery
            && q.qname == Name::new_unchecked(&self.name)
            && q.qtype == self.kind.qtype()
            && q.qclass == QCLASS::CLASS(CLASS::IN)
            && !q.unicast_response
    }

    /// Goes from the question's name along aliases to addresses.
    fn follow(&self, packet: &Packet<'_>) -> Answer {
        let mut at = Name::new_unchecked(&self.name).into_owned();
        let (mut ttl, mut aliases) = (u32::MAX, 0);
        loop {
            let here = || packet.answers.iter().filter(|r| is_of(r, &at));
            let found = here().filter_map(|r| Some((self.addr(&r.rdata)?, seconds(r.ttl))));
            let found: Vec<_> = found.take(MAX_ADDRS).collect();
            if !found.is_empty() {
                let least = found.iter().fold(ttl, |t, (_, ttl)| t.min(*ttl));
                let addrs = found.into_iter().map(|(ip, _)| ip).collect();
                return Answer::Found(addrs, least);
            }
            let alias = here().find_map(|r| match &r.rdata {
                RData::CNAME(to) => Some((to.0.clone().into_owned(), seconds(r.ttl))),
                _ => None,
            });
            let Some((to, alias_ttl)) = alias else { break };
            aliases += 1;
            if aliases > MAX_ALIASES {
                return Answer::Bad("gives an alias of an alias without end");
            }
            (at, ttl) = (to, ttl.min(alias_ttl));
        }
        let none = denied(packet).map(|t| t.min(ttl));
        if packet.rcode() == RCODE::NameError {
            return Answer::NoName(none);
        }
        if aliases == 0 || none.is_some() {
            return Answer::NoData(none);
        }
        // It has told of the alias, and leaves what that stands for to us.
        match text(&at) {
            Some(to) => Answer::Alias { to, ttl, aliases },
            None => Answer::Bad("gives an alias of what is no host's name"),
        }
    }

    fn addr(&self, data: &RData<'_>) -> Option<IpAddr> {
        match (self.kind, data) {
            (Kind::A, RData::A(a)) => Some(IpAddr::from(a.address.to_be_bytes())),
            (Kind::Aaaa, RData::AAAA(a)) => Some(IpAddr::from(a.address.to_be_bytes())),
            _ => None,
        }
    }
}

/// What an answer says. Times are in seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The name's addresses, at least one, and how long they are good for.
    Found(Vec<IpAddr>, u32),
    /// Another name is to be asked for.
    Alias {
        to: String,
        ttl: u32,
        /// How many were followed within the answer.
        aliases: u32,
    },
    /// It has none of that kind, and how long that is good for, if that was said.
    NoData(Option<u32>),
    /// There is no such name.
    NoName(Option<u32>),
    /// It was too long for a datagram: to be asked again over a stream.
    Cut,
    /// The server knows no EDNS: to be asked again without.
    NoEdns,
    /// The server can't, or won't, answer, or makes no sense.
    Bad(&'static str),
}

/// How many records the header of a message announces.
fn records(message: &[u8]) -> usize {
    let counts = [
        header_buffer::answers(message),
        header_buffer::name_servers(message),
        header_buffer::additional_records(message),
    ];
    counts
        .into_iter()
        .map(|n| usize::from(n.unwrap_or(0)))
        .sum()
}

fn is_of(r: &ResourceRecord<'_>, name: &Name<'_>) -> bool {
    r.class == CLASS::IN && !r.cache_flush && r.name == *name
}

/// A TTL whose highest bit is set means none (RFC 2181, section 8).
fn seconds(ttl: u32) -> u32 {
    match ttl >> 31 {
        0 => ttl,
        _ => 0,
    }
}

/// How long it is good for that there is nothing (RFC 2308, section 5), if that was said.
fn denied(packet: &Packet<'_>) -> Option<u32> {
    packet.name_servers.iter().find_map(|r| match &r.rdata {
        RData::SOA(soa) => Some(seconds(r.ttl).min(seconds(soa.minimum))),
        _ => None,
    })
}

/// A name of a message as text, in lower case, if it can be a host's.
fn text(name: &Name<'_>) -> Option<String> {
    let labels = name.as_bytes().map(|l| std::str::from_utf8(l).ok());
    let text = labels.collect::<Option<Vec<_>>>()?.join(".");
    name::check(&text).ok()?;
    Some(text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests;
