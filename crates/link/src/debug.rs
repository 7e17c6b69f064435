//! `Debug` of devices and of who looks at them: what they are called.

use crate::device::Device;
use core::fmt::{Debug, Formatter, Result};
use perimeter_sync::Platform;

macro_rules! devices {
    ($($(#[$on:meta])* $name:ty $(, $p:ident)?;)*) => {$(
        $(#[$on])*
        impl $(<$p: Platform>)? Debug for $name {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                let name = core::any::type_name::<$name>();
                let name = name.split('<').next().unwrap_or(name);
                let caps = self.capabilities();
                f.debug_struct(name.rsplit("::").next().unwrap_or(name))
                    .field("name", &caps.name)
                    .field("medium", &caps.medium)
                    .finish_non_exhaustive()
            }
        }
    )*};
}

macro_rules! handles {
    ($($(#[$on:meta])* $name:ty $(, $p:ident)?;)*) => {$(
        $(#[$on])*
        impl $(<$p: Platform>)? Debug for $name {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                let name = core::any::type_name::<$name>();
                let name = name.split('<').next().unwrap_or(name);
                f.debug_struct(name.rsplit("::").next().unwrap_or(name))
                    .finish_non_exhaustive()
            }
        }
    )*};
}

devices! {
    crate::capture::CaptureDevice;
    crate::fault::Faulty;
    crate::loopback::Loopback<P>, P;
    crate::mem::Nic<P>, P;
    crate::network::Plug<P>, P;
    crate::pcap::Pcap;
    crate::pipe::Pipe<P>, P;
    crate::script::ScriptDevice<P>, P;
    crate::wire::End<P>, P;
    #[cfg(target_os = "linux")]
    crate::packet::Packet;
    #[cfg(target_os = "linux")]
    crate::tap::Tap;
    #[cfg(target_os = "linux")]
    crate::xdp::Xdp;
}

handles! {
    crate::capture::Captures;
    crate::capture::Looking;
    crate::fault::FaultHandle;
    crate::fault::Faults;
    crate::loopback::LoopbackHandle<P>, P;
    crate::mem::PeerHandle<P>, P;
    crate::network::Network;
    crate::pattern::Pattern;
    crate::pcap::PcapHandle;
    crate::pipe::PipeEnd<P>, P;
    crate::pipe::SocketPipe;
    crate::rss::Rss;
    crate::script::ScriptHandle<P>, P;
    crate::wire::WireHandle<P>, P;
    #[cfg(target_os = "linux")]
    crate::packet::PacketHandle;
    #[cfg(target_os = "linux")]
    crate::xdp::XdpConfig;
    #[cfg(target_os = "linux")]
    crate::xdp::XdpHandle;
    #[cfg(target_os = "linux")]
    crate::xdp::XdpProgram;
}
