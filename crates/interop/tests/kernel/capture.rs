//! What goes over the interface, in another program's eyes.

use crate::common::{LIMIT, alone, finish, peer_accepts, peer_connects, wind_up};
use crate::transfer::{receive, send};
use perimeter::OrgSpec;
use perimeter::link::pcap::{Pcap, PcapOptions};
use perimeter::link::tap::TapConfig;
use perimeter_interop::program::Program;
use perimeter_interop::taps;
use std::net::Shutdown;

/// Fields of the packets that match `filter`, checksums verified.
fn tshark(file: &str, filter: &str, fields: &[&str]) -> String {
    let mut args = vec!["-n", "-r", file, "-Y", filter, "-T", "fields"];
    args.extend([
        "-o",
        "tcp.check_checksum:TRUE",
        "-o",
        "ip.check_checksum:TRUE",
    ]);
    for f in fields {
        args.extend(["-e", f]);
    }
    Program::start("tshark", args, LIMIT).finish().ok()
}

#[test]
fn tshark_finds_nothing_wrong() {
    alone(&["tshark", "python3"], || {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("tap.pcapng");
        // Checksums complete on the wire, so that there is something to verify.
        let config = TapConfig::new(taps::NAME).with_checksum_offload(false);
        let tap = taps::open(&config).expect("a TAP interface");
        let options = PcapOptions::default();
        let (pcap, handle) = Pcap::create(Box::new(tap), &path, options).expect("a recording");
        let stack = taps::stack_on(&OrgSpec::default(), pcap);
        let p = peer_accepts(9030, &["transfer", "receive"]);
        let s = stack.connect(taps::kernel_at(9030)).expect("connected");
        let digest = send(&s, 3_000_000);
        s.shutdown(Shutdown::Write).expect("shut down");
        assert_eq!(finish(&stack, p), format!("3000000 {digest}"));
        drop(s);
        let l = stack.listen(taps::stack_at(7030)).expect("a listener");
        let p = peer_connects(7030, &["transfer", "send", "3000000"]);
        let s = crate::common::accept(&l);
        let (digest, n) = receive(&s);
        drop(s);
        assert_eq!(finish(&stack, p), format!("{n} {digest}"));
        drop(l);
        wind_up(&stack);
        handle.flush().expect("written");
        let file = path.to_str().expect("text");
        let count = |filter: &str| tshark(file, filter, &["frame.number"]).lines().count();
        // RFC numbers of status: 0 is bad, 1 is good.
        assert!(count("tcp.checksum.status == 1 && ip.src == 10.99.0.2") > 2000);
        // Linux sends a TCP checksum of 0 as 0xffff, as UDP does, and tshark calls that bad.
        let odd = "ip.src == 10.99.0.1 && tcp.checksum == 0xffff";
        let bad = format!("ip.checksum.status == 0 || (tcp.checksum.status == 0 && !({odd}))");
        assert_eq!(tshark(file, &bad, &["ip.src", "_ws.col.Info"]), "");
        assert_eq!(count("_ws.malformed"), 0);
        // The handshake as we meant it: MSS, scaling, timestamps and SACK are offered.
        let syn = "tcp.flags.syn == 1 && ip.src == 10.99.0.2";
        let fields = [
            "tcp.options.mss_val",
            "tcp.options.wscale.shift",
            "tcp.options.sack_perm",
        ];
        let syns = tshark(file, syn, &fields);
        assert_eq!(syns.lines().count(), 2, "{syns}");
        for line in syns.lines() {
            assert!(line.starts_with("1460\t8\t"), "{line}");
        }
        let anomalies = "tcp.analysis.window_full && tcp.analysis.ack_lost_segment";
        assert_eq!(count(anomalies), 0);
        assert_eq!(
            count("tcp.analysis.flags && tcp.analysis.zero_window_probe"),
            0
        );
    });
}
