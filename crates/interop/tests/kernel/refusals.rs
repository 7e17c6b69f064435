//! What can't be had is told in one clear line, and leaves nothing behind.

use crate::common::{LIMIT, Load, alone, each};
use perimeter::link::tap::{Tap, TapConfig, TapError};
use perimeter_interop::program::{self, Outcome, Program};
use perimeter_interop::{examples, taps};
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

fn interface_exists(name: &str) -> bool {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").expect("interfaces");
    text.lines()
        .any(|l| l.trim_start().starts_with(&format!("{name}:")))
}

/// The interface goes with the last descriptor. A child that another test starts meanwhile holds
/// all of this process's until it executes.
fn left_behind() -> bool {
    let end = Instant::now() + Duration::from_secs(10);
    while interface_exists(taps::NAME) {
        if Instant::now() > end {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

/// One line that says `what`, and exit code 2.
fn refused(o: &Outcome, what: &str) {
    assert_eq!(o.status.code(), Some(2), "{o:?}");
    assert_eq!(o.err.trim_end().lines().count(), 1, "{}", o.err);
    assert!(
        o.err.starts_with("error: ") && o.err.contains(what),
        "{}",
        o.err
    );
    assert!(!o.err.contains("panicked"), "{}", o.err);
    assert!(!left_behind());
}

#[test]
fn tap_without_privilege() {
    examples::build();
    alone(&["setpriv", "unshare"], || {
        // The build directory may be closed to others.
        let dir = tempfile::tempdir_in("/tmp").expect("a directory");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).expect("opened");
        let copy = dir.path().join("echo");
        program::copy(examples::path("echo"), &copy);
        let copy = copy.to_str().expect("text");
        let nobody = [
            "setpriv",
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            copy,
            "--device",
            "tap",
        ];
        // As the system has the node: 0600, or 0666 as systemd makes it.
        let o = Program::start(nobody[0], &nobody[1..], LIMIT).finish();
        refused(&o, "no permission for ");
        // And both ways, in a mount namespace with a node of our own. Where that is not allowed,
        // the script says so by its exit code.
        let node = dir.path().join("tun");
        let node = node.to_str().expect("text");
        for (mode, what) in [
            ("600", "chmod 666"),
            ("666", "no permission for attaching to"),
        ] {
            let script = format!(
                "(rm -f {node} && mknod -m {mode} {node} c 10 200 && \
                 mount --bind {node} /dev/net/tun && : 3<>/dev/net/tun) 2>/dev/null || exit 77; \
                 exec \"$@\""
            );
            let args = ["--mount", "sh", "-c", &script, "sh"];
            let o = Program::start("unshare", args.iter().chain(&nobody), LIMIT).finish();
            if o.status.code() != Some(77) {
                refused(&o, what);
            }
        }
    });
}

#[test]
fn no_such_file_and_no_such_organization() {
    examples::build();
    alone(&[], || {
        let run =
            |args: &[&str]| Program::start(examples::path("http_server"), args, LIMIT).finish();
        refused(
            &run(&["--device", "tap", "/nonexistent/file"]),
            "/nonexistent/file",
        );
        let o = run(&["--org", "msgpp", "/etc/hostname"]);
        assert_eq!(o.status.code(), Some(2));
        assert!(o.err.contains("unknown organization `msgpp`"), "{}", o.err);
    });
}

#[test]
fn an_interface_in_use() {
    examples::build();
    each(&["ip"], Load::Works, |org| {
        let stack = taps::stack(org);
        let o = Program::start(examples::path("echo"), ["--device", "tap"], LIMIT).finish();
        assert_eq!(o.status.code(), Some(2), "{o:?}");
        assert_eq!(o.err.trim_end().lines().count(), 1, "{}", o.err);
        assert!(o.err.contains("'perimeter0' is in use"), "{}", o.err);
        drop(stack);
        // One that the administrator made is for whoever comes first. Another test that starts a
        // program keeps ours in use for a moment: the child holds all descriptors until it executes.
        let add = format!("tuntap add dev {} mode tap multi_queue", taps::NAME);
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let made = Program::start("ip", add.split(' '), LIMIT).finish();
            if made.status.success() {
                break;
            }
            assert!(Instant::now() < end, "{made:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        for _ in 0..2 {
            let stack = taps::stack(org);
            let second = Tap::open(&TapConfig::new(taps::NAME));
            assert!(
                matches!(second, Err(TapError::Busy(_))),
                "{:?}",
                second.err()
            );
            drop(stack);
        }
        assert!(interface_exists(taps::NAME), "not ours to delete");
    });
}

#[test]
fn an_address_in_use() {
    examples::build();
    alone(&[], || {
        let run = |args: &[&str]| Program::start(examples::path("echo"), args, LIMIT).finish();
        let o = run(&["--device", "tap", "--address", "10.99.0.1/24"]);
        refused(&o, "10.99.0.1 is in use");
    });
    each(&[], Load::Works, |org| {
        let stack = taps::stack(org);
        let l = stack.listen(taps::stack_at(80)).expect("a listener");
        let e = stack.listen(taps::stack_at(80)).expect_err("in use");
        assert_eq!(
            (e.kind(), e.to_string().as_str()),
            (ErrorKind::AddrInUse, "address already in use")
        );
        let e = stack.listen("0.0.0.0:80").expect_err("in use");
        assert_eq!(e.kind(), ErrorKind::AddrInUse);
        let e = stack.listen(taps::kernel_at(80)).expect_err("not ours");
        assert_eq!(e.kind(), ErrorKind::AddrNotAvailable);
        drop(l);
        stack.listen(taps::stack_at(80)).expect("free again");
        drop(stack);
        assert!(!left_behind() && Path::new("/dev/net/tun").exists());
    });
}
