//! Which destinations are allowed.

use core::fmt;
use core::str::FromStr;
use std::net::{IpAddr, SocketAddr};

/// Destinations: addresses and ports.
///
/// ```
/// use perimeter_tokio::gateway::rules::Destinations;
///
/// let web: Destinations = "[2001:db8::/32]:80-443".parse()?;
/// assert!(web.contains("[2001:db8::5]:443".parse()?));
/// assert!(!web.contains("[2001:db8::5]:25".parse()?));
/// let mail: Destinations = "*:25".parse()?;
/// assert!(mail.contains("192.0.2.7:25".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Destinations {
    /// The address and its prefix length; `None`: all of both families.
    prefix: Option<(IpAddr, u8)>,
    /// First and last port.
    ports: (u16, u16),
}

impl Destinations {
    /// Whether `to` is one.
    /// See [`Destinations`].
    pub fn contains(&self, to: SocketAddr) -> bool {
        let port = (self.ports.0..=self.ports.1).contains(&to.port());
        port && self
            .prefix
            .is_none_or(|(net, bits)| within(net, bits, to.ip()))
    }
}

fn within(net: IpAddr, bits: u8, ip: IpAddr) -> bool {
    let (a, b, width) = match (net, ip) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits()), u128::from(b.to_bits()), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits(), 128),
        _ => return false,
    };
    let host = width - u32::from(bits);
    (a ^ b).checked_shr(host).unwrap_or(0) == 0
}

impl FromStr for Destinations {
    type Err = String;

    /// `10.0.0.0/8`, `192.0.2.1:443`, `[2001:db8::/32]:80-90`, `2001:db8::1`, `*:25`.
    fn from_str(s: &str) -> Result<Destinations, String> {
        let what = "an address with an optional prefix length and port: 10.0.0.0/8, \
                    192.0.2.1:443, [2001:db8::/32]:80-90, *:25";
        let bad = || format!("`{s}` is not {what}");
        let (addr, ports) = match s.strip_prefix('[') {
            Some(rest) => {
                let (addr, rest) = rest.split_once(']').ok_or_else(bad)?;
                let ports = match rest {
                    "" => None,
                    p => Some(p.strip_prefix(':').ok_or_else(bad)?),
                };
                (addr, ports)
            }
            // More than one colon: an address of IPv6 without a port.
            None if s.matches(':').count() > 1 => (s, None),
            None => match s.split_once(':') {
                Some((addr, ports)) => (addr, Some(ports)),
                None => (s, None),
            },
        };
        let port = |p: &str| p.parse::<u16>().map_err(|_| bad());
        let ports = match ports.map(|p| p.split_once('-').unwrap_or((p, p))) {
            None => (0, u16::MAX),
            Some((first, last)) => (port(first)?, port(last)?),
        };
        if ports.0 > ports.1 {
            return Err(format!("`{s}`: the first port comes after the last"));
        }
        if addr == "*" {
            return Ok(Destinations {
                prefix: None,
                ports,
            });
        }
        let (addr, bits) = match addr.split_once('/') {
            Some((addr, bits)) => (addr, Some(bits)),
            None => (addr, None),
        };
        let ip: IpAddr = addr.parse().map_err(|_| bad())?;
        let width = if ip.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => width,
            Some(b) => b.parse().ok().filter(|b| *b <= width).ok_or_else(|| {
                format!("`{s}`: the prefix length can be 0 to {width}, not `{b}`")
            })?,
        };
        Ok(Destinations {
            prefix: Some((ip, bits)),
            ports,
        })
    }
}

impl fmt::Display for Destinations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix {
            None => f.write_str("*")?,
            Some((ip, bits)) if ip.is_ipv4() => write!(f, "{ip}/{bits}")?,
            Some((ip, bits)) => write!(f, "[{ip}/{bits}]")?,
        }
        match self.ports {
            (0, u16::MAX) => Ok(()),
            (a, b) if a == b => write!(f, ":{a}"),
            (a, b) => write!(f, ":{a}-{b}"),
        }
    }
}

