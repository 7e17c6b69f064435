//! What a stranger must not be able to guess, as it is seen on the wire: the ports that `connect`
//! and `listen` choose, and the IP identifications of connections.

use crate::lan::*;
use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};

/// Another host behind the gateway for each `n`.
fn far(n: u32) -> SocketAddr {
    (Ipv4Addr::from_bits(FAR.to_bits() + n), 80).into()
}

/// The SYN of a connection to `to`.
fn syn(lan: &mut Lan, to: SocketAddr) -> Out {
    let c = lan.s.start_connect(to).unwrap();
    lan.ms(1);
    let syn = lan.segments().remove(0);
    c.abort().unwrap();
    lan.ms(1);
    lan.take();
    syn
}

/// From one to the next, around the range of ports.
fn steps(ports: &[u16]) -> Vec<i64> {
    let apart = |w: &[u16]| (i64::from(w[1]) - i64::from(w[0])).rem_euclid(28_232);
    ports.windows(2).map(apart).collect()
}

#[test]
fn ports_to_many_hosts_say_nothing_about_each_other() {
    under_all(24, |lan| {
        lan.meet_gateway();
        let org = lan.s.organization().to_string();
        let ports: Vec<u16> = (1..200).map(|n| syn(lan, far(n)).hdr.src_port).collect();
        assert!(ports.iter().all(|p| (32_768..=60_999).contains(p)), "{org}");
        let (all, steps) = (ports.iter().collect::<HashSet<_>>(), steps(&ports));
        assert!(all.len() > 190, "{org}: {}", all.len());
        // Each eighth of the range gets some 25, as places and as distances.
        for eighth in 0..8i64 {
            let within = |x: i64| x * 8 / 28_232 == eighth;
            let at = ports.iter().filter(|p| within(i64::from(**p) - 32_768));
            let apart = steps.iter().filter(|s| within(**s)).count();
            let at = at.count();
            assert!(
                (8..50).contains(&at) && (8..50).contains(&apart),
                "{org}: {ports:?}"
            );
        }
    });
}

#[test]
fn ports_to_one_host_are_random_steps_apart_and_listening_changes_nothing() {
    under_all(24, |lan| {
        lan.meet_gateway();
        let org = lan.s.organization().to_string();
        let mut ports = Vec::new();
        let mut listening = Vec::new();
        for n in 0..120 {
            ports.push(syn(lan, far(0)).hdr.src_port);
            if n % 3 == 0 {
                lan.s.listen("0.0.0.0:8080").unwrap().close().unwrap();
                let l = lan.s.listen("0.0.0.0:0").unwrap();
                listening.push(l.local_addr().unwrap().port());
                l.close().unwrap();
            }
        }
        let distinct = |p: &[u16]| p.iter().collect::<HashSet<_>>().len();
        assert_eq!((distinct(&ports), distinct(&listening)), (120, 40), "{org}");
        let steps = steps(&ports);
        assert!(
            steps.iter().all(|s| (1..=8).contains(s)),
            "{org}: {steps:?}"
        );
        for step in 1..=8 {
            let n = steps.iter().filter(|s| **s == step).count();
            assert!((3..40).contains(&n), "{org}: {n} steps of {step}");
        }
    });
}

/// The flow's hash is public, so what is combined with it must not be the same for any two
/// connections.
#[test]
fn the_first_ip_identification_tells_nothing_of_a_key() {
    under_all(24, |lan| {
        lan.meet_gateway();
        let org = lan.s.organization().to_string();
        let mut told = [HashSet::new(), HashSet::new(), HashSet::new()];
        for n in 1..60 {
            let syn = syn(lan, far(n));
            let local = SocketAddr::from((US, syn.hdr.src_port));
            let hash = lan.s.engine().flow_hash(local, far(n)) as u16;
            let first = syn.ident.wrapping_sub(1);
            told[0].insert(first);
            told[1].insert(first ^ hash);
            told[2].insert(first.wrapping_sub(hash));
        }
        assert!(told.iter().all(|t| t.len() > 55), "{org}: {told:?}");
    });
}
