//! Settings.

use std::time::Duration;

/// How names are looked up.
///
/// ```
/// use perimeter_dns::DnsConfig;
/// use std::time::Duration;
///
/// let patient = DnsConfig::default().with_timeout(Duration::from_secs(4)).with_attempts(5);
/// assert!(patient.check().is_ok());
/// let error = DnsConfig::default().with_attempts(0).check().expect_err("nobody would be asked");
/// assert_eq!(error, "setting `dns.attempts` is 0; it can be 1 to 10");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DnsConfig {
    /// How long an answer is waited for before another server is asked; twice as long each time that
    /// all have been asked, up to 10 s. 10 ms to 10 s. Default 2 s.
    pub timeout: Duration,
    /// How often each server is asked, 1 to 10. Default 3.
    pub attempts: u32,
    /// The most names that are remembered, for each family; 0: none. Default 1,024.
    pub cache_entries: usize,
    /// The most memory for what is remembered, bytes. Default 256 KiB.
    pub cache_bytes: usize,
    /// The longest that addresses are remembered, whatever their TTL says. Default a day.
    pub max_ttl: Duration,
    /// The longest that it is remembered that there is no such name or no such address (RFC 2308,
    /// section 5). Default an hour.
    pub max_negative_ttl: Duration,
}

impl Default for DnsConfig {
    fn default() -> DnsConfig {
        DnsConfig {
            timeout: Duration::from_secs(2),
            attempts: 3,
            cache_entries: 1024,
            cache_bytes: 256 << 10,
            max_ttl: Duration::from_secs(86_400),
            max_negative_ttl: Duration::from_secs(3_600),
        }
    }
}

perimeter_base::setters! {
    DnsConfig {
        with_timeout(timeout: Duration),
        with_attempts(attempts: u32),
        with_cache_entries(cache_entries: usize),
        with_cache_bytes(cache_bytes: usize),
        with_max_ttl(max_ttl: Duration),
        with_max_negative_ttl(max_negative_ttl: Duration),
    }
}

/// The longest that one answer is waited for.
pub(crate) const LONGEST: Duration = Duration::from_secs(10);

impl DnsConfig {
    /// Whether all settings are in their ranges.
    ///
    /// # Errors
    /// Which one is not, and what it can be.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=10).contains(&self.attempts) {
            let n = self.attempts;
            return Err(format!("setting `dns.attempts` is {n}; it can be 1 to 10"));
        }
        if !(Duration::from_millis(10)..=LONGEST).contains(&self.timeout) {
            let t = self.timeout;
            return Err(format!(
                "setting `dns.timeout` is {t:?}; it can be 10 ms to 10 s"
            ));
        }
        Ok(())
    }
}
