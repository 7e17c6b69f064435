//! A router between two links (`Config::forwarding`): what comes by one and is for a host behind the
//! other goes on there, in large segments where both links take them.
//!
//! `cargo run --release --example router` over memory, with a host of ours on each side, one of which
//! sends the other a megabyte. Between interfaces of the host's, as root:
//! `router --left packet:eth1 --right packet:eth2`, until interrupted.

mod common;

use clap::Parser;
use common::{Device, Result};
use perimeter::link::Device as _;
use perimeter::link::named::{HostDevice, HostOptions};
use perimeter::link::wire::{End, WireConfig, pair};
use perimeter::{Builder, Cidr, Config, Events, Native, OrgSpec, Stack};
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(about = "Forwards between two links")]
struct Args {
    /// Organization, as `perimeter orgs` lists them
    #[arg(long, default_value = "up:shared")]
    org: OrgSpec,
    /// Device of one link: mem (a second stack in this process), tap:NAME, tun:NAME,
    /// packet:INTERFACE or xdp:INTERFACE; both are mem or neither is
    #[arg(long, default_value = "mem")]
    left: Device,
    /// Device of the other link
    #[arg(long, default_value = "mem")]
    right: Device,
    /// The router's address on the left link
    #[arg(long, default_value = "10.99.1.1/24")]
    left_address: Cidr,
    /// Its address on the right link
    #[arg(long, default_value = "10.99.2.1/24")]
    right_address: Cidr,
    /// End after so many seconds
    #[arg(long)]
    seconds: Option<u64>,
}

/// The router, and over memory the hosts at both sides.
struct Site {
    router: Stack,
    hosts: Option<[Stack; 2]>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    common::main(open(&args), |site| run(&args, &site))
}

fn open(args: &Args) -> Result<Site> {
    let config = Config::default().with_forwarding(true);
    let builder = Stack::builder().org(args.org.clone()).config(config);
    let addrs = [&args.left_address, &args.right_address];
    match (&args.left, &args.right) {
        (Device::Mem, Device::Mem) => over_memory(builder, addrs),
        (Device::Host(left), Device::Host(right)) => over_host(builder, addrs, [left, right]),
        _ => Err("--left and --right are both mem, or neither is".into()),
    }
}

fn over_memory(builder: Builder, addrs: [&Cidr; 2]) -> Result<Site> {
    let native = Native::default();
    let mut router = builder.on_native(native);
    let mut ends = Vec::new();
    for addr in addrs {
        let ([near, far], _) = pair(&native, WireConfig::default());
        router = router.interface(near, &[&addr.to_string()])?;
        ends.push(host(native, far, addr)?);
    }
    let hosts = ends.try_into().ok();
    Ok(Site {
        router: router.build()?,
        hosts,
    })
}

/// A host on a link of the router's, whose address is the one behind that one's.
fn host(native: Native, device: End<Native>, router: &Cidr) -> Result<Stack> {
    let addr = format!("{}/{}", next(router.addr), router.prefix);
    let builder = Stack::builder().on_native(native);
    let builder = builder.interface(device, &[&addr])?;
    let any = if router.addr.is_ipv4() {
        "0.0.0.0/0"
    } else {
        "::/0"
    };
    Ok(builder
        .route(any, Some(&router.addr.to_string()), 0)?
        .build()?)
}

fn next(addr: IpAddr) -> IpAddr {
    match addr {
        IpAddr::V4(ip) => IpAddr::V4((ip.to_bits().wrapping_add(1)).into()),
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits().wrapping_add(1)).into()),
    }
}

fn over_host(mut builder: Builder, addrs: [&Cidr; 2], which: [&HostDevice; 2]) -> Result<Site> {
    for (device, addr) in which.into_iter().zip(addrs) {
        let device = device.open(&HostOptions::default())?;
        let name = device.capabilities().name;
        println!("{name} is {addr}");
        builder = builder.interface(device, &[&addr.to_string()])?;
    }
    Ok(Site {
        router: builder.build()?,
        hosts: None,
    })
}

fn run(args: &Args, site: &Site) -> Result<()> {
    println!("forwarding ({})", site.router.organization());
    match &site.hosts {
        Some([left, right]) => across(left, right, args)?,
        None => serve(&site.router, args.seconds.map(Duration::from_secs))?,
    }
    let stats = site.router.stats();
    println!("{} datagrams forwarded", stats.count("forwarded"));
    Ok(())
}

/// Serves the devices, where that is this thread's business, for so long or until interrupted.
fn serve(router: &Stack, time: Option<Duration>) -> Result<()> {
    let end = time.map(|t| Instant::now() + t);
    let (poll, mut events) = (router.poll()?, Events::with_capacity(1));
    while end.is_none_or(|end| Instant::now() < end) {
        poll.poll(&mut events, Some(Duration::from_secs(1)))?;
    }
    Ok(())
}

/// Sends a megabyte from one host to the other.
fn across(left: &Stack, right: &Stack, args: &Args) -> Result<()> {
    let at = SocketAddr::new(next(args.right_address.addr), 7);
    let listener = right.listen(at)?;
    let sender = left.clone();
    let sending = std::thread::spawn(move || -> std::io::Result<()> {
        let mut s = sender.connect(at)?;
        s.write_all(&vec![7; 1 << 20])?;
        s.shutdown(Shutdown::Write)?;
        s.read_to_end(&mut Vec::new()).map(drop)
    });
    let (mut s, from) = listener.accept()?;
    let mut all = Vec::new();
    s.read_to_end(&mut all)?;
    drop(s);
    println!("{} octets from {from}", all.len());
    sending.join().map_err(|_| "the sender panicked")??;
    Ok(())
}
