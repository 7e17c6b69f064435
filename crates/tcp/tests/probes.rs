//! Tail loss probes and the reordering window (RFC 8985), as packet scripts.
#![allow(missing_docs)]

#[path = "common/script.rs"]
mod script;

use script::{OPEN_SACK, sack, with};

/// Runs a script with tail loss probes.
fn probing(text: &str) {
    with(
        |c| c.loss_probe = true,
        |s| {
            s.go(OPEN_SACK);
            s.go(text);
        },
    );
}

#[test]
fn a_probe_comes_before_the_timeout() {
    probing(
        "
    +0 write(4, ..., 4000) = 4000
    +0 > P. 1:4001(4000) ack 1
    +.202 > P. 3001:4001(1000) ack 1
    +.1 < . 1:1(0) ack 1 win 400 <sack 3001:4001>
    +.2 > . 1:1001(1000) ack 1
    +.6 > . 1:1001(1000) ack 1
    ",
    );
    // A lone segment's acknowledgment may be delayed; then the timeout's time comes first.
    probing(
        "
    +0 write(4, ..., 1000) = 1000
    +0 > P. 1:1001(1000) ack 1
    +.3 > P. 1:1001(1000) ack 1
    +.3 > P. 1:1001(1000) ack 1
    +.6 > P. 1:1001(1000) ack 1
    ",
    );
    // New data postpones the probe, but not beyond the timeout.
    probing(
        "
    +0 write(4, ..., 1000) = 1000
    +0 > P. 1:1001(1000) ack 1
    +.1 write(4, ..., 1000) = 1000
    +0 > P. 1001:2001(1000) ack 1
    +.1 write(4, ..., 1000) = 1000
    +0 > P. 2001:3001(1000) ack 1
    +.1 > P. 2001:3001(1000) ack 1
    +.3 > . 1:1001(1000) ack 1
    ",
    );
    // The last segment is the FIN's where it left alone.
    probing(
        "
    +0 write(4, ..., 4000) = 4000
    +0 > P. 1:4001(4000) ack 1
    +.01 close(4) = 0
    +0 > F. 4001:4001(0) ack 1
    +.202 > F. 4001:4001(0) ack 1
    +.01 < . 1:1(0) ack 4002 win 400
    ",
    );
    // A FIN is data to a probe.
    probing(
        "
    +0 close(4) = 0
    +0 > F. 1:1(0) ack 1
    +.3 > F. 1:1(0) ack 1
    +.3 > F. 1:1(0) ack 1
    ",
    );
}

#[test]
fn a_loss_that_a_probe_repaired_reduces_the_window() {
    probing(
        "
    +0 write(4, ..., 4000) = 4000
    +0 > P. 1:4001(4000) ack 1
    +.1 < . 1:1(0) ack 3001 win 400
    +.3 > P. 3001:4001(1000) ack 1
    +.1 < . 1:1(0) ack 4001 win 400
    +0 write(4, ..., 1000) = 1000
    +0 > P. 4001:5001(1000) ack 1
    +.1 < . 1:1(0) ack 5001 win 400
    +0 %{ assert tcpi_snd_ssthresh == 7
assert tcpi_snd_cwnd == 7
assert tcpi_ca_state == TCP_CA_Open }%
    ",
    );
}

#[test]
fn a_probe_for_nothing_costs_nothing() {
    probing(
        "
    +0 write(4, ..., 4000) = 4000
    +0 > P. 1:4001(4000) ack 1
    +.202 > P. 3001:4001(1000) ack 1
    +.01 < . 1:1(0) ack 4001 win 400
    +.01 < . 1:1(0) ack 4001 win 400 <sack 3001:4001>
    +0 write(4, ..., 2000) = 2000
    +0 > P. 4001:6001(2000) ack 1
    +.1 < . 1:1(0) ack 6001 win 400
    +0 %{ assert tcpi_snd_cwnd == 10 }%
    ",
    );
}

