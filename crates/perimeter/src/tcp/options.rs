//! Options of connections.

use super::{TcpStream, hops, limit, set_limit};
use crate::addr;
use crate::error::io;
use perimeter_stack::ops::Setting;
use perimeter_tcp::Keepalive;
use std::io::Result;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl TcpStream {
    /// Calls do not wait but fail with `WouldBlock`, or wait again.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// client.set_nonblocking(true)?;
    /// let nothing_yet = client.read(&mut [0; 100]).expect_err("nobody has sent anything");
    /// assert_eq!(nothing_yet.kind(), ErrorKind::WouldBlock);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as `std::net`.
    pub fn set_nonblocking(&self, on: bool) -> Result<()> {
        self.h.nonblocking.store(on, Ordering::Relaxed);
        Ok(())
    }

    /// Limits how long a read waits; `None` is no limit.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// client.set_read_timeout(Some(Duration::from_millis(10)))?;
    /// assert_eq!(client.read_timeout()?, Some(Duration::from_millis(10)));
    /// let late = client.read(&mut [0; 100]).expect_err("nobody sends anything");
    /// assert_eq!(late.kind(), ErrorKind::WouldBlock);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The limit is zero.
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> Result<()> {
        set_limit(&self.h.read_limit, limit)
    }

    /// Limits how long a write waits; `None` is no limit.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// client.set_write_timeout(Some(Duration::from_millis(10)))?;
    /// assert_eq!(client.write_timeout()?, Some(Duration::from_millis(10)));
    /// // Nobody reads, so the buffers of both ends fill up.
    /// let late = loop {
    ///     if let Err(e) = client.write(&[0; 65536]) {
    ///         break e;
    ///     }
    /// };
    /// assert_eq!(late.kind(), ErrorKind::WouldBlock);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The limit is zero.
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> Result<()> {
        set_limit(&self.h.write_limit, limit)
    }

    /// How long a read waits; `None`: without limit. See [`TcpStream::set_read_timeout`].
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// // Waits for this one answer less long than for others.
    /// let before = client.read_timeout()?;
    /// client.set_read_timeout(Some(Duration::from_millis(10)))?;
    /// let late = client.read(&mut [0; 100]).expect_err("nobody sends anything");
    /// client.set_read_timeout(before)?;
    /// assert_eq!(client.read_timeout()?, before);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as `std::net`.
    pub fn read_timeout(&self) -> Result<Option<Duration>> {
        Ok(limit(&self.h.read_limit))
    }

    /// How long a write waits; `None`: without limit. See [`TcpStream::set_write_timeout`].
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// assert_eq!(client.write_timeout()?, None, "it waits for as long as it takes");
    /// client.set_write_timeout(Some(Duration::from_secs(1)))?;
    /// // A clone is the same socket.
    /// assert_eq!(client.try_clone()?.write_timeout()?, Some(Duration::from_secs(1)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as `std::net`.
    pub fn write_timeout(&self) -> Result<Option<Duration>> {
        Ok(limit(&self.h.write_limit))
    }

    fn set(&self, s: Setting) -> Result<()> {
        self.h.engine.set(self.h.id, s).map_err(io)
    }

    /// TCP_NODELAY: partial segments are sent at once.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// client.set_nodelay(true)?;
    /// assert!(client.nodelay()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_nodelay(&self, on: bool) -> Result<()> {
        self.set(Setting::NoDelay(on))
    }

    /// TCP_NODELAY.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// assert!(!client.nodelay()?, "small segments wait for acknowledgments");
    /// client.set_nodelay(true)?;
    /// assert!(client.nodelay()?);
    /// assert!(!server.nodelay()?, "each end has its own");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn nodelay(&self) -> Result<bool> {
        Ok(self.info()?.tcp.nodelay)
    }

    /// TCP_CORK: partial segments are held back, for up to 200 ms, until this is taken off.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// client.set_cork(true)?;
    /// client.write_all(b"head, ")?;
    /// client.write_all(b"body")?;
    /// // Both go in one segment.
    /// client.set_cork(false)?;
    /// let mut text = [0; 10];
    /// server.read_exact(&mut text)?;
    /// assert_eq!(&text, b"head, body");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_cork(&self, on: bool) -> Result<()> {
        self.set(Setting::Cork(on))
    }

    /// TCP_CORK.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// client.set_cork(true)?;
    /// assert!(client.cork()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn cork(&self) -> Result<bool> {
        Ok(self.info()?.tcp.cork)
    }

    /// SO_KEEPALIVE with its times.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// let probes = Keepalive::default().with_idle(Duration::from_secs(60));
    /// client.set_keepalive(Some(probes))?;
    /// assert_eq!(client.keepalive()?, Some(probes));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_keepalive(&self, k: Option<Keepalive>) -> Result<()> {
        self.set(Setting::Keepalive(k))
    }

    /// SO_KEEPALIVE with its times, to the millisecond; `None`: it is off.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// assert_eq!(client.keepalive()?, None, "a silent peer is not asked");
    /// client.set_keepalive(Some(Keepalive::default()))?;
    /// let asked = client.keepalive()?.ok_or("off")?;
    /// println!("after {:?}, every {:?}", asked.idle, asked.interval);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn keepalive(&self) -> Result<Option<Keepalive>> {
        Ok(self.info()?.tcp.keepalive)
    }

    /// TCP_USER_TIMEOUT (RFC 5482): how long sent data may stay unacknowledged.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// // A peer that acknowledges nothing for 10 s is given up: calls fail with `TimedOut`.
    /// client.set_user_timeout(Some(Duration::from_secs(10)))?;
    /// client.write_all(b"hello")?;
    /// assert_eq!(server.read(&mut [0; 100])?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_user_timeout(&self, t: Option<Duration>) -> Result<()> {
        self.set(Setting::UserTimeout(t))
    }

    /// TCP_USER_TIMEOUT in whole milliseconds, one at least; `None`: there is none.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// assert_eq!(client.user_timeout()?, None);
    /// client.set_user_timeout(Some(Duration::from_secs(10)))?;
    /// assert_eq!(client.user_timeout()?, Some(Duration::from_secs(10)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn user_timeout(&self) -> Result<Option<Duration>> {
        Ok(self.info()?.tcp.user_timeout)
    }

    /// SO_LINGER: closing waits this long for what was sent to be acknowledged; zero makes it
    /// a reset.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// client.set_linger(Some(Duration::ZERO))?;
    /// assert_eq!(client.linger()?, Some(Duration::ZERO));
    /// drop(client);
    /// let error = server.read(&mut [0; 100]).expect_err("closing sent a reset");
    /// assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_linger(&self, t: Option<Duration>) -> Result<()> {
        let ns = t.map_or(0, |t| {
            u64::try_from(t.as_nanos()).unwrap_or(u64::MAX - 1) + 1
        });
        self.h.linger.store(ns, Ordering::Relaxed);
        self.set(Setting::Linger(t))
    }

    /// SO_LINGER, as it was set; `None`: not at all.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// assert_eq!(client.linger()?, None, "closing does not wait");
    /// client.set_linger(Some(Duration::from_secs(5)))?;
    /// assert_eq!(client.linger()?, Some(Duration::from_secs(5)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as std.
    pub fn linger(&self) -> Result<Option<Duration>> {
        let ns = self.h.linger.load(Ordering::Relaxed);
        Ok(ns.checked_sub(1).map(Duration::from_nanos))
    }

    /// IP_TOS, over IPv6 IPV6_TCLASS: DSCP in the upper six bits, ECN in the lower two, of what is
    /// sent from now on. A stream that was accepted begins with what its listener's settings say
    /// ([`TcpConfig::tos`](crate::TcpConfig)), which is 0 by default.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// // Expedited Forwarding (RFC 3246).
    /// client.set_tos(46 << 2)?;
    /// assert_eq!(client.tos()?, 184);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_tos(&self, tos: u8) -> Result<()> {
        self.set(Setting::Tos(tos))
    }

    /// IP_TOS.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// client.set_tos(46 << 2)?;
    /// assert_eq!(client.tos()? >> 2, 46, "the DSCP");
    /// assert_eq!(server.tos()?, 0, "each end has its own");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn tos(&self) -> Result<u8> {
        Ok(self.info()?.tos)
    }

    /// IP_TTL, over IPv6 IPV6_UNICAST_HOPS: how many routers what is sent from now on may pass.
    /// Default: [`Config::ttl`](crate::Config).
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// client.set_ttl(8)?;
    /// assert_eq!(client.ttl()?, 8);
    /// let error = client.set_ttl(0).expect_err("no packet would arrive");
    /// assert_eq!(error.to_string(), "a time to live of 0; it can be 1 to 255");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput`: not 1 to 255; or the socket has gone.
    pub fn set_ttl(&self, ttl: u32) -> Result<()> {
        self.set(Setting::Ttl(hops(ttl)?))
    }

    /// IP_TTL.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// // What the stack's packets have.
    /// assert_eq!(client.ttl()?, 64);
    /// client.set_ttl(1)?;
    /// assert_eq!(client.ttl()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn ttl(&self) -> Result<u32> {
        Ok(self.info()?.ttl.into())
    }

    /// SO_BINDTODEVICE: the name of the interface by which alone its segments come and go; `None`: by
    /// any. It was bound to that before it connected
    /// ([`TcpSocket::bind_device`](crate::TcpSocket::bind_device)), or its listener was.
    ///
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let listener = stack.listen_as(&Listen::at("10.0.0.1:80".parse()?).bind_device("lo"))?;
    /// let client = stack.connect("10.0.0.1:80")?;
    /// let (server, _) = listener.accept()?;
    /// assert_eq!((server.device()?.as_deref(), client.device()?), (Some("lo"), None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn device(&self) -> Result<Option<String>> {
        let device = self.info()?.device;
        Ok(addr::name(&*self.h.engine, device))
    }

    /// SO_SNDBUF: the limit of the send buffer now, bytes.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// // How much can be written that nobody has acknowledged.
    /// let room = client.send_buffer_size()?;
    /// assert_eq!(room, stack.tcp_config().snd_buf);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn send_buffer_size(&self) -> Result<u32> {
        Ok(self.info()?.snd_limit)
    }

    /// SO_RCVBUF: the limit of the receive buffer now, bytes.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// // Room for a message, before its sender is told to go on.
    /// let message = 1 << 20;
    /// if server.recv_buffer_size()? < message {
    ///     server.set_recv_buffer_size(message)?;
    /// }
    /// assert_eq!(server.recv_buffer_size()?, message);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn recv_buffer_size(&self) -> Result<u32> {
        Ok(self.info()?.rcv_limit)
    }

    /// SO_SNDBUF, bytes.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// client.set_send_buffer_size(256 * 1024)?;
    /// assert_eq!(client.send_buffer_size()?, 256 * 1024);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_send_buffer_size(&self, bytes: u32) -> Result<()> {
        self.set(Setting::SendBuffer(bytes))
    }

    /// SO_RCVBUF, bytes.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// client.set_recv_buffer_size(256 * 1024)?;
    /// assert_eq!(client.recv_buffer_size()?, 256 * 1024);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_recv_buffer_size(&self, bytes: u32) -> Result<()> {
        self.set(Setting::RecvBuffer(bytes))
    }

    /// TCP_QUICKACK: acknowledges at once what has been received and comes next (`true`), or delays
    /// acknowledgments, to let them ride on answers, from the first segment on (`false`). As in
    /// Linux neither lasts: delaying ends when an acknowledgment found no answer to ride on, and
    /// quick acknowledgments end when the application answers.
    ///
    /// ```
    #[doc = include_str!("../examples/pair.txt")]
    /// // The peer's first segments are to be acknowledged at once.
    /// server.set_quickack(true)?;
    /// client.write_all(b"hello")?;
    /// assert_eq!(server.read(&mut [0; 100])?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_quickack(&self, on: bool) -> Result<()> {
        self.set(Setting::QuickAck(on))
    }
}
