//! What both roles say on the control connection.

use super::{COOKIE, Data, LIMIT, Net, Params, attempt, bad};
use serde_json::{Value, json};
use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

/// The most JSON that is accepted, bytes.
const MOST: u32 = 1 << 20;

pub(super) fn read_exact<N: Net>(
    net: &mut N,
    s: &mut N::Stream,
    mut buf: &mut [u8],
) -> io::Result<()> {
    let end = Instant::now() + LIMIT;
    while !buf.is_empty() {
        match attempt(s.read(buf))? {
            Some(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Some(n) => buf = &mut buf[n..],
            None if Instant::now() > end => return Err(ErrorKind::TimedOut.into()),
            None => net.wait()?,
        }
    }
    Ok(())
}

pub(super) fn write_all<N: Net>(net: &mut N, s: &mut N::Stream, mut buf: &[u8]) -> io::Result<()> {
    let end = Instant::now() + LIMIT;
    while !buf.is_empty() {
        match attempt(s.write(buf))? {
            Some(n) => buf = &buf[n..],
            None if Instant::now() > end => return Err(ErrorKind::TimedOut.into()),
            None => net.wait()?,
        }
    }
    Ok(())
}

pub(super) fn write_state<N: Net>(net: &mut N, s: &mut N::Stream, state: i8) -> io::Result<()> {
    write_all(net, s, &state.to_be_bytes())
}

/// The other side's next state, if it has said one.
pub(super) fn poll_state<S: Read>(s: &mut S) -> io::Result<Option<i8>> {
    let mut b = [0];
    match attempt(s.read(&mut b))? {
        Some(0) => Err(ErrorKind::UnexpectedEof.into()),
        Some(_) => Ok(Some(i8::from_be_bytes(b))),
        None => Ok(None),
    }
}

pub(super) fn read_state<N: Net>(net: &mut N, s: &mut N::Stream) -> io::Result<i8> {
    let mut b = [0];
    read_exact(net, s, &mut b)?;
    Ok(i8::from_be_bytes(b))
}

pub(super) fn read_json<N: Net>(net: &mut N, s: &mut N::Stream) -> io::Result<Value> {
    let mut len = [0; 4];
    read_exact(net, s, &mut len)?;
    let len = u32::from_be_bytes(len);
    if len > MOST {
        return Err(bad(format!("{len} bytes of JSON")));
    }
    let mut text = vec![0; len as usize];
    read_exact(net, s, &mut text)?;
    serde_json::from_slice(&text).map_err(|e| bad(e.to_string()))
}

pub(super) fn write_json<N: Net>(net: &mut N, s: &mut N::Stream, v: &Value) -> io::Result<()> {
    let text = v.to_string();
    let mut out = (text.len() as u32).to_be_bytes().to_vec();
    out.extend_from_slice(text.as_bytes());
    write_all(net, s, &out)
}

pub(super) fn read_cookie<N: Net>(net: &mut N, s: &mut N::Stream) -> io::Result<[u8; COOKIE]> {
    let mut c = [0; COOKIE];
    read_exact(net, s, &mut c)?;
    Ok(c)
}

/// 36 letters and digits, and a zero.
pub(super) fn make_cookie() -> [u8; COOKIE] {
    let mut state = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |d| d.as_nanos() as u64)
        | 1;
    let mut c = [0; COOKIE];
    for b in &mut c[..COOKIE - 1] {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        *b = b"abcdefghijklmnopqrstuvwxyz234567"[(state >> 59) as usize];
    }
    c
}

impl Params {
    pub(super) fn to_json(&self) -> Value {
        let mut v = json!({
            "tcp": true,
            "omit": 0,
            "time": 0,
            "num": self.bytes,
            "blockcount": 0,
            "parallel": self.parallel,
            "len": self.len,
            "pacing_timer": 1000,
            "client_version": "3.12",
        });
        if self.reverse {
            v["reverse"] = json!(true);
        }
        if let Some(window) = self.window {
            v["window"] = json!(window);
        }
        v
    }

    pub(super) fn from_json(v: &Value) -> io::Result<Params> {
        if v["udp"].as_bool() == Some(true) || v["sctp"].as_bool() == Some(true) {
            return Err(bad("only TCP is spoken here"));
        }
        let number = |key: &str, default: u64| v[key].as_u64().unwrap_or(default);
        Ok(Params {
            bytes: number("num", 0),
            parallel: number("parallel", 1).clamp(1, 128) as usize,
            reverse: v["reverse"].as_bool().unwrap_or(false),
            len: number("len", 128 * 1024).clamp(1, 1 << 20) as usize,
            window: v["window"].as_u64().and_then(|n| n.try_into().ok()),
        })
    }
}

/// Bytes by stream.
pub(super) fn counts<S>(streams: &[Data<S>]) -> Vec<u64> {
    streams.iter().map(|d| d.bytes).collect()
}

/// This side's results. Streams are numbered 1, 3, 4, 5 and so on.
pub(super) fn results(counts: &[u64], time: Duration) -> Value {
    let streams: Vec<Value> = counts
        .iter()
        .enumerate()
        .map(|(i, bytes)| {
            json!({
                "id": if i == 0 { 1 } else { i + 2 },
                "bytes": bytes,
                "retransmits": -1,
                "jitter": 0,
                "errors": 0,
                "omitted_errors": 0,
                "packets": 0,
                "omitted_packets": 0,
                "start_time": 0,
                "end_time": time.as_secs_f64(),
            })
        })
        .collect();
    json!({
        "cpu_util_total": 0,
        "cpu_util_user": 0,
        "cpu_util_system": 0,
        "sender_has_retransmits": 0,
        "streams": streams,
    })
}

/// Bytes in results.
pub(super) fn bytes_of(v: &Value) -> u64 {
    let streams = v["streams"].as_array().map_or(&[][..], Vec::as_slice);
    streams.iter().filter_map(|s| s["bytes"].as_u64()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_survive() {
        for p in [
            Params::default(),
            Params {
                bytes: 1 << 30,
                parallel: 4,
                reverse: true,
                len: 1448,
                window: Some(1 << 20),
            },
        ] {
            assert_eq!(Params::from_json(&p.to_json()).unwrap(), p);
        }
        assert!(Params::from_json(&json!({"udp": true})).is_err());
    }

    #[test]
    fn cookies_are_text() {
        let c = make_cookie();
        assert_eq!(c[COOKIE - 1], 0);
        assert!(c[..COOKIE - 1].iter().all(u8::is_ascii_alphanumeric));
    }
}
