use super::*;
use proptest::prelude::*;
use simple_dns::rdata::{A, AAAA, CNAME, SOA};
use std::net::{Ipv4Addr, Ipv6Addr};

fn asked() -> Asked {
    Asked {
        id: 7,
        name: "www.example.org".into(),
        kind: Kind::A,
        edns: true,
        stream: false,
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new_unchecked(text)
}

fn record<'a>(owner: &'a str, ttl: u32, data: RData<'a>) -> ResourceRecord<'a> {
    ResourceRecord::new(name(owner), CLASS::IN, ttl, data)
}

fn a(last: u8) -> RData<'static> {
    RData::A(A::from(Ipv4Addr::new(192, 0, 2, last)))
}

fn alias(to: &str) -> RData<'_> {
    RData::CNAME(CNAME(name(to)))
}

fn soa(minimum: u32) -> RData<'static> {
    RData::SOA(SOA {
        mname: name("ns.example.org"),
        rname: name("root.example.org"),
        serial: 1,
        refresh: 1,
        retry: 1,
        expire: 1,
        minimum,
    })
}

fn reply(answers: Vec<ResourceRecord<'_>>) -> Packet<'_> {
    let mut p = Packet::new_reply(7);
    p.questions.push(Question::new(
        name("www.example.org"),
        TYPE::A.into(),
        CLASS::IN.into(),
        false,
    ));
    p.answers = answers;
    p
}

fn read(p: &Packet<'_>) -> Option<Answer> {
    asked().read(&p.build_bytes_vec_compressed().unwrap())
}

fn v4(last: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, last).into()
}

#[test]
fn a_question_is_what_servers_understand() {
    let message = asked().message();
    let p = Packet::parse(&message).unwrap();
    assert_eq!((p.id(), p.questions.len()), (7, 1));
    assert!(p.has_flags(PacketFlag::RECURSION_DESIRED) && !p.has_flags(PacketFlag::RESPONSE));
    assert_eq!(p.questions[0].qname.to_string(), "www.example.org");
    assert_eq!(
        p.opt().map(|o| (o.udp_packet_size, o.version)),
        Some((1232, 0))
    );
    let plain = Asked {
        edns: false,
        ..asked()
    };
    assert_eq!(plain.message().len() + 11, message.len());
    // It is no answer to itself.
    assert_eq!(asked().read(&message), None);
}

#[test]
fn what_is_no_answer() {
    let good = || reply(vec![record("www.example.org", 60, a(1))]);
    assert_eq!(read(&good()), Some(Answer::Found(vec![v4(1)], 60)));
    let changed = |f: &dyn Fn(&mut Packet<'_>)| {
        let mut p = good();
        f(&mut p);
        read(&p)
    };
    let question = |host: &'static str, kind: QTYPE, class| {
        move |p: &mut Packet<'_>| {
            let q = Question::new(name(host), kind, class, false);
            p.questions[0] = q.into_owned();
        }
    };
    let class_in = QCLASS::CLASS(CLASS::IN);
    assert_eq!(changed(&|p| p.set_id(8)), None);
    assert_eq!(changed(&|p| p.remove_flags(PacketFlag::RESPONSE)), None);
    assert_eq!(changed(&|p| *p.opcode_mut() = OPCODE::Update), None);
    assert_eq!(changed(&|p| p.questions.clear()), None);
    assert_eq!(changed(&|p| p.questions.push(p.questions[0].clone())), None);
    assert_eq!(
        changed(&question("www.example.com", TYPE::A.into(), class_in)),
        None
    );
    assert_eq!(
        changed(&question("www.example.org", TYPE::AAAA.into(), class_in)),
        None
    );
    let chaos = QCLASS::CLASS(CLASS::CH);
    assert_eq!(
        changed(&question("www.example.org", TYPE::A.into(), chaos)),
        None
    );
    assert_eq!(changed(&|p| p.questions[0].unicast_response = true), None);
    // Case is no difference.
    let same = question("WWW.Example.org", TYPE::A.into(), class_in);
    assert_eq!(changed(&same), Some(Answer::Found(vec![v4(1)], 60)));
}

