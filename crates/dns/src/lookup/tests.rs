use super::*;
use crate::DnsConfig;
use simple_dns::rdata::{A, AAAA, CNAME, RData, SOA};
use simple_dns::{CLASS, Name, Packet, PacketFlag, RCODE, ResourceRecord, TYPE};

const S1: &str = "192.0.2.1:53";
const S2: &str = "192.0.2.2:53";

fn resolver(servers: &[&str]) -> Arc<Resolver> {
    let servers: Vec<_> = servers.iter().map(|s| s.parse().unwrap()).collect();
    let config = DnsConfig::default();
    Arc::new(Resolver::new(config, &servers, [1, 2], 40_000..=40_009))
}

fn look(r: &Arc<Resolver>, at: u64) -> Lookup {
    r.lookup("www.example.org", Families::BOTH, Time::from_millis(at))
}

fn ask(lookup: &mut Lookup, at: u64) -> Vec<Query> {
    match lookup.step(Time::from_millis(at)) {
        Step::Ask(queries) => queries,
        Step::Done(done) => panic!("{done:?}"),
    }
}

fn done(lookup: &mut Lookup, at: u64) -> Result<Vec<IpAddr>, LookupError> {
    match lookup.step(Time::from_millis(at)) {
        Step::Ask(queries) => panic!("{queries:?}"),
        Step::Done(done) => done,
    }
}

/// The reply to a query, which `f` completes, told whether it asks for IPv6.
fn reply(q: &Query, f: impl FnOnce(&mut Packet<'_>, bool)) -> Vec<u8> {
    let mut p = Packet::parse(&q.message).unwrap();
    let v6 = p.questions[0].qtype == TYPE::AAAA.into();
    *p.opt_mut() = None;
    p.set_flags(PacketFlag::RESPONSE);
    f(&mut p, v6);
    p.build_bytes_vec_compressed().unwrap()
}

fn record<'a>(owner: &'a str, data: RData<'a>) -> ResourceRecord<'a> {
    ResourceRecord::new(Name::new_unchecked(owner), CLASS::IN, 60, data)
}

/// Both families' address of a host, in a reply.
fn addr(p: &mut Packet<'_>, v6: bool, owner: &'static str) {
    let data = match v6 {
        true => RData::AAAA(AAAA::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9))),
        false => RData::A(A::from(Ipv4Addr::new(198, 51, 100, 9))),
    };
    p.answers.push(record(owner, data));
}

fn found(q: &Query) -> Vec<u8> {
    reply(q, |p, v6| addr(p, v6, "www.example.org"))
}

fn none(q: &Query, code: RCODE) -> Vec<u8> {
    reply(q, |p, _| {
        *p.rcode_mut() = code;
        let soa = SOA {
            mname: Name::new_unchecked("ns.example.org"),
            rname: Name::new_unchecked("root.example.org"),
            serial: 1,
            refresh: 1,
            retry: 1,
            expire: 1,
            minimum: 30,
        };
        p.name_servers.push(record("example.org", RData::SOA(soa)));
    })
}

fn both() -> Vec<IpAddr> {
    ["2001:db8::9", "198.51.100.9"]
        .map(|t| t.parse().unwrap())
        .to_vec()
}

#[test]
fn both_families_at_once_and_then_from_memory() {
    let r = resolver(&[S1, S2]);
    let mut l = look(&r, 0);
    let queries = ask(&mut l, 0);
    assert_eq!(queries.len(), 2);
    assert_ne!(queries[0].message[..2], queries[1].message[..2]);
    for q in &queries {
        assert_eq!(
            (q.server.to_string().as_str(), q.stream, q.until),
            (S1, false, Time::from_millis(2_000))
        );
        assert!(!l.answered(q.number, b"", Time::ZERO));
        assert!(!l.answered(q.number, &q.message, Time::ZERO));
        assert!(l.answered(q.number, &found(q), Time::ZERO));
        // Once is enough.
        assert!(l.answered(q.number, &none(q, RCODE::NameError), Time::ZERO));
    }
    // The reply to one is none to the other.
    assert_eq!(done(&mut l, 1), Ok(both()));
    assert_eq!(done(&mut look(&r, 59_999), 59_999), Ok(both()));
    ask(&mut look(&r, 60_000), 60_000);
    r.set_servers(&[S2.parse().unwrap()]);
    assert_eq!(
        ask(&mut look(&r, 10), 10)[0].server.to_string(),
        S2,
        "others may say other things"
    );
}

#[test]
fn a_reply_to_the_other_query_is_none() {
    let mut l = look(&resolver(&[S1]), 0);
    let q = ask(&mut l, 0);
    assert!(!l.answered(q[0].number, &found(&q[1]), Time::ZERO));
}

