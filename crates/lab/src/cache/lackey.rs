//! The trace of valgrind's lackey, line by line.
//!
//! `I  04001000,3` is an instruction, ` L`, ` S` and ` M` are its loads, stores and both at once,
//! each with an address in hexadecimal and a size in bytes. Between them may stand what valgrind
//! and the program themselves have to say.

/// What a line says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line<'a> {
    /// An instruction begins.
    Instruction(u64),
    /// Memory is read, or written, which includes both at once.
    Access {
        /// First byte.
        address: u64,
        /// Bytes.
        len: u64,
        /// Whether it is written.
        write: bool,
    },
    /// Something else.
    Said(&'a [u8]),
}

/// Reads a line, without its end.
pub fn parse(line: &[u8]) -> Line<'_> {
    let access = |rest, write| {
        numbers(rest).map(|(address, len)| Line::Access {
            address,
            len,
            write,
        })
    };
    let read = match line {
        [b'I', b' ', b' ', rest @ ..] => numbers(rest).map(|(a, _)| Line::Instruction(a)),
        [b' ', b'L', b' ', rest @ ..] => access(rest, false),
        [b' ', b'S' | b'M', b' ', rest @ ..] => access(rest, true),
        _ => None,
    };
    read.unwrap_or(Line::Said(line))
}

/// `address,size`.
fn numbers(text: &[u8]) -> Option<(u64, u64)> {
    let comma = text.iter().position(|b| *b == b',')?;
    Some((number(&text[..comma], 16)?, number(&text[comma + 1..], 10)?))
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |n, b| {
        let digit = char::from(*b).to_digit(radix)?;
        n.checked_mul(u64::from(radix))?
            .checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines() {
        let access = |address, len, write| Line::Access {
            address,
            len,
            write,
        };
        let table: [(&[u8], Line<'_>); 9] = [
            (b"I  04001000,3", Line::Instruction(0x400_1000)),
            (b" L 1ffeffe7e0,8", access(0x1f_feff_e7e0, 8, false)),
            (b" S 04222cac,4", access(0x422_2cac, 4, true)),
            (b" M 0421c7cc,32", access(0x421_c7cc, 32, true)),
            (b"==7== Lackey", Line::Said(b"==7== Lackey")),
            (b"", Line::Said(b"")),
            (b"I  ,3", Line::Said(b"I  ,3")),
            (b" L 12g4,8", Line::Said(b" L 12g4,8")),
            (
                b" L 11112222333344445,8",
                Line::Said(b" L 11112222333344445,8"),
            ),
        ];
        for (text, line) in table {
            assert_eq!(parse(text), line);
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = parse(&text);
        }
    }
}