#[test]
fn what_answers_say() {
    let www = "www.example.org";
    let table: Vec<(Vec<ResourceRecord<'_>>, Option<Answer>)> = vec![
        (
            vec![record(www, 60, a(1)), record("WWW.example.ORG", 30, a(2))],
            Some(Answer::Found(vec![v4(1), v4(2)], 30)),
        ),
        // Of a name that was not asked for, of another class, or of another kind.
        (
            vec![record("other.example.org", 60, a(1))],
            Some(Answer::NoData(None)),
        ),
        (
            vec![ResourceRecord::new(name(www), CLASS::CH, 60, a(1))],
            Some(Answer::NoData(None)),
        ),
        (
            vec![record(
                www,
                60,
                RData::AAAA(AAAA::from(Ipv6Addr::LOCALHOST)),
            )],
            Some(Answer::NoData(None)),
        ),
        // A chain, in any order, with the shortest TTL.
        (
            vec![
                record("b.example", 50, a(3)),
                record(www, 40, alias("b.example")),
            ],
            Some(Answer::Found(vec![v4(3)], 40)),
        ),
        // The TTL's highest bit.
        (
            vec![record(www, 1 << 31, a(1))],
            Some(Answer::Found(vec![v4(1)], 0)),
        ),
        // A chain that ends elsewhere, and ones that do not end.
        (
            vec![record(www, 40, alias("B.Example"))],
            Some(Answer::Alias {
                to: "b.example".into(),
                ttl: 40,
                aliases: 1,
            }),
        ),
        (
            vec![record(www, 40, alias(www))],
            Some(Answer::Bad("gives an alias of an alias without end")),
        ),
        (
            vec![record(www, 1, alias("b.c")), record("b.c", 1, alias(www))],
            Some(Answer::Bad("gives an alias of an alias without end")),
        ),
        (
            vec![record(www, 40, alias("no host.example"))],
            Some(Answer::Bad("gives an alias of what is no host's name")),
        ),
        (
            vec![record(www, 40, alias("127.1"))],
            Some(Answer::Bad("gives an alias of what is no host's name")),
        ),
    ];
    for (n, (answers, want)) in table.into_iter().enumerate() {
        assert_eq!(read(&reply(answers)), want, "{n}");
    }
}

#[test]
fn what_there_is_not() {
    let mut p = reply(Vec::new());
    assert_eq!(read(&p), Some(Answer::NoData(None)));
    p.name_servers.push(record("example.org", 300, soa(60)));
    assert_eq!(read(&p), Some(Answer::NoData(Some(60))));
    *p.rcode_mut() = RCODE::NameError;
    assert_eq!(read(&p), Some(Answer::NoName(Some(60))));
    p.name_servers = vec![record("example.org", 30, soa(60))];
    assert_eq!(read(&p), Some(Answer::NoName(Some(30))));
    // An alias of nothing.
    p.answers
        .push(record("www.example.org", 20, alias("b.example")));
    assert_eq!(read(&p), Some(Answer::NoName(Some(20))));
    *p.rcode_mut() = RCODE::NoError;
    assert_eq!(read(&p), Some(Answer::NoData(Some(20))));
}

#[test]
fn what_servers_do_not_do() {
    let with = |code| {
        let mut p = reply(Vec::new());
        *p.rcode_mut() = code;
        p
    };
    assert_eq!(read(&with(RCODE::FormatError)), Some(Answer::NoEdns));
    assert_eq!(read(&with(RCODE::NotImplemented)), Some(Answer::NoEdns));
    for code in [
        RCODE::ServerFailure,
        RCODE::Refused,
        RCODE::NOTAUTH,
        RCODE::YXDOMAIN,
    ] {
        assert!(
            matches!(read(&with(code)), Some(Answer::Bad(_))),
            "{code:?}"
        );
    }
    let plain = Asked {
        edns: false,
        ..asked()
    };
    let message = with(RCODE::FormatError).build_bytes_vec().unwrap();
    assert!(matches!(plain.read(&message), Some(Answer::Bad(_))));
    // Versions of EDNS, whose error is in the record.
    let mut p = with(RCODE::BADVERS);
    *p.opt_mut() = Some(OPT {
        opt_codes: Vec::new(),
        udp_packet_size: 512,
        version: 0,
    });
    assert_eq!(read(&p), Some(Answer::NoEdns));
}

