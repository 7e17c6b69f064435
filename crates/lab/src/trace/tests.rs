use super::*;
use crate::published::published;

fn traced(org: &str) -> Trace {
    record(&org.parse().unwrap()).unwrap()
}

/// What Figure 4 lists is what `msgp` does, in that order; and nothing else takes a lock of the
/// kinds that it speaks of, but the send buffer's.
#[test]
fn a_send_under_msgp_locks_in_the_order_of_the_figure() {
    let order = published().order("send-locks").unwrap();
    let trace = traced("msgp");
    let steps = trace.locking();
    let agreement = compare(&order.steps, &steps);
    assert!(agreement.same_order(), "{agreement:?} {steps:?}");
    for i in agreement.besides {
        let class = &steps[i][1..];
        let expected = ["sndbuf", "tx_ring", "nic_tx", "poller", "control"];
        assert!(expected.contains(&class), "{class} besides: {steps:?}");
    }
    assert_eq!(trace.threads, ["caller"]);
    // Through all layers, from the top.
    let mut layers: Vec<Layer> = trace.steps.iter().map(|s| s.layer).collect();
    layers.dedup();
    let first = |l| layers.iter().position(|x| *x == l).unwrap();
    assert!(first(Layer::Socket) < first(Layer::Tcp), "{layers:?}");
    assert!(first(Layer::Tcp) < first(Layer::Ip), "{layers:?}");
    assert_eq!(
        layers.last(),
        Some(&Layer::Driver),
        "the doorbell: {layers:?}"
    );
}

#[test]
fn the_cure_of_the_bottleneck_is_seen_to_differ() {
    let order = published().order("send-locks").unwrap();
    let agreement = compare(&order.steps, &traced("msgp-modern").locking());
    assert_eq!(agreement.missing.len(), 2, "no table: {agreement:?}");
}

#[test]
fn whoever_is_woken_for_the_send_is_in_it() {
    let trace = traced("connp-t:1");
    assert_eq!(trace.threads.len(), 2, "{}", trace.text());
    let protocol: Vec<&Step> = trace.steps.iter().filter(|s| s.thread == 1).collect();
    let output = |s: &&&Step| s.doing == Doing::Work("tcp_output".into());
    assert_eq!(
        protocol.iter().filter(output).count(),
        1,
        "{}",
        trace.text()
    );
    assert!(!trace.locking().iter().any(|s| s.contains("conn_hashtable")));
}

#[test]
fn every_organization_sends_once_and_gives_back_what_it_takes() {
    for org in OrgSpec::all() {
        let trace = record(&org).unwrap();
        let outputs = trace.steps.iter();
        let output = |s: &&Step| s.doing == Doing::Work("tcp_output".into());
        assert_eq!(
            outputs.filter(output).count(),
            1,
            "{org}:\n{}",
            trace.text()
        );
        let mut held = vec![0; trace.locks.len()];
        for s in &trace.steps {
            match s.doing {
                Doing::Take(l) => held[l] += 1,
                Doing::Release(l) => held[l] -= 1,
                _ => {}
            }
        }
        assert!(held.iter().all(|n| *n == 0), "{org}:\n{}", trace.text());
        assert_eq!(trace, record(&org).unwrap(), "{org}: the same each time");
        if org.single_threaded() {
            assert_eq!(trace.locks, [], "{org}");
        }
    }
}
