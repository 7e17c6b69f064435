//! `perimeter gateway`: what a TUN device brings, carried on by the host's own sockets.

use crate::print;
use clap::{ArgAction, ArgMatches, Args, Command, FromArgMatches, error::Error as ClapError};
use perimeter::link::tap::{Tap, TapConfig, TapError, host};
use perimeter::link::{Device as _, Medium};
use perimeter::{Accept, Config, Offload, OrgSpec, Stack};
use perimeter_measure::{Error, units};
use perimeter_tokio::gateway::rules::{Destinations, Rules};
use perimeter_tokio::gateway::{Counts, Gateway, Settings, SocketOptions, Target, Upstream};
use std::{net::SocketAddr, str::FromStr, sync::Arc, time::Duration};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Help behind the options.
pub const HELP: &str = "\
Takes TCP connections and UDP datagrams of any destination from a TUN device and carries them on \
by the host's own sockets: to their destinations (`direct`), or by a proxy. A connection of the \
inside is accepted when its upstream is connected, refused when that is refused, and not answered \
when that does not answer. Ends and resets are passed on, both ways.

The interface is made if there is none of that name, and is up afterwards; addresses and routes \
are yours to set. The gateway's own packets must not be routed into it again: leave a route to \
the proxy, or mark them (--mark, with `ip rule add fwmark N lookup main`), or bind them to an \
interface (--bind-device).

--allow and --deny are looked at in the order given; the first that matches decides. Where none \
does, a destination is denied if there is any --allow, else allowed.

SIGINT or SIGTERM ends it: connections have --drain to go on. SIGUSR1 prints the counters.

Examples:
  perimeter gateway --tun tun0 --to direct --bind-device eth0
  perimeter gateway --tun tun0 --to socks5://127.0.0.1:1080 --dns 9.9.9.9
  perimeter gateway --tun tun0 --to socks5://me:secret@proxy:1080 --deny 10.0.0.0/8 --deny '*:25'

  ip tuntap add dev tun0 mode tun && ip addr add 198.18.0.1/15 dev tun0 && ip link set tun0 up
  ip route add default dev tun0 metric 50

Exit status: 0 ended in order, 1 it failed, 2 the request can't be served.";

/// Arguments of `perimeter gateway`.
#[derive(Debug, Args)]
pub struct GatewayArgs {
    /// The TUN device
    #[arg(long, value_name = "NAME")]
    tun: String,
    /// Where to: direct, socks5://[user:password@]host:port or http://[user:password@]host:port
    #[arg(long, value_parser = Target::from_str)]
    to: Target,
    /// MTU to set on the device [default: as it is]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1280..=65535))]
    mtu: Option<u32>,
    /// Queues of the device
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    queues: u16,
    /// Where what goes to port 53 goes instead: an address, or address:port
    #[arg(long, value_name = "ADDR", value_parser = dns)]
    dns: Option<SocketAddr>,
    /// Which destinations are allowed.
    #[command(flatten)]
    rules: RuleArgs,
    /// How long the upstream has to connect
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    connect_timeout: Duration,
    /// How long connections may go on after SIGINT or SIGTERM
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    drain: Duration,
    /// Most connections at once
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,
    /// How long a sender of datagrams keeps its session while nothing passes
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = units::duration)]
    udp_timeout: Duration,
    /// Most senders of datagrams with a session
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    max_sessions: u32,
    /// SO_MARK of the gateway's own sockets
    #[arg(long, value_name = "N")]
    mark: Option<u32>,
    /// Interface that the gateway's own sockets are bound to
    #[arg(long, value_name = "NAME")]
    bind_device: Option<String>,
    /// The stack's organization
    #[arg(long, default_value = "up:shared", value_parser = perimeter_command::bench::ours)]
    org: OrgSpec,
    /// By what it can be asked.
    #[command(flatten)]
    ports: crate::ask::Ports,
    /// Print counters as JSON
    #[arg(long)]
    json: bool,
}

/// `--allow` and `--deny`, in the order given.
#[derive(Clone, Debug, Default)]
struct RuleArgs(Rules);

impl Args for RuleArgs {
    fn augment_args(cmd: Command) -> Command {
        let arg = |name: &'static str, help: &'static str| {
            clap::Arg::new(name)
                .long(name)
                .value_name("CIDR[:PORT]")
                .action(ArgAction::Append)
                .value_parser(Destinations::from_str)
                .help(help)
        };
        cmd.arg(arg("allow", "Destinations that are allowed"))
            .arg(arg("deny", "Destinations that are refused"))
    }

    fn augment_args_for_update(cmd: Command) -> Command {
        Self::augment_args(cmd)
    }
}

impl FromArgMatches for RuleArgs {
    fn from_arg_matches(m: &ArgMatches) -> Result<RuleArgs, ClapError> {
        let mut all = Vec::new();
        for (name, allow) in [("allow", true), ("deny", false)] {
            let at = m.indices_of(name).into_iter().flatten();
            let what = m.get_many::<Destinations>(name).into_iter().flatten();
            all.extend(at.zip(what).map(|(at, what)| (at, allow, *what)));
        }
        all.sort_by_key(|(at, ..)| *at);
        let mut rules = Rules::default();
        for (_, allow, what) in all {
            rules.push(allow, what);
        }
        Ok(RuleArgs(rules))
    }