#[test]
fn cut_ones_are_asked_for_again_wherever_they_are_cut() {
    let mut p = reply(
        (0..40)
            .map(|n| record("www.example.org", 60, a(n)))
            .collect(),
    );
    p.set_flags(PacketFlag::TRUNCATION);
    let whole = p.build_bytes_vec_compressed().unwrap();
    let question_ends = 12 + 17 + 4;
    for len in 0..whole.len() {
        let want = (len >= question_ends).then_some(Answer::Cut);
        assert_eq!(asked().read(&whole[..len]), want, "{len}");
    }
    let stream = Asked {
        stream: true,
        ..asked()
    };
    let Some(Answer::Found(all, 60)) = stream.read(&whole) else {
        panic!()
    };
    assert_eq!(all.len(), MAX_ADDRS);
}

#[test]
fn no_more_records_than_it_can_need() {
    let p = reply(
        (0..=255u8)
            .map(|n| record("www.example.org", 60, a(n)))
            .collect(),
    );
    assert!(matches!(read(&p), Some(Answer::Found(..))));
    let mut more = p.clone();
    more.additional_records.push(record("x.example", 60, a(1)));
    assert!(matches!(read(&more), Some(Answer::Bad(_))));
    // Ones that are announced only.
    let mut empty = reply(Vec::new()).build_bytes_vec().unwrap();
    empty[6..12].fill(0xff);
    assert!(matches!(asked().read(&empty), Some(Answer::Bad(_))));
}

/// Pointers to themselves, to each other, forward, and a long way back.
#[test]
fn names_that_do_not_end() {
    let question = reply(Vec::new()).build_bytes_vec().unwrap();
    let end = question.len() as u16;
    for pointer in [end, end + 2, 12, 0, 0x3fff] {
        let mut m = question.clone();
        m[7] = 1;
        m.extend_from_slice(&(0xc000 | pointer).to_be_bytes());
        m.extend_from_slice(&[0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 1, 2, 3, 4]);
        let _ = asked().read(&m);
    }
    let mut ladder = question.clone();
    for n in 0..4_000u16 {
        let back = if n == 0 { 12 } else { end + 2 * (n - 1) };
        ladder.extend_from_slice(&(0xc000 | back).to_be_bytes());
    }
    ladder[7] = 200;
    assert!(matches!(asked().read(&ladder), Some(Answer::Bad(_))));
    // In the question itself.
    let mut m = question;
    m[12..14].copy_from_slice(&0xc00c_u16.to_be_bytes());
    assert_eq!(asked().read(&m), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn no_octets_are_too_odd(tail in prop::collection::vec(any::<u8>(), 0..600), at in 0usize..60) {
        let _ = asked().read(&tail);
        let mut m = reply(Vec::new()).build_bytes_vec().unwrap();
        m[6..12].copy_from_slice(&[0, 3, 0, 2, 0, 2]);
        m.extend_from_slice(&tail);
        let _ = asked().read(&m);
        let _ = asked().read(&m[..at.min(m.len())]);
    }

    #[test]
    fn nor_are_changes_to_a_good_one(changes in prop::collection::vec((0usize..400, any::<u8>()), 1..12)) {
        let mut p = reply(vec![
            record("www.example.org", 60, alias("b.example")),
            record("b.example", 60, a(1)),
            record("b.example", 60, a(2)),
        ]);
        p.name_servers.push(record("example.org", 30, soa(60)));
        p.additional_records.push(record("ns.example.org", 30, a(9)));
        *p.opt_mut() = Some(OPT { opt_codes: Vec::new(), udp_packet_size: 1232, version: 0 });
        let mut m = p.build_bytes_vec_compressed().unwrap();
        let len = m.len();
        for (at, to) in changes {
            m[at % len] = to;
        }
        let _ = asked().read(&m);
        let _ = Asked { stream: true, ..asked() }.read(&m);
    }

    /// Every type of record that the library knows, with octets that mean nothing.
    #[test]
    fn nor_are_records_of_any_type(kind in any::<u16>(), data in prop::collection::vec(any::<u8>(), 0..80), lie in any::<u16>()) {
        let mut m = reply(Vec::new()).build_bytes_vec().unwrap();
        m[7] = 1;
        m.extend_from_slice(&[0xc0, 12]);
        m.extend_from_slice(&(kind % 300).to_be_bytes());
        m.extend_from_slice(&[0, 1, 0, 0, 0, 9]);
        let len = if lie.is_multiple_of(4) { lie } else { data.len() as u16 };
        m.extend_from_slice(&len.to_be_bytes());
        m.extend_from_slice(&data);
        let _ = asked().read(&m);
    }
}
