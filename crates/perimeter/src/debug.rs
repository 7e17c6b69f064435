//! `Debug` of handles: what they are called, without entering a perimeter. `{:?}` never waits, also
//! where a log line is written by a thread that the stack does not know.

use crate::control::name;
use crate::{
    Builder, Datagrams, Events, Poll, Registry, SharedFile, Stack, TcpListener, TcpStream,
    UdpSocket, Waker,
};
use core::fmt::{Debug, Formatter, Result};

impl Debug for Builder {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Builder")
            .field("organization", &self.named())
            .finish_non_exhaustive()
    }
}

impl Debug for Stack {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Stack")
            .field("organization", &self.organization().to_string())
            .finish_non_exhaustive()
    }
}

macro_rules! sockets {
    ($($name:ident),*) => {$(
        impl Debug for $name {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                let (engine, id) = self.raw();
                f.debug_struct(stringify!($name))
                    .field("id", &format_args!("{}", name(id)))
                    .field("organization", &engine.spec().to_string())
                    .finish_non_exhaustive()
            }
        }
    )*};
}

sockets!(TcpStream, TcpListener, UdpSocket);

macro_rules! opaque {
    ($($name:ident),*) => {$(
        impl Debug for $name {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}

opaque!(Poll, Registry, Waker);

impl Debug for Events {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Debug for Datagrams {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Datagrams")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Debug for SharedFile {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("SharedFile")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::link::wire::{WireConfig, pair};
    use crate::{Interest, Native, Stack};

    #[test]
    fn handles_say_what_they_are() {
        let native = Native::default();
        let ([a, _b], _) = pair(&native, WireConfig::default());
        let builder = Stack::builder().on_native(native);
        let builder = builder.organization("connp-l:8").unwrap();
        let builder = builder.interface(a, &["10.0.0.1/24"]).unwrap();
        let text = format!("{builder:?}");
        assert!(
            text.starts_with("Builder") && text.contains("connp-l:8"),
            "{text}"
        );
        let stack = builder.build().unwrap();
        let listener = stack.listen("10.0.0.1:80").unwrap();
        let socket = stack.bind_udp("10.0.0.1:53").unwrap();
        let all = format!(
            "{stack:?} {listener:?} {socket:?} {:?}",
            stack.poll().unwrap()
        );
        for want in [
            "Stack {",
            "TcpListener { id: ",
            "UdpSocket { id: ",
            "Poll {",
            "connp-l:8",
        ] {
            assert!(all.contains(want), "{want}: {all}");
        }
    }

    #[test]
    fn interests_are_joined() {
        let both = Interest::READABLE | Interest::WRITABLE;
        assert_eq!(both, Interest::BOTH);
        let edge = Interest::READABLE.edge() | Interest::WRITABLE;
        assert_eq!(edge, Interest::BOTH.edge());
    }
}
