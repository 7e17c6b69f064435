//! Tuples that an attacker picks, because they share a chain in one stack's table, are spread in
//! another's: what can be computed at home is of no use.

use perimeter_stack::shard::table_hash;
use perimeter_wire::FlowKey;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

/// Buckets of the table that the attacker aims at.
const BUCKETS: u64 = 1024;

fn tuples() -> impl Iterator<Item = FlowKey> {
    let local = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    (0..400_000u32).map(move |n| FlowKey {
        local,
        local_port: 80,
        remote: IpAddr::V4(Ipv4Addr::from(0xc612_0000 + n / 60_000)),
        remote_port: 1024 + (n % 60_000) as u16,
    })
}

/// The longest chain that these make under a secret, by low and by high bits.
fn longest(keys: &[FlowKey], secret: [u64; 2]) -> usize {
    let by = |bucket: fn(u64) -> u64| {
        let mut chains: HashMap<u64, usize> = HashMap::new();
        for k in keys {
            *chains.entry(bucket(table_hash(secret, k))).or_default() += 1;
        }
        chains.into_values().max().unwrap_or(0)
    };
    by(|h| h % BUCKETS).max(by(|h| h / (u64::MAX / BUCKETS + 1)))
}

#[test]
fn tuples_that_collide_for_one_stack_do_not_for_another() {
    let mine = [0x0123_4567_89ab_cdef, 0xfeed_face_cafe_f00d];
    let chosen: Vec<_> = tuples()
        .filter(|k| table_hash(mine, k) % BUCKETS == 7)
        .take(300)
        .collect();
    assert_eq!(
        chosen.len(),
        300,
        "the attacker's own table has a chain of them"
    );
    assert_eq!(longest(&chosen, mine), 300);
    let mut secret = mine;
    for n in 0..64u64 {
        // Secrets that differ in one bit, and quite other ones.
        secret[n as usize % 2] = match n {
            0..32 => mine[n as usize % 2] ^ (1 << (n * 2 % 64)),
            _ => {
                secret[0]
                    .rotate_left(17)
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    ^ n
            }
        };
        // 300 at random into 1024: more than eight in one is one in a million.
        let longest = longest(&chosen, secret);
        assert!(longest <= 8, "a chain of {longest} under {secret:x?}");
    }
}
