//! What a gateway for streams and datagrams needs beside a stack: which destinations are allowed
//! ([`rules`]), how they are reached ([`upstream`]: directly, or by a proxy that speaks
//! [SOCKS5](socks) or [HTTP](http)), and how bytes get from one stream to another ([`mod@relay`]).
//!
//! Nothing here knows of the stack: its streams are [`AsyncRead`](tokio::io::AsyncRead) and
//! [`AsyncWrite`](tokio::io::AsyncWrite), and [`Abort`](relay::Abort).
#![forbid(unsafe_code)]

pub mod http;
pub mod relay;
pub mod rules;
pub mod socks;
pub mod upstream;
