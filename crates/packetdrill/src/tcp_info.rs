//! Linux's `struct tcp_info` and `SO_MEMINFO` as bytes.
//!
//! The layout is that of `include/uapi/linux/tcp.h` in Linux 6.18. Fields that only Linux has
//! (accurate ECN counters, fast open) are zero.

use std::time::Duration;

use crate::backend::{Info, Memory};

/// Size of the whole structure.
pub const SIZE: usize = 280;

/// Linux's slow start threshold before the first loss.
const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;

/// Bits of `tcpi_options`.
mod option {
    pub const TIMESTAMPS: u8 = 1;
    pub const SACK: u8 = 2;
    pub const WSCALE: u8 = 4;
    pub const ECN: u8 = 8;
}

/// Appends fields in native byte order with C's alignment.
#[derive(Default)]
struct Layout(Vec<u8>);

impl Layout {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }
    fn u8(&mut self, v: u8) -> &mut Self {
        self.0.push(v);
        self
    }
    fn u16(&mut self, v: u16) -> &mut Self {
        self.align(2);
        self.0.extend(v.to_ne_bytes());
        self
    }
    fn u32(&mut self, v: u32) -> &mut Self {
        self.align(4);
        self.0.extend(v.to_ne_bytes());
        self
    }
    fn u64(&mut self, v: u64) -> &mut Self {
        self.align(8);
        self.0.extend(v.to_ne_bytes());
        self
    }
}

fn us(d: Duration) -> u32 {
    u32::try_from(d.as_micros()).unwrap_or(u32::MAX)
}