#[test]
fn servers_in_turn_with_more_patience_each_time() {
    let r = resolver(&[S1, S2]);
    let mut l = look(&r, 0);
    let mut now = 0;
    for (server, wait) in [
        (S1, 2_000),
        (S2, 2_000),
        (S1, 4_000),
        (S2, 4_000),
        (S1, 8_000),
        (S2, 8_000),
    ] {
        let q = ask(&mut l, now);
        assert_eq!(q.len(), 2);
        assert_eq!(q[1].server.to_string(), server);
        assert_eq!(q[1].until, Time::from_millis(now + wait));
        now += wait;
    }
    let error = done(&mut l, now).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    // Nothing was learnt from that.
    ask(&mut look(&r, now), now);
}

#[test]
fn who_answers_is_asked_first_the_next_time() {
    let r = resolver(&[S1, S2]);
    let mut l = look(&r, 0);
    ask(&mut l, 0);
    for q in ask(&mut l, 2_000) {
        assert!(l.answered(
            q.number,
            &none(&q, RCODE::NoError),
            Time::from_millis(2_001)
        ));
    }
    assert_eq!(
        done(&mut l, 2_001).unwrap_err().kind(),
        ErrorKind::AddrNotAvailable
    );
    let mut other = r.lookup("b.example", Families::BOTH, Time::ZERO);
    assert_eq!(ask(&mut other, 0)[0].server.to_string(), S2);
}

#[test]
fn one_family_is_enough_and_waits_for_the_other_a_second_time_only() {
    let mut l = look(&resolver(&[S1, S2]), 0);
    let q = ask(&mut l, 0);
    assert!(l.answered(q[1].number, &found(&q[1]), Time::ZERO));
    let again = ask(&mut l, 2_000);
    assert_eq!((again.len(), again[0].number), (1, q[0].number));
    assert_eq!(done(&mut l, 4_000), Ok(both()[1..].to_vec()));
}

#[test]
fn what_there_is_not_is_remembered_too() {
    for (code, kind) in [
        (RCODE::NameError, ErrorKind::NotFound),
        (RCODE::NoError, ErrorKind::AddrNotAvailable),
    ] {
        let r = resolver(&[S1]);
        let mut l = look(&r, 0);
        for q in ask(&mut l, 0) {
            assert!(l.answered(q.number, &none(&q, code), Time::ZERO));
        }
        assert_eq!(done(&mut l, 0).unwrap_err().kind(), kind);
        assert_eq!(
            done(&mut look(&r, 29_999), 29_999).unwrap_err().kind(),
            kind
        );
        ask(&mut look(&r, 30_000), 30_000);
    }
    // A server that says of one family only that there is no such name is no reason to believe it.
    let mut l = look(&resolver(&[S1]), 0);
    let q = ask(&mut l, 0);
    assert!(l.answered(q[0].number, &none(&q[0], RCODE::NameError), Time::ZERO));
    assert!(l.answered(q[1].number, &found(&q[1]), Time::ZERO));
    assert_eq!(done(&mut l, 0), Ok(both()[1..].to_vec()));
}

#[test]
fn servers_that_fail_are_left_at_once() {
    let r = resolver(&[S1, S2]);
    let mut l = look(&r, 0);
    for q in ask(&mut l, 0) {
        assert!(l.answered(
            q.number,
            &reply(&q, |p, _| *p.rcode_mut() = RCODE::Refused),
            Time::ZERO
        ));
    }
    for n in 1..6 {
        for q in ask(&mut l, n) {
            l.failed(q.number, ErrorKind::ConnectionRefused);
        }
    }
    // What one has said tells more than that others can't be reached.
    let error = done(&mut l, 6).unwrap_err();
    assert!(error.to_string().contains("REFUSED"), "{error}");
    let mut l = look(&r, 0);
    for n in 0..6 {
        for q in ask(&mut l, n) {
            l.failed(q.number, ErrorKind::ConnectionRefused);
        }
    }
    let error = done(&mut l, 6).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    let mut l = r.lookup(
        "b.example",
        Families::of(&["10.0.0.1".parse().unwrap()]),
        Time::ZERO,
    );
    for n in 0..6 {
        let q = ask(&mut l, n);
        assert_eq!(q.len(), 1, "it has no IPv6");
        assert!(l.answered(
            0,
            &reply(&q[0], |p, _| *p.rcode_mut() = RCODE::ServerFailure),
            Time::ZERO
        ));
    }
    let error = std::io::Error::from(done(&mut l, 6).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Other);
    assert!(error.to_string().contains("SERVFAIL"), "{error}");
}

