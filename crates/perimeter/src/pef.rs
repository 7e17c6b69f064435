//! Lists of events of the packet event framework (`pef:…`): how programs put their own events on
//! the lists that a connection's packets run through, and watch a connection's segments.
//!
//! Under other organizations all of this is an error of kind `Unsupported`; what is set on a
//! [`TcpSocket`] for a connection to come has no effect there.
//!
//! The paper's socket options (Yu and Curtis, section 3.2.2), of level `IPPROTO_IP`:
//!
//! | option | what it says | before `connect` or `listen` | on a listener, for what it accepts | on a live connection |
//! |---|---|---|---|---|
//! | `SO_PEFON` | whether packets run through the connection's lists | [`TcpSocket::set_events_on`] | [`TcpListener::set_events_on`] | [`TcpStream::set_events_on`] |
//! | `SO_SETSQP` | the squeue of a layer | [`TcpSocket::set_squeue`] | [`TcpListener::set_squeue`] | [`TcpStream::set_squeue`] |
//!
//! Both are part of [`Config`](crate::Config) too: [`Layers`].

use crate::error::io;
use crate::poll::Source;
use crate::{Stack, TcpListener, TcpSocket, TcpStream};
use perimeter_stack::ops::Setting;
pub use perimeter_tcp::Layers;
use std::io::Result;
use std::sync::Arc;

pub use perimeter_org::Binding;
pub use perimeter_org::pef::event::{
    Direction, End, EventId, EventSpec, Layer, Packet, PacketEvent, Peek, Traced, Under, Verdict,
};

impl Stack {
    /// Adds an event to the lists that connections start with, at the back of its major layer:
    /// at start-up, before there are any sockets. Or, at any time, to the lists of datagrams that are
    /// received ([`Direction::Datagram`]) and sent ([`Direction::SentDatagram`]), or to that of packets
    /// that belong to nobody.
    ///
    /// ```
    #[doc = include_str!("examples/pef.txt")]
    /// let seen = Arc::new(AtomicU32::new(0));
    /// let counter = seen.clone();
    /// let count = move |packet: &mut Packet<'_>| {
    ///     counter.fetch_add(packet.len, Relaxed);
    ///     Verdict::Next
    /// };
    /// stack.register_event(EventSpec {
    ///     name: "count".into(),
    ///     direction: Direction::Receive,
    ///     layer: Layer::Tcp,
    ///     under: Under::Layer,
    ///     event: Arc::new(count),
    /// })?;
    /// let [mut client, mut server] = connect()?;
    /// client.write_all(b"hello")?;
    /// server.read_exact(&mut [0; 5])?;
    /// assert_eq!(seen.load(Relaxed), 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A filter that drops datagrams from privileged ports:
    ///
    /// ```
    #[doc = include_str!("examples/pef.txt")]
    /// let filter = |packet: &mut Packet<'_>| match packet.flow.remote_port {
    ///     ..1024 => Verdict::Done,
    ///     _ => Verdict::Next,
    /// };
    /// stack.register_event(EventSpec {
    ///     name: "filter".into(),
    ///     direction: Direction::Datagram,
    ///     layer: Layer::Ip,
    ///     under: Under::Layer,
    ///     event: Arc::new(filter),
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There are, or were, sockets; or the organization has no lists.
    pub fn register_event(&self, spec: EventSpec) -> Result<EventId> {
        self.engine().register_event(spec).map_err(io)
    }

    /// Sends a whole frame by interface number `iface`, as it is: the other half of a protocol
    /// that is added by events for packets without a connection ([`Direction::Unbound`]).
    ///
    /// ```
    /// # use perimeter::{Native, Stack, link, pef::{Direction, EventSpec, Layer, Packet, Under, Verdict}};
    /// # use std::{sync::{Arc, Mutex, mpsc}, time::Duration};
    /// # let native = Native::default();
    /// # let ([a, b], _) = link::wire::pair(&native, Default::default());
    /// # let build = |device, addr| Stack::builder().on_native(native).organization("pef:vertical")?.interface(device, &[addr])?.build();
    /// # let (near, far) = (build(a, "10.0.0.1/24")?, build(b, "10.0.0.2/24")?);
    /// let (tell, told) = mpsc::channel();
    /// let hear = move |packet: &mut Packet<'_>| {
    ///     let _ = tell.send(packet.payload.to_vec());
    ///     Verdict::Done
    /// };
    /// far.register_event(EventSpec {
    ///     name: "hear".into(),
    ///     direction: Direction::Unbound,
    ///     layer: Layer::Ip,
    ///     under: Under::Nothing,
    ///     event: Arc::new(hear),
    /// })?;
    /// // To all stations, of a type for experiments (IEEE 802).
    /// let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &[0x88, 0xb5], &[0; 46]].concat();
    /// near.send_frame(0, &frame)?;
    /// assert_eq!(told.recv_timeout(Duration::from_secs(20))?, frame);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The stack belongs to another thread.
    pub fn send_frame(&self, iface: u16, frame: &[u8]) -> Result<()> {
        self.engine().send_frame(iface, frame).map_err(io)
    }
}

