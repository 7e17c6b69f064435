//! A forked child that has inherited stacks: its calls fail, dropping its handles does nothing,
//! and the parent's connections go on. On the machine, as there is no other place to fork.
//! One test in this file: other threads of a test program would hold locks that the child needs.

mod common;

use common::{kind, organizations};
use perimeter::link::wire::{WireConfig, pair};
use perimeter::{Events, Native, OrgSpec, Stack};
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

fn stack(
    native: Native,
    org: OrgSpec,
    end: impl perimeter::link::Device + 'static,
    addr: &str,
) -> Stack {
    let b = Stack::builder().on_native(native).org(org);
    b.interface(end, &[addr]).unwrap().build().unwrap()
}

/// What a child finds wrong, as its exit status; 0: nothing.
fn child(work: impl FnOnce() -> i32) -> i32 {
    // SAFETY: of the threads that the child lacks none holds a lock of the allocator, which sees
    // to that, nor of anything else that `work` uses.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: a child that hangs is ended by its alarm.
        unsafe { libc::alarm(20) };
        let status = work();
        // SAFETY: ends the child at once, without running what the parent has registered.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: our child, and a place for its status.
    let ended = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(ended, pid);
    assert_eq!(libc::WTERMSIG(status), 0, "the child was killed");
    libc::WEXITSTATUS(status)
}

#[test]
fn a_child_does_nothing_and_its_parent_goes_on() {
    for org in organizations() {
        let native = Native::default();
        let ([a, b], _) = pair(&native, WireConfig::default());
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("control");
        let s = Stack::builder()
            .on_native(native)
            .org(org.clone())
            .control(&socket);
        let s = s.interface(a, &["10.0.0.1/24"]).unwrap().build().unwrap();
        let peer = stack(native, OrgSpec::default(), b, "10.0.0.2/24");
        let l = peer.listen("10.0.0.2:80").unwrap();
        let c = s.connect("10.0.0.2:80").unwrap();
        let (d, _) = l.accept().unwrap();
        let ours = s.listen("10.0.0.1:90").unwrap();
        let poll = s.poll().unwrap();
        c.set_linger(Some(Duration::from_secs(5))).unwrap();

        let inherited = (&s, &c, &ours, &poll);
        let status = child(move || {
            let (s, c, ours, poll) = inherited;
            let forked = Some(ErrorKind::Unsupported);
            let failed = [
                kind(s.connect("10.0.0.2:80")),
                kind(s.listen("10.0.0.1:91")),
                kind(s.drive()),
                kind(s.shutdown(Duration::from_secs(1))),
                kind({ c }.write(b"from the child")),
                kind({ c }.read(&mut [0; 8])),
                kind(c.info()),
                kind(ours.accept()),
                kind(poll.poll(&mut Events::with_capacity(1), None)),
            ];
            if let Some(n) = failed.iter().position(|k| *k != forked) {
                return 1 + n as i32;
            }
            s.stop();
            // SAFETY: the child ends without using or dropping what these were copied from.
            let mine = unsafe {
                (
                    std::ptr::read(c),
                    std::ptr::read(ours),
                    std::ptr::read(poll),
                    std::ptr::read(s),
                )
            };
            drop(mine);
            0
        });
        assert_eq!(status, 0, "{org}");
        assert!(
            socket.exists(),
            "{org}: the child removed the control socket"
        );

        // Nothing has happened to the parent's connection.
        (&c).write_all(b"still here").unwrap();
        let mut buf = [0; 10];
        if org.single_threaded() {
            s.drive().unwrap();
        }
        (&d).read_exact(&mut buf).unwrap();
        assert_eq!(&buf, b"still here");
        assert_eq!(s.connections().len(), 1, "{org}");
        c.set_linger(None).unwrap();
        drop((c, d, l, ours, poll, s, peer));
    }
}