#[test]
fn over_a_stream_what_a_datagram_has_no_room_for() {
    let mut l = look(&resolver(&[S1, S2]), 0);
    for q in ask(&mut l, 0) {
        let cut = reply(&q, |p, _| p.set_flags(PacketFlag::TRUNCATION));
        assert!(l.answered(q.number, &cut, Time::ZERO));
    }
    for q in ask(&mut l, 5) {
        assert!(q.stream && q.server.to_string() == S1);
        // There nothing is cut, and what says so is taken as it is.
        let all = reply(&q, |p, v6| {
            p.set_flags(PacketFlag::TRUNCATION);
            addr(p, v6, "www.example.org");
        });
        assert!(l.answered(q.number, &all, Time::ZERO));
    }
    assert_eq!(done(&mut l, 6), Ok(both()));
    // A stream that fails: the next server, by datagram first.
    let mut l = look(&resolver(&[S1, S2]), 0);
    let q = ask(&mut l, 0);
    let cut = reply(&q[0], |p, _| p.set_flags(PacketFlag::TRUNCATION));
    assert!(l.answered(q[0].number, &cut, Time::ZERO));
    let q = ask(&mut l, 5);
    l.failed(q[0].number, ErrorKind::ConnectionRefused);
    let q = ask(&mut l, 6);
    assert!(!q[0].stream && q[0].server.to_string() == S2);
}

#[test]
fn without_edns_where_it_is_not_known() {
    let mut l = look(&resolver(&[S1]), 0);
    let q = ask(&mut l, 0);
    let bad = |q: &Query| reply(q, |p, _| *p.rcode_mut() = RCODE::FormatError);
    assert!(l.answered(0, &bad(&q[0]), Time::ZERO));
    let again = ask(&mut l, 1);
    let plain = again.iter().find(|q| q.number == 0).unwrap();
    assert!(Packet::parse(&plain.message).unwrap().opt().is_none());
    assert!(l.answered(0, &found(plain), Time::ZERO));
}

#[test]
fn aliases_are_followed_and_not_for_ever() {
    let to = |q: &Query, owner: &str, target: &str| {
        let (owner, target) = (owner.to_string(), target.to_string());
        reply(q, |p, _| {
            let data = RData::CNAME(CNAME(Name::new_unchecked(&target).into_owned()));
            p.answers.push(record(&owner, data).into_owned());
        })
    };
    let only_v4 = Families::of(&["10.0.0.1".parse().unwrap()]);
    let r = resolver(&[S1]);
    let mut l = r.lookup("WWW.example.org.", only_v4, Time::ZERO);
    let q = ask(&mut l, 0);
    assert!(l.answered(0, &to(&q[0], "www.example.org", "b.example"), Time::ZERO));
    let q = ask(&mut l, 0);
    assert_eq!(
        Packet::parse(&q[0].message).unwrap().questions[0]
            .qname
            .to_string(),
        "b.example"
    );
    assert!(l.answered(
        0,
        &reply(&q[0], |p, v6| addr(p, v6, "b.example")),
        Time::ZERO
    ));
    assert_eq!(done(&mut l, 0), Ok(both()[1..].to_vec()));
    // It is remembered of the name that was looked up.
    assert!(done(&mut r.lookup("www.example.org", only_v4, Time::ZERO), 0).is_ok());

    let mut l = resolver(&[S1]).lookup("a0.example", only_v4, Time::ZERO);
    let mut asked = 0;
    let error = loop {
        match l.step(Time::ZERO) {
            Step::Done(done) => break done.unwrap_err(),
            Step::Ask(q) => {
                let name = Packet::parse(&q[0].message).unwrap().questions[0]
                    .qname
                    .to_string();
                assert!(l.answered(
                    0,
                    &to(&q[0], &name, &format!("a{asked}.example")),
                    Time::ZERO
                ));
            }
        }
        asked += 1;
        assert!(asked < 100);
    };
    assert!(error.to_string().contains("alias"), "{error}");
}

#[test]
fn nobody_is_asked_for_these() {
    let r = resolver(&[]);
    let kind =
        |host: &str| done(&mut r.lookup(host, Families::BOTH, Time::ZERO), 0).map_err(|e| e.kind());
    let v4_only = Families::of(&["10.0.0.1".parse().unwrap()]);
    assert_eq!(
        kind("localhost"),
        Ok(vec![Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()])
    );
    let mut l = r.lookup("a.localhost", v4_only, Time::ZERO);
    assert_eq!(done(&mut l, 0), Ok(vec![Ipv4Addr::LOCALHOST.into()]));
    assert_eq!(kind("a.invalid"), Err(ErrorKind::NotFound));
    assert_eq!(kind("127.1"), Err(ErrorKind::InvalidInput));
    assert_eq!(kind("a b"), Err(ErrorKind::InvalidInput));
    assert_eq!(kind("example.org"), Err(ErrorKind::NotConnected));
}

#[test]
fn ports_are_of_the_range_and_spread_over_it() {
    let r = resolver(&[S1]);
    let mut seen = [0; 10];
    for _ in 0..1_000 {
        seen[usize::from(r.port() - 40_000)] += 1;
    }
    assert!(seen.iter().all(|n| *n > 50), "{seen:?}");
}