impl TcpStream {
    /// Adds an event to its major layer in one of the connection's lists, at one end. Packets
    /// under way finish on the list that they started with.
    ///
    /// ```
    #[doc = include_str!("examples/pef.txt")]
    /// let [mut client, mut server] = connect()?;
    /// // What arrives is turned into capitals, before it is in the receive buffer.
    /// let shout = |packet: &mut Packet<'_>| {
    ///     packet.payload.make_ascii_uppercase();
    ///     Verdict::Next
    /// };
    /// server.insert_event(End::Front, EventSpec {
    ///     name: "shout".into(),
    ///     direction: Direction::Receive,
    ///     layer: Layer::Tcp,
    ///     under: Under::Layer,
    ///     event: Arc::new(shout),
    /// })?;
    /// client.write_all(b"hello")?;
    /// let mut text = [0; 5];
    /// server.read_exact(&mut text)?;
    /// assert_eq!(&text, b"HELLO");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The connection has gone, its lists are switched off, or the organization has none.
    pub fn insert_event(&self, end: End, spec: EventSpec) -> Result<EventId> {
        let (engine, id) = self.source();
        engine.insert_event(id, end, spec).map_err(io)
    }

    /// Takes an event off: no packet enters it any more. What a thread is doing in it at this
    /// moment it finishes.
    ///
    /// ```
    #[doc = include_str!("examples/pef.txt")]
    /// # let nothing = Arc::new(|_: &mut Packet<'_>| Verdict::Next);
    /// # let spec = EventSpec { name: "nothing".into(), direction: Direction::Receive, layer: Layer::Tcp, under: Under::Layer, event: nothing };
    /// let [client, server] = connect()?;
    /// let event = server.insert_event(End::Back, spec)?;
    /// assert!(server.binding().events[0].contains(&"nothing".into()));
    /// server.disable_event(event)?;
    /// assert!(!server.binding().events[0].contains(&"nothing".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The connection has gone, or has no such event; or the event's callback has panicked and it
    /// is off already (kind `Other`).
    pub fn disable_event(&self, event: EventId) -> Result<()> {
        let (engine, id) = self.source();
        engine.disable_event(id, event).map_err(io)
    }

    /// Tells `sink` of each segment that this connection receives or sends from now on, in its
    /// order, until that answers `false`. It is called inside TCP's perimeter, so it should hand
    /// on and not wait. Returns the names of the two tracing events.
    ///
    /// ```
    #[doc = include_str!("examples/pef.txt")]
    /// let [mut client, mut server] = connect()?;
    /// let (tell, told) = mpsc::channel();
    /// server.trace(move |segment| tell.send(segment.clone()).is_ok())?;
    /// client.write_all(b"hello")?;
    /// let first: Traced = told.recv_timeout(Duration::from_secs(20))?;
    /// println!("{first}");
    /// assert_eq!((first.direction, first.len), (Direction::Receive, 5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`TcpStream::insert_event`].
    pub fn trace(
        &self,
        sink: impl Fn(&Traced) -> bool + Send + Sync + 'static,
    ) -> Result<[EventId; 2]> {
        let (engine, id) = self.source();
        engine.trace(id, Arc::new(sink)).map_err(io)
    }

    /// SO_PEFON: whether the connection's packets run through its lists of events. Off, they
    /// take the path of `squeue`; on again, the lists are as they were.
    ///
    /// ```
    #[doc = include_str!("examples/pef.txt")]
    /// let [mut client, mut server] = connect()?;
    /// server.set_events_on(false)?;
    /// // It works as before, without the detour.
    /// client.write_all(b"hello")?;
    /// assert_eq!(server.read(&mut [0; 100])?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The connection has gone, or the organization has no lists.
    pub fn set_events_on(&self, on: bool) -> Result<()> {
        let (engine, id) = self.source();
        engine.set_events_on(id, on).map_err(io)
    }

