//! A stack whose interface is a stream and a sink of packets: for who has packets of his own, be it
//! from a tunnel, a virtual machine or a descriptor.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use futures_core::Stream;
use futures_sink::Sink;
use perimeter::link::pipe::{PipeConfig, PipeEnd, channel};
use perimeter::{Accept, BuildError, Builder, Native};
use perimeter_base::PktBuf;
use std::io;

/// Packets to and from a stack, from their IP header on: those that it sends come from the stream,
/// those that the sink is given go to it. Each direction holds a bounded number; what is not taken
/// waits in the stack, and who sends waits for room. Clones are the same interface; when the last one
/// goes, the interface has gone.
/// See [`packets`].
#[derive(Clone)]
pub struct Packets {
    end: PipeEnd<Native>,
}

impl std::fmt::Debug for Packets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packets").finish_non_exhaustive()
    }
}

/// Adds an interface to `builder` that takes any destination, with an MTU of `mtu` bytes, whose
/// other end is what is yielded.
///
/// ```
/// use futures_core::Stream;
/// use futures_sink::Sink;
/// use perimeter::link::pipe::{PipeConfig, channel};
/// use perimeter::seam::base::PktBuf;
/// use perimeter::{Listen, Native, Stack};
/// use perimeter_tokio::gateway::packets::packets;
/// use perimeter_tokio::{Net, TcpListener};
/// use std::{future::poll_fn, pin::Pin};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::time::timeout(std::time::Duration::from_secs(60), async {
/// let (builder, mut here) = packets(Stack::builder(), 1500)?;
/// let gateway = builder.build()?;
/// // A host, whose packets are values as well.
/// let (device, there) = channel(&Native::default(), PipeConfig::default());
/// let host = Stack::builder().interface(device, &["10.0.0.2/24"])?;
/// let host = Net::new(host.route("0.0.0.0/0", None, 0)?.build()?);
///
/// // The way between them, in both directions.
/// let (mut to_gateway, from_host) = (here.clone(), there.clone());
/// tokio::spawn(async move {
///     while let Some(packet) = poll_fn(|cx| from_host.poll_recv(cx)).await {
///         poll_fn(|cx| Pin::new(&mut to_gateway).poll_ready(cx)).await?;
///         Pin::new(&mut to_gateway).start_send(packet.as_slice().to_vec())?;
///     }
///     Ok::<(), std::io::Error>(())
/// });
/// tokio::spawn(async move {
///     while let Some(Ok(packet)) = poll_fn(|cx| Pin::new(&mut here).poll_next(cx)).await {
///         if poll_fn(|cx| there.poll_ready(cx)).await.is_ok() {
///             let _ = there.send(PktBuf::from_vec(packet));
///         }
///     }
/// });
///
/// let listener = TcpListener::from_perimeter(gateway.listen_as(&Listen::any())?)?;
/// let mut client = host.connect("192.0.2.7:80").await?;
/// let (mut server, _) = listener.accept().await?;
/// server.write_all(b"hello").await?;
/// let mut text = [0; 5];
/// client.read_exact(&mut text).await?;
/// assert_eq!(&text, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
/// ```
///
/// # Errors
/// As [`Builder::interface_accepting`].
pub fn packets(builder: Builder, mtu: u32) -> Result<(Builder, Packets), BuildError> {
    let config = PipeConfig::default().with_name("packets").with_mtu(mtu);
    let (device, end) = channel(&Native::default(), config);
    let builder = builder.interface_accepting(device, &[], Accept::Any { echo: true })?;
    Ok((builder, Packets { end }))
}

impl Stream for Packets {
    type Item = io::Result<Vec<u8>>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let packet = ready!(self.end.poll_recv(cx));
        Poll::Ready(packet.map(|p| {
            let bytes = p.as_slice().to_vec();
            self.end.recycle(p);
            Ok(bytes)
        }))
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the stack has gone")
}

impl Sink<Vec<u8>> for Packets {
    type Error = io::Error;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end.poll_ready(cx).map_err(|_| gone())
    }

    /// What another clone has taken the room of is lost, as on any link.
    fn start_send(self: Pin<&mut Self>, packet: Vec<u8>) -> io::Result<()> {
        let _ = self.end.send(PktBuf::from_vec(packet));
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