fn us64(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

fn ms(d: Duration) -> u32 {
    u32::try_from(d.as_millis()).unwrap_or(u32::MAX)
}

/// Lays `info` out as Linux does; the result is [`SIZE`] bytes long.
pub fn layout(info: &Info) -> Vec<u8> {
    let mut out = Layout::default();
    head(&mut out, info);
    metrics(&mut out, info);
    counters(&mut out, info);
    out.0
}

/// `tcpi_state` … `tcpi_fackets`.
fn head(out: &mut Layout, info: &Info) {
    let mut options = 0;
    for (on, bit) in [
        (info.timestamps, option::TIMESTAMPS),
        (info.sack, option::SACK),
        (info.window_scaling, option::WSCALE),
        (info.ecn, option::ECN),
    ] {
        options |= if on { bit } else { 0 };
    }
    out.u8(info.state as u8)
        .u8(info.ca_state as u8)
        .u8(info.retransmits)
        .u8(info.probes)
        .u8(info.backoff)
        .u8(options)
        // Bit fields of a little-endian machine fill from the low end.
        .u8(info.snd_wscale & 0xf | info.rcv_wscale << 4)
        .u8(u8::from(info.delivery_rate_app_limited))
        .u32(us(info.rto))
        .u32(us(info.ato))
        .u32(info.snd_mss)
        .u32(info.rcv_mss)
        .u32(info.unacked)
        .u32(info.sacked)
        .u32(info.lost)
        .u32(info.retrans)
        // tcpi_fackets: not kept by Linux any more.
        .u32(0);
}

/// `tcpi_last_data_sent` … `tcpi_total_retrans`.
fn metrics(out: &mut Layout, info: &Info) {
    out.u32(ms(info.since_data_sent))
        // tcpi_last_ack_sent: never kept.
        .u32(0)
        .u32(ms(info.since_data_received))
        .u32(ms(info.since_ack_received))
        .u32(info.pmtu)
        .u32(info.rcv_ssthresh)
        .u32(us(info.rtt))
        .u32(us(info.rttvar))
        .u32(info.snd_ssthresh.unwrap_or(INFINITE_SSTHRESH))
        .u32(info.snd_cwnd)
        .u32(info.advmss)
        .u32(info.reordering)
        .u32(us(info.rcv_rtt))
        .u32(info.rcv_space)
        .u32(info.total_retrans);
}

/// `tcpi_pacing_rate` … the end.
fn counters(out: &mut Layout, info: &Info) {
    out.u64(info.pacing_rate.unwrap_or(u64::MAX))
        // tcpi_max_pacing_rate: no limit.
        .u64(u64::MAX)
        .u64(info.bytes_acked)
        .u64(info.bytes_received)
        .u32(info.segs_out)
        .u32(info.segs_in)
        .u32(info.notsent_bytes)
        .u32(info.min_rtt.map_or(u32::MAX, us))
        .u32(info.data_segs_in)
        .u32(info.data_segs_out)
        .u64(info.delivery_rate)
        .u64(us64(info.busy_time))
        .u64(us64(info.rwnd_limited))
        .u64(us64(info.sndbuf_limited))
        .u32(info.delivered)
        .u32(info.delivered_ce)
        .u64(info.bytes_sent)
        .u64(info.bytes_retrans)
        .u32(info.dsack_dups)
        .u32(info.reord_seen)
        .u32(info.rcv_ooopack)
        .u32(info.snd_wnd)
        .u32(info.rcv_wnd)
        // tcpi_rehash
        .u32(0)
        .u16(info.total_rto)
        .u16(info.total_rto_recoveries)
        .u32(ms(info.total_rto_time));
    // tcpi_received_ce, six byte counters and the bit fields of accurate ECN.
    out.0.resize(SIZE, 0);
}

/// `SO_MEMINFO`: nine words.
pub fn meminfo(memory: &Memory) -> Vec<u8> {
    let mut out = Layout::default();
    out.u32(memory.receive_pinned)
        .u32(memory.receive_limit)
        .u32(memory.send_pinned)
        .u32(memory.send_limit)
        // SK_MEMINFO_FWD_ALLOC: Linux's pre-charged pages.
        .u32(0)
        .u32(memory.send_pinned)
        // SK_MEMINFO_OPTMEM, _BACKLOG, _DROPS
        .u32(0)
        .u32(0)
        .u32(0);
    out.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{CaState, State};

    #[test]
    fn fields_are_where_linux_has_them() {
        let info = Info {
            state: State::CloseWait,
            ca_state: CaState::Recovery,
            timestamps: true,
            ecn: true,
            snd_wscale: 7,
            rcv_wscale: 8,
            rto: Duration::from_millis(300),
            rcv_rtt: Duration::from_micros(92),
            total_retrans: 100,
            pacing_rate: Some(104),
            segs_out: 136,
            delivery_rate: 160,
            busy_time: Duration::from_micros(168),
            delivered: 192,
            bytes_sent: 200,
            dsack_dups: 216,
            rcv_ooopack: 224,
            snd_wnd: 228,
            total_rto: 240,
            total_rto_time: Duration::from_millis(244),
            snd_cwnd: 10,
            reordering: 3,
            min_rtt: Some(Duration::from_micros(148)),
            ..Info::default()
        };
        let bytes = layout(&info);
        assert_eq!(bytes.len(), SIZE);
        assert_eq!(&bytes[..8], &[8, 3, 0, 0, 0, 1 | 8, 0x87, 0]);
        // Offsets taken from the kernel's header by offsetof.
        for (offset, want) in [
            (8, 300_000),
            (92, 92),
            (100, 100),
            (104, 104),
            (136, 136),
            (148, 148),
            (160, 160),
            (168, 168),
            (192, 192),
            (200, 200),
            (216, 216),
            (224, 224),
            (228, 228),
            (240, 240),
            (244, 244),
            (76, INFINITE_SSTHRESH),
            (80, 10),
            (88, 3),
        ] {
            let word = u32::from_ne_bytes(bytes[offset..offset + 4].try_into().unwrap());
            assert_eq!(word, want, "at {offset}");
        }
        assert_eq!(meminfo(&Memory::default()).len(), 36);
    }
}