    /// SO_SETSQP: the squeue, modulo how many there are, that a layer of this connection runs
    /// under from the next moment on at which none of its packets is between squeues. TCP's state
    /// then moves to the other squeue.
    ///
    /// ```
    #[doc = include_str!("examples/pef.txt")]
    /// let [client, server] = connect()?;
    /// server.set_squeue(Layer::Sockfs, 0)?;
    /// assert_eq!(server.binding().perimeters[2], "squeue 0");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The connection has gone, or the organization has no squeues to choose.
    pub fn set_squeue(&self, layer: Layer, squeue: u16) -> Result<()> {
        let (engine, id) = self.source();
        engine.set_squeue(id, layer, squeue).map_err(io)
    }

    /// Perimeters, cores and lists of events of the connection's layers, as far as the
    /// organization has any.
    ///
    /// ```
    #[doc = include_str!("examples/pef.txt")]
    /// let [client, server] = connect()?;
    /// let binding = server.binding();
    /// println!("TCP runs in {}, bound to core {:?}", binding.perimeters[1], binding.cores[1]);
    /// assert!(binding.perimeters[1].starts_with("squeue"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn binding(&self) -> Binding {
        let (engine, id) = self.source();
        engine.binding(id)
    }
}

/// SO_SETSQP of one layer.
fn at(layer: Layer, squeue: u16) -> Setting {
    let layers = Layers::default();
    Setting::Layers(match layer {
        Layer::Ip => layers.with_ip(Some(squeue)),
        Layer::Tcp => layers.with_tcp(Some(squeue)),
        Layer::Sockfs => layers.with_sockfs(Some(squeue)),
    })
}

/// SO_PEFON.
fn events(on: bool) -> Setting {
    Setting::Layers(Layers::default().with_events(Some(on)))
}

impl TcpSocket {
    /// SO_PEFON, as [`TcpStream::set_events_on`], of the connection to come, or of those that the
    /// listener accepts. Without effect under organizations without lists.
    ///
    /// ```
    #[doc = include_str!("examples/pef.txt")]
    /// # let [client, server] = connect()?;
    /// let socket = stack.tcp_socket_v4();
    /// socket.set_events_on(false)?;
    /// assert_eq!(socket.config().layers.events, Some(false));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today.
    pub fn set_events_on(&self, on: bool) -> Result<()> {
        self.set(events(on))
    }

    /// SO_SETSQP: the squeue, modulo how many there are, that a layer of the connection to come
    /// runs under, TCP's too; or of those that the listener accepts. Without effect under
    /// organizations without squeues to choose.
    ///
    /// ```
    #[doc = include_str!("examples/pef.txt")]
    /// # let [client, server] = connect()?;
    /// let socket = stack.tcp_socket_v4();
    /// socket.set_squeue(Layer::Tcp, 0)?;
    /// assert_eq!(socket.config().layers.tcp, Some(0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today.
    pub fn set_squeue(&self, layer: Layer, squeue: u16) -> Result<()> {
        self.set(at(layer, squeue))
    }
}

impl TcpListener {
    /// SO_PEFON, as [`TcpStream::set_events_on`], of connections that are accepted from now on.
    ///
    /// ```
    #[doc = include_str!("examples/pef.txt")]
    /// # let [client, server] = connect()?;
    /// let listener = stack.listen("10.0.0.1:81")?;
    /// listener.set_events_on(false)?;
    /// let mut client = stack.connect("10.0.0.1:81")?;
    /// let (mut server, _) = listener.accept()?;
    /// // By squeue's path, not by lists.
    /// client.write_all(b"hello")?;
    /// assert_eq!(server.read(&mut [0; 100])?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The listener was closed, or the organization has no lists.
    pub fn set_events_on(&self, on: bool) -> Result<()> {
        self.set(events(on))
    }

    /// SO_SETSQP: the squeue, modulo how many there are, that a layer of connections runs under
    /// that are accepted from now on, TCP's too.
    ///
    /// ```
    #[doc = include_str!("examples/pef.txt")]
    /// # let [client, server] = connect()?;
    /// let listener = stack.listen("10.0.0.1:81")?;
    /// listener.set_squeue(Layer::Sockfs, 0)?;
    /// let client = stack.connect("10.0.0.1:81")?;
    /// let (server, _) = listener.accept()?;
    /// assert_eq!(server.binding().perimeters[2], "squeue 0");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The listener was closed, or the organization has no squeues to choose.
    pub fn set_squeue(&self, layer: Layer, squeue: u16) -> Result<()> {
        self.set(at(layer, squeue))
    }
}