    fn update_from_arg_matches(&mut self, m: &ArgMatches) -> Result<(), ClapError> {
        *self = Self::from_arg_matches(m)?;
        Ok(())
    }
}

/// An address, with port 53 unless it has one.
fn dns(s: &str) -> Result<SocketAddr, String> {
    s.parse()
        .or_else(|_| Ok(SocketAddr::new(s.parse().map_err(|_| ())?, 53)))
        .map_err(|()| format!("`{s}` is no address, with or without a port"))
}

/// What a failure of the device is.
fn device(e: &TapError) -> Error {
    match e {
        TapError::Io { .. } => Error::Run(e.to_string()),
        _ => Error::Unavailable(e.to_string()),
    }
}

/// Runs it.
pub fn gateway(args: &GatewayArgs) -> Result<(), Error> {
    if args.org.single_threaded() {
        let what = "--org: the gateway needs an organization of several threads, not `up`";
        return Err(Error::Input(what.into()));
    }
    let files = perimeter_tokio::gateway::upstream::raise_file_limit();
    let wanted = u64::from(args.max_connections) + u64::from(args.max_sessions);
    if let Some(files) = files
        && files < wanted
    {
        // What finds no file is refused; nothing else breaks.
        eprintln!(
            "perimeter: only {files} files may be open, and there are to be up to {wanted} \
             connections and sessions: raise the limit (ulimit -Hn)"
        );
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::Run(format!("starting threads: {e}")))?;
    runtime.block_on(serve(args))
}

async fn serve(args: &GatewayArgs) -> Result<(), Error> {
    let options = SocketOptions::default()
        .with_mark(args.mark)
        .with_device(args.bind_device.clone());
    let upstream = Upstream::new(args.to.clone(), options, args.connect_timeout).await;
    let upstream = upstream.map_err(|e| Error::Unavailable(e.to_string()))?;
    let signals = |kind| signal(kind).map_err(|e| Error::Run(format!("taking signals: {e}")));
    let (int, term) = (
        signals(SignalKind::interrupt())?,
        signals(SignalKind::terminate())?,
    );
    let usr = signals(SignalKind::user_defined1())?;
    let (stack, name, mtu) = stack(args)?;
    let settings = Settings::default()
        .with_rules(args.rules.0.clone())
        .with_dns(args.dns)
        .with_connections(args.max_connections as usize)
        .with_sessions(args.max_sessions as usize)
        .with_session_time(args.udp_timeout)
        .with_drain(args.drain);
    let gateway = Gateway::new(stack.clone(), upstream, settings);
    let gateway = gateway.map_err(|e| Error::Run(format!("the stack: {e}")))?;
    let counts = gateway.counts();
    let (shown, json) = (counts.clone(), args.json);
    tokio::spawn(show(usr, shown, json));
    if !json {
        print(&format!("{name}, MTU {mtu}, to {}\n", args.to))?;
    }
    let ended = gateway.run(either(int, term)).await;
    stack.stop();
    print(&counted(&counts, json))?;
    ended.map_err(|e| Error::Run(format!("the stack: {e}")))
}

async fn either(mut a: Signal, mut b: Signal) {
    tokio::select! {
        _ = a.recv() => (),
        _ = b.recv() => (),
    }
}

async fn show(mut usr: Signal, counts: Arc<Counts>, json: bool) {
    while usr.recv().await.is_some() {
        // Whoever reads this may have gone.
        let _ = print(&counted(&counts, json));
    }
}

fn counted(counts: &Counts, json: bool) -> String {
    let all = counts.all();
    if json {
        let map: serde_json::Map<_, _> = all
            .into_iter()
            .map(|(name, n)| (name.to_string(), n.into()))
            .collect();
        return format!("{}\n", serde_json::Value::Object(map));
    }
    let line = |(name, n): (&str, u64)| format!("{} {n}", name.replace('_', " "));
    let seen = all.into_iter().filter(|(_, n)| *n > 0).map(line);
    format!("{}\n", seen.collect::<Vec<_>>().join(", "))
}

/// The stack on its device; the interface's name and MTU.
fn stack(args: &GatewayArgs) -> Result<(Stack, String, u32), Error> {
    let tun = Tap::open(
        &TapConfig::new(&args.tun)
            .with_medium(Medium::Ip)
            .with_queues(args.queues.into())
            .with_mtu(args.mtu)
            .with_large(true),
    )
    .map_err(|e| device(&e))?;
    let (name, mtu) = (tun.name().to_owned(), tun.capabilities().mtu);
    let up = host::set_up(&name, true);
    up.map_err(|e| Error::Run(format!("setting `{name}` up: {e}")))?;
    let config = Config::default()
        .with_offload(Offload::Device)
        // Its threads wake for frames and timers.
        .with_service(Duration::from_secs(5));
    let b = Stack::builder().org(args.org.clone()).config(config);
    let any = Accept::Any { echo: true };
    let built = b
        .interface_accepting(tun, &[], any)
        .and_then(|b| args.ports.on(b).build());
    match built {
        Ok(stack) => Ok((stack, name, mtu)),
        Err(e) => Err(Error::Unavailable(e.to_string())),
    }
}
