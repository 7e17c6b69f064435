//! The adapter's flags: `NAME=VALUE,…` from packetdrill's `--so_flags`.

use std::net::Ipv4Addr;
use std::time::Duration;

/// Parsed flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flags {
    /// `org`: the organization, by the name that the library knows. Default `up`.
    pub org: String,
    /// `ipv4`: our address. Default 192.168.0.1, packetdrill's own.
    pub ipv4: Ipv4Addr,
    /// `prefix`: length of our network's prefix. Default 16.
    pub prefix: u8,
    /// `gateway`: next hop to the remote address, when that isn't in our network.
    pub gateway: Option<Ipv4Addr>,
    /// `remote`: packetdrill's address. Default 192.0.2.1.
    pub remote: Ipv4Addr,
    /// `mtu`: of the device, 68 to 65535. Default 1500.
    pub mtu: u32,
    /// `cc`: congestion control. Default `cubic`.
    pub cc: String,
    /// `timestamps=0|1`: offer RFC 7323 timestamps. Default on.
    pub timestamps: bool,
    /// `sack=0|1`: offer SACK. Default on.
    pub sack: bool,
    /// `wscale=0|1`: offer window scaling. Default on.
    pub window_scaling: bool,
    /// `idle_restart=0|1`: reduce the window after an idle period (RFC 5681 section 4.1).
    /// Default off, as the scripts' common settings have it.
    pub idle_restart: bool,
    /// `syn_retries`: of an active open. Default 5, the scripts' common setting.
    pub syn_retries: u8,
    /// `synack_retries`: of a passive open. Default 5, the scripts' common setting.
    pub synack_retries: u8,
    /// `sndbuf`: default send buffer in bytes. Default 256 KiB.
    pub sndbuf: u32,
    /// `rcvbuf`: default receive buffer in bytes. Default 540000, the scripts' common setting.
    pub rcvbuf: u32,
    /// `cores`: virtual cores, 1 to 64. Default 2.
    pub cores: u16,
    /// `seed`: of the virtual platform's scheduler. Default 1.
    pub seed: u64,
    /// `limit`: virtual seconds without a packet before a script that waits for one fails.
    /// Default 120, beyond which no TCP timer of a script reaches.
    pub limit: Duration,
}

impl Default for Flags {
    fn default() -> Flags {
        Flags {
            org: "up".into(),
            ipv4: Ipv4Addr::new(192, 168, 0, 1),
            prefix: 16,
            gateway: None,
            remote: Ipv4Addr::new(192, 0, 2, 1),
            mtu: 1500,
            cc: "cubic".into(),
            timestamps: true,
            sack: true,
            window_scaling: true,
            idle_restart: false,
            syn_retries: 5,
            synack_retries: 5,
            sndbuf: 256 * 1024,
            rcvbuf: 540_000,
            cores: 2,
            seed: 1,
            limit: Duration::from_secs(120),
        }
    }
}

impl Flags {
    /// Parses `text`. An empty text gives the defaults; an unknown name, a value that doesn't
    /// fit or a name given twice is an error that names it.
    pub fn parse(text: &str) -> Result<Flags, String> {
        let mut flags = Flags::default();
        let mut seen = Vec::new();
        for item in text.split(',').filter(|item| !item.is_empty()) {
            let (name, value) = item
                .split_once('=')
                .ok_or_else(|| format!("flag {item:?} isn't NAME=VALUE"))?;
            if seen.contains(&name) {
                return Err(format!("flag {name:?} is given twice"));
            }
            seen.push(name);
            flags
                .set(name, value)
                .map_err(|why| format!("flag {name}={value:?}: {why}"))?;
        }
        Ok(flags)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "org" => self.org = word(value)?,
            "ipv4" => self.ipv4 = number(value)?,
            "prefix" => self.prefix = within(value, 0, 32)?,
            "gateway" => self.gateway = Some(number(value)?),
            "remote" => self.remote = number(value)?,
            "mtu" => self.mtu = within(value, 68, 65_535)?,
            "cc" => self.cc = word(value)?,
            "timestamps" => self.timestamps = switch(value)?,
            "sack" => self.sack = switch(value)?,
            "wscale" => self.window_scaling = switch(value)?,
            "idle_restart" => self.idle_restart = switch(value)?,
            "syn_retries" => self.syn_retries = within(value, 0, 127)?,
            "synack_retries" => self.synack_retries = within(value, 0, 127)?,
            "sndbuf" => self.sndbuf = within(value, 2048, 1 << 30)?,
            "rcvbuf" => self.rcvbuf = within(value, 2048, 1 << 30)?,
            "cores" => self.cores = within(value, 1, 64)?,
            "seed" => self.seed = number(value)?,
            "limit" => self.limit = Duration::from_secs(within(value, 1, 1_000_000)?),
            _ => return Err("no such flag".into()),
        }
        Ok(())
    }
}

fn word(value: &str) -> Result<String, String> {
    if value.is_empty() {
        return Err("empty".into());
    }
    Ok(value.into())
}

fn number<T: std::str::FromStr>(value: &str) -> Result<T, String>
where
    T::Err: std::fmt::Display,
{
    value.parse().map_err(|why: T::Err| why.to_string())
}

fn within<T>(value: &str, least: T, most: T) -> Result<T, String>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display,
    T::Err: std::fmt::Display,
{
    let parsed: T = number(value)?;
    if parsed < least || parsed > most {
        return Err(format!("not within {least} to {most}"));
    }
    Ok(parsed)
}

fn switch(value: &str) -> Result<bool, String> {
    match value {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err("neither 0 nor 1".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_values() {
        assert_eq!(Flags::parse(""), Ok(Flags::default()));
        let flags = Flags::parse(
            "org=connp-l:8,ipv4=10.0.0.1,remote=10.0.0.2,mtu=9000,cc=newreno,timestamps=0,\
             sack=0,wscale=0,idle_restart=1,cores=4,seed=7,limit=9,prefix=8,gateway=10.9.9.9,\
             sndbuf=4096,rcvbuf=8192,syn_retries=1,synack_retries=2,",
        );
        assert_eq!(
            flags,
            Ok(Flags {
                org: "connp-l:8".into(),
                ipv4: Ipv4Addr::new(10, 0, 0, 1),
                prefix: 8,
                gateway: Some(Ipv4Addr::new(10, 9, 9, 9)),
                remote: Ipv4Addr::new(10, 0, 0, 2),
                mtu: 9000,
                cc: "newreno".into(),
                timestamps: false,
                sack: false,
                window_scaling: false,
                idle_restart: true,
                syn_retries: 1,
                synack_retries: 2,
                sndbuf: 4096,
                rcvbuf: 8192,
                cores: 4,
                seed: 7,
                limit: Duration::from_secs(9),
            })
        );
    }

    #[test]
    fn bad_flags_are_named() {
        for (text, part) in [
            ("up", "isn't NAME=VALUE"),
            ("org=", "empty"),
            ("ipv4=1.2.3", "ipv4"),
            ("mtu=67", "68 to 65535"),
            ("mtu=x", "mtu"),
            ("sack=yes", "neither 0 nor 1"),
            ("colour=red", "no such flag"),
            ("mtu=1500,mtu=1500", "twice"),
        ] {
            let error = Flags::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