/// Rules, of which the first that matches decides. Where none does, a destination is allowed unless
/// some rule allows others.
///
/// ```
/// use perimeter_tokio::gateway::rules::Rules;
///
/// let mut rules = Rules::default();
/// rules.push(true, "10.1.0.0/16".parse()?);
/// rules.push(false, "10.0.0.0/8".parse()?);
/// assert!(rules.allow("10.1.2.3:80".parse()?));
/// assert!(!rules.allow("10.2.2.3:80".parse()?));
/// // Others are allowed, so this one is not.
/// assert!(!rules.allow("192.0.2.7:80".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Vec<(bool, Destinations)>,
}

impl Rules {
    /// Adds a rule behind the others: whether these destinations are allowed.
    /// See [`Rules`].
    pub fn push(&mut self, allow: bool, what: Destinations) {
        self.rules.push((allow, what));
    }

    /// Whether `to` is allowed.
    /// See [`Rules`].
    pub fn allow(&self, to: SocketAddr) -> bool {
        match self.rules.iter().find(|(_, what)| what.contains(to)) {
            Some((allow, _)) => *allow,
            None => !self.rules.iter().any(|(allow, _)| *allow),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: &str) -> SocketAddr {
        s.parse().unwrap()
    }

    #[test]
    fn destinations() {
        for (d, to, want) in [
            ("10.0.0.0/8", "10.255.0.1:9", true),
            ("10.0.0.0/8", "11.0.0.1:9", false),
            ("10.0.0.0/8", "[::ffff:10.0.0.1]:9", false),
            ("10.0.0.1", "10.0.0.1:9", true),
            ("10.0.0.1", "10.0.0.2:9", false),
            ("10.0.0.1:80", "10.0.0.1:80", true),
            ("10.0.0.1:80", "10.0.0.1:81", false),
            ("0.0.0.0/0:1-1023", "1.2.3.4:1023", true),
            ("0.0.0.0/0:1-1023", "1.2.3.4:1024", false),
            ("2001:db8::/32", "[2001:db8:1::5]:80", true),
            ("2001:db8::/32", "[2001:db9::5]:80", false),
            ("[2001:db8::/32]:443", "[2001:db8::5]:443", true),
            ("[2001:db8::/32]:443", "[2001:db8::5]:444", false),
            ("::/0", "[::1]:1", true),
            ("::/0", "1.1.1.1:1", false),
            ("*:25", "1.1.1.1:25", true),
            ("*:25", "[::1]:25", true),
            ("*:25", "[::1]:26", false),
        ] {
            let d: Destinations = d.parse().unwrap();
            assert_eq!(d.contains(at(to)), want, "{d} {to}");
            assert_eq!(d.to_string().parse(), Ok(d));
        }
        for bad in [
            "",
            "10.0.0/8",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.1:",
            "10.0.0.1:x",
            "10.0.0.1:9-5",
            "[::1",
            "[::1]9",
            "example.org",
            "10.0.0.1:70000",
            "/8",
            "*",
        ] {
            let parsed = bad.parse::<Destinations>();
            assert_eq!(parsed.is_err(), bad != "*", "{bad}");
        }
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let rules = |all: &[(bool, &str)]| {
            let mut rules = Rules::default();
            for (allow, what) in all {
                rules.push(*allow, what.parse().unwrap());
            }
            rules
        };
        assert!(rules(&[]).allow(at("1.2.3.4:5")));
        let deny = rules(&[(false, "10.0.0.0/8"), (false, "*:25")]);
        assert!(deny.allow(at("1.2.3.4:5")) && !deny.allow(at("10.0.0.1:5")));
        assert!(!deny.allow(at("[::1]:25")));
        let hole = rules(&[(true, "10.1.0.0/16"), (false, "10.0.0.0/8")]);
        assert!(hole.allow(at("10.1.0.1:5")) && !hole.allow(at("10.2.0.1:5")));
        assert!(
            !hole.allow(at("1.2.3.4:5")),
            "others are allowed, so it is not"
        );
    }
}
