//! What a packetdrill script asks of its host besides TCP: the shell commands in its backquotes.

/// What a script sets on its host before it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Commands beyond the common defaults, one normalised line each.
    pub commands: Vec<String>,
    /// The adapter's flags for those settings which every TCP has (RFC options, not Linux
    /// mechanisms), `name=value` each.
    pub flags: Vec<String>,
}

/// Sysctls that name a choice every TCP has, and the adapter's flag for it.
const TRANSLATED: &[(&str, &str)] = &[
    ("tcp_timestamps", "timestamps"),
    ("tcp_sack", "sack"),
    ("tcp_window_scaling", "wscale"),
    ("tcp_slow_start_after_idle", "idle_restart"),
    ("tcp_ecn", "ecn"),
    ("tcp_congestion_control", "cc"),
    ("tcp_syn_retries", "syn_retries"),
    ("tcp_synack_retries", "synack_retries"),
];

/// Finds the settings in the text of a script.
pub fn settings(text: &str) -> Settings {
    let mut found = Settings::default();
    for block in backquoted(&without_comments(text)) {
        for line in block.replace("\\\n", " ").lines() {
            let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
            if line.is_empty() || line.starts_with('#') || is_common(&line) {
                continue;
            }
            found.flags.extend(flags_of(&line));
            found.commands.push(line);
        }
    }
    found
}

/// The common defaults and the command that takes a script's own settings back.
fn is_common(line: &str) -> bool {
    line.ends_with("common/defaults.sh") || line.starts_with("/tmp/sysctl_restore_")
}

/// `sysctl … net.ipv4.NAME=VALUE` and `set_sysctls.py /proc/sys/net/ipv4/NAME=VALUE …`.
fn flags_of(line: &str) -> Vec<String> {
    line.split(' ')
        .filter_map(|word| {
            let (path, value) = word.split_once('=')?;
            let name = path.rsplit(['/', '.']).next()?;
            let (_, flag) = TRANSLATED.iter().find(|(sysctl, _)| *sysctl == name)?;
            Some(format!("{flag}={}", value.trim_matches(['"', '\''])))
        })
        .collect()
}

/// Drops `//` comments, which may hold stray backquotes.
fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        // Inside a command "//" may be part of a path; a comment follows blank or nothing.
        let cut = line
            .match_indices("//")
            .map(|(at, _)| at)
            .find(|&at| at == 0 || line[..at].ends_with([' ', '\t']));
        out.push_str(&line[..cut.unwrap_or(line.len())]);
        out.push('\n');
    }
    out
}

fn backquoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_scripts() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            ("`../common/defaults.sh`\n 0 socket(...) = 3\n", &[], &[]),
            ("`../../common/defaults.sh`\n", &[], &[]),
            (
                "// a ` in a comment\n`../common/defaults.sh\nsysctl -q net.ipv4.tcp_tso_win_divisor=100`\n",
                &["sysctl -q net.ipv4.tcp_tso_win_divisor=100"],
                &[],
            ),
            (
                "`../common/defaults.sh\n../common/set_sysctls.py /proc/sys/net/ipv4/tcp_slow_start_after_idle=1 \\\n\t/proc/sys/net/ipv4/tcp_min_tso_segs=10`\n`/tmp/sysctl_restore_${PPID}.sh`\n",
                &[
                    "../common/set_sysctls.py /proc/sys/net/ipv4/tcp_slow_start_after_idle=1 /proc/sys/net/ipv4/tcp_min_tso_segs=10",
                ],
                &["idle_restart=1"],
            ),
            (
                "+0 `tc qdisc replace dev tun0 root pfifo limit 0`\n",
                &["tc qdisc replace dev tun0 root pfifo limit 0"],
                &[],
            ),
            (
                "`sysctl -q net.ipv4.tcp_timestamps=\"0\"`",
                &["sysctl -q net.ipv4.tcp_timestamps=\"0\""],
                &["timestamps=0"],
            ),
        ];
        for (text, commands, flags) in cases {
            let found = settings(text);
            assert_eq!(found.commands, *commands, "{text}");
            assert_eq!(found.flags, *flags, "{text}");
        }
    }
}
