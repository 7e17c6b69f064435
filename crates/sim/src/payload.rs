//! What is in a datagram: from it the other end tells which one has come, and whether it is whole.

use crate::content;

/// Octets that a datagram begins with: its flow, its number, its length.
pub(crate) const HEADER: usize = 12;

/// The stream that a datagram's data is taken from.
fn stream(flow: usize, answer: bool, number: u32) -> u64 {
    (flow as u64) << 34 | u64::from(answer) << 33 | u64::from(number)
}

/// Writes datagram `number` of a flow, a request or an answer, over all of `buf`.
pub(crate) fn fill(flow: usize, answer: bool, number: u32, buf: &mut [u8]) {
    let words = [flow as u32, number, buf.len() as u32];
    for (at, word) in words.iter().enumerate() {
        buf[4 * at..4 * at + 4].copy_from_slice(&word.to_be_bytes());
    }
    content::fill(stream(flow, answer, number), 0, &mut buf[HEADER..]);
}

/// Which datagram it is, of which flow: whole, and one that could have been sent.
pub(crate) fn check(buf: &[u8], answer: bool, flows: usize) -> Result<(usize, u32), String> {
    let what = if answer { "answer" } else { "request" };
    let word = |n: usize| {
        let bytes = buf.get(4 * n..4 * n + 4)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    };
    let (Some(flow), Some(number), Some(len)) = (word(0), word(1), word(2)) else {
        return Err(format!("a {what} of {} octets", buf.len()));
    };
    let flow = flow as usize;
    if len as usize != buf.len() || flow >= flows {
        return Err(format!(
            "{what} {number} of flow {flow} has {} octets of {len}",
            buf.len()
        ));
    }
    let data = &buf[HEADER..];
    match content::mismatch(stream(flow, answer, number), 0, data) {
        None => Ok((flow, number)),
        Some(at) => Err(format!(
            "{what} {number} of flow {flow}, of {len} octets: octet {at} is wrong"
        )),
    }
}