/// RFC 8985, section 7.2: also while unsent data waits for the congestion window. The loss of
/// the whole first flight is then repaired before the timeout, without falling back to one
/// segment.
#[test]
fn a_first_flight_that_is_lost_costs_no_timeout() {
    with(
        |c| {
            c.loss_probe = true;
            c.reorder_timer = true;
        },
        |s| {
            s.go("
    0 listen(3, 1) = 0
    +0 < S 0:0(0) win 40000 <mss 1000,sackOK,nop,wscale 7>
    +0 > S. 0:0(0) ack 1 <mss 1460,sackOK,nop,wscale 8>
    +.02 < . 1:1(0) ack 1 win 400
    +0 write(4, ..., 40000) = 40000
    +0 > P. 1:10001(10000) ack 1
    +.042 > . 10001:11001(1000) ack 1
    +.02 < . 1:1(0) ack 1 win 400 <sack 10001:11001>
    +.007 > . 1:1001(1000) ack 1
    +0 %{ assert tcpi_ca_state == TCP_CA_Recovery }%
            ");
        },
    );
    // The peer's window is as good a reason to wait as ours.
    probing(
        "
    +0 write(4, ..., 4000) = 4000
    +0 > P. 1:4001(4000) ack 1
    +.1 < . 1:1(0) ack 4001 win 16
    +0 write(4, ..., 4000) = 4000
    +0 > P. 4001:6001(2000) ack 1
    +.202 > . 5001:6001(1000) ack 1
    ",
    );
}

/// Runs a script with the reordering window's timer.
fn reordering(text: &str) {
    with(
        |c| c.reorder_timer = true,
        |s| {
            s.go(OPEN_SACK);
            s.go(text);
        },
    );
}

#[test]
fn one_sack_is_enough_after_the_reordering_window() {
    reordering(
        "
    +0 write(4, ..., 4000) = 4000
    +0 > P. 1:4001(4000) ack 1
    +.1 < . 1:1(0) ack 1 win 400 <sack 1001:2001>
    +.027 > . 1:1001(1000) ack 1
    +0 %{ assert tcpi_ca_state == TCP_CA_Recovery
assert tcpi_lost == 1 }%
    +.1 < . 1:1(0) ack 4001 win 400
    +0 %{ assert tcpi_ca_state == TCP_CA_Open
assert tcpi_snd_cwnd == 7 }%
    ",
    );
    // Late, not lost.
    reordering(
        "
    +0 write(4, ..., 4000) = 4000
    +0 > P. 1:4001(4000) ack 1
    +.1 < . 1:1(0) ack 1 win 400 <sack 1001:2001>
    +.02 < . 1:1(0) ack 4001 win 400
    +0 write(4, ..., 1000) = 1000
    +0 > P. 4001:5001(1000) ack 1
    +.1 < . 1:1(0) ack 5001 win 400
    +0 %{ assert tcpi_ca_state == TCP_CA_Open
assert tcpi_snd_cwnd == 10 }%
    ",
    );
    // The last octet alone may be the end of a segment whose beginning is on its way.
    reordering(
        "
    +0 write(4, ..., 4000) = 4000
    +0 > P. 1:4001(4000) ack 1
    +.1 < . 1:1(0) ack 1 win 400 <sack 4000:4001>
    +.2 > . 1:1001(1000) ack 1
    ",
    );
}

#[test]
fn a_retransmission_that_later_ones_overtook_is_lost() {
    sack(
        "
    +0 write(4, ..., 10000) = 10000
    +0 > P. 1:10001(10000) ack 1
    +.1 < . 1:1(0) ack 1 win 400 <sack 3001:10001>
    +0 > . 1:3001(3000) ack 1
    +.01 < . 1:1(0) ack 1 win 400 <sack 1001:2001 3001:10001>
    +.09 < . 1:1(0) ack 1 win 400 <sack 1001:3001>
    +0 > . 1:1001(1000) ack 1
    +.1 < . 1:1(0) ack 10001 win 400
    +0 %{ assert tcpi_ca_state == TCP_CA_Open }%
    ",
    );
}
