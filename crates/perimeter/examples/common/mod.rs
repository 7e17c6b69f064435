//! What the examples share: which organization, which device, and how errors are told.

// Each example uses what it needs.
#![allow(dead_code)]

use clap::Args;
use perimeter::link::Device as _;
use perimeter::link::host;
use perimeter::link::named::{HostDevice, HostOptions};
use perimeter::link::wire::{WireConfig, pair};
use perimeter::{Builder, Cidr, Native, OrgSpec, SharedFile, Stack, TcpStream};
use sha2::{Digest, Sha256};
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::thread::JoinHandle;
use std::time::Duration;

/// What an example ends with.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What carries the packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// A wire in memory to a second stack in this process, which plays the other part.
    Mem,
    /// A device of the host's.
    Host(HostDevice),
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Device, String> {
        match text {
            "mem" => Ok(Device::Mem),
            _ => text.parse().map(Device::Host),
        }
    }
}

/// The options that every example takes.
#[derive(Args, Clone, Debug)]
pub struct Net {
    /// Organization, as `perimeter orgs` lists them
    #[arg(long, default_value = "up:shared")]
    pub org: OrgSpec,
    /// Device: mem (a second stack in this process), tap[:NAME] or tun[:NAME] (the host's kernel),
    /// packet:INTERFACE or xdp:INTERFACE (what an interface of the host's is linked to, by packet
    /// sockets or by AF_XDP); all but mem need privilege
    #[arg(long, default_value = "mem")]
    pub device: Device,
    /// Queues of the device (AF_XDP: all that the interface has)
    #[arg(long, default_value_t = 1)]
    pub queues: usize,
    /// Our address
    #[arg(long, default_value = "10.99.0.2/24")]
    pub address: Cidr,
    /// The other end's address: the second stack's, or the kernel's on the TAP interface
    #[arg(long, default_value = "10.99.0.1/24")]
    pub peer: Cidr,
    /// Open a control socket at this path, for `perimeter ss` and `perimeter trace`
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// The kernel's side of the TAP or TUN interface has an address and is up already
    #[arg(long)]
    pub configured: bool,
}

/// Our stack and, over memory, the one at the other end.
pub struct Ends {
    /// Ours.
    pub stack: Stack,
    /// Our address.
    pub address: IpAddr,
    /// The other end, if it is in this process.
    pub peer: Option<Stack>,
    /// Its address.
    pub peer_address: IpAddr,
}

impl Net {
    /// Builds what was asked for.
    pub fn open(&self) -> Result<Ends> {
        if self.address.addr == self.peer.addr {
            return Err(
                format!("{} is in use: it is the peer's address", self.address.addr).into(),
            );
        }
        let (stack, peer) = match &self.device {
            Device::Mem => {
                let native = Native::default();
                let ([a, b], _) = pair(&native, WireConfig::default());
                let build = |builder: Builder, end, addr: Cidr| {
                    let b = builder.on_native(native);
                    b.interface(end, &[&addr.to_string()])?.build()
                };
                let stack = build(self.builder(), a, self.address)?;
                let peer = Stack::builder().org(OrgSpec::default());
                (stack, Some(build(peer, b, self.peer)?))
            }
            Device::Host(which) => {
                let options = HostOptions::default().with_queues(self.queues);
                let device = which.open(&options)?;
                let name = device.capabilities().name;
                if which.is_to_kernel() && !self.configured {
                    self.configure(&name)
                        .map_err(|e| format!("configuring '{name}': {e}"))?;
                }
                (self.over(device)?, None)
            }
        };
        let (address, peer_address) = (self.address.addr, self.peer.addr);
        Ok(Ends {
            stack,
            address,
            peer,
            peer_address,
        })
    }

    /// Our stack over a device of the host's.
    fn over(&self, device: impl perimeter::link::Device + 'static) -> Result<Stack> {
        let b = self.builder();
        Ok(b.interface(device, &[&self.address.to_string()])?.build()?)
    }

    fn builder(&self) -> Builder {
        let b = Stack::builder().org(self.org.clone());
        match &self.control {
            Some(path) => b.control(path),
            None => b,
        }
    }

    /// Gives the kernel its address on the interface.
    fn configure(&self, name: &str) -> io::Result<()> {
        if let IpAddr::V4(a) = self.peer.addr {
            host::set_address(name, a, self.peer.prefix)?;
        }
        host::set_up(name, true)
    }
}

impl Ends {
    /// A server's address in text.
    pub fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address, port)
    }
}

/// Runs an example: what fails before the network is up is the caller's doing (2), what fails
/// later is not (1). One line either way.
pub fn main<T>(setup: Result<T>, run: impl FnOnce(T) -> Result<()>) -> ExitCode {
    match setup {
        Err(e) => fail(&*e, 2),
        Ok(ends) => told(run(ends)),
    }
}

/// As [`main`], for an example in async Rust.
pub async fn main_async(
    setup: Result<Ends>,
    run: impl AsyncFnOnce(Ends) -> Result<()>,
) -> ExitCode {
    match setup {
        Err(e) => fail(&*e, 2),
        Ok(ends) => told(run(ends).await),
    }
}

fn told(done: Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if is_setup(&*e) => fail(&*e, 2),
        Err(e) => fail(&*e, 1),
    }
}

fn fail(e: &(dyn Error + 'static), code: u8) -> ExitCode {
    eprintln!("error: {e}");
    ExitCode::from(code)
}

fn is_setup(e: &(dyn Error + 'static)) -> bool {
    let kind = e.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(
        kind,
        Some(io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable)
    )
}

/// Ends a server: delivers what was sent, and waits for the client, if there is one here.
pub fn end(stack: &Stack, client: Option<JoinHandle<io::Result<()>>>) -> Result<()> {
    let left = stack.shutdown(Duration::from_secs(10))?;
    if let Some(c) = client {
        c.join().map_err(|_| "the client panicked")??;
    }
    if left.is_none() {
        Ok(())
    } else {
        Err(left.to_string().into())
    }
}

/// A SHA-256 digest in hexadecimal.
pub fn hex(h: Sha256) -> String {
    h.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// Sends a file's pages by reference; returns its digest.
pub fn send_file(s: &TcpStream, file: &SharedFile) -> io::Result<String> {
    let mut digest = Sha256::new();
    let mut at = 0;
    loop {
        let page = file.page(at, usize::MAX)?;
        if page.is_empty() {
            return Ok(hex(digest));
        }
        let n = s.send_zero_copy(std::slice::from_ref(&page))?;
        digest.update(&page[..n]);
        at += n as u64;
    }
}

/// Reads up to `max` bytes, or to the end; writes them to `out` and returns digest and number.
pub fn receive(from: &mut impl Read, out: &mut impl Write, max: u64) -> io::Result<(String, u64)> {
    let mut digest = Sha256::new();
    let mut buf = vec![0; 256 * 1024];
    let mut total = 0;
    while total < max {
        let want = buf
            .len()
            .min(usize::try_from(max - total).unwrap_or(usize::MAX));
        let n = from.read(&mut buf[..want])?;
        if n == 0 {
            break;
        }
        digest.update(&buf[..n]);
        out.write_all(&buf[..n])?;
        total += n as u64;
    }
    Ok((hex(digest), total))
}
