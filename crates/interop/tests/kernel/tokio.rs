//! Async Rust: hyper on `perimeter-tokio`, and the kernel's curl.

use crate::common::{LIMIT, Load, each_family};
use perimeter::OrgSpec;
use perimeter_interop::examples;
use perimeter_interop::program::Program;

fn curl(org: &OrgSpec) {
    let name = org.to_string();
    let args = ["--device", "tap", "--org", &name];
    let mut server = Program::start(examples::path("tokio_http"), args, LIMIT);
    assert!(server.line().starts_with("listening on 10.99.0.2:80"));
    let fetch = |args: &[&str]| {
        let common = ["--silent", "--show-error", "--fail", "--max-time", "60"];
        let out = "%{size_download}\n";
        let out = ["--output", "/dev/null", "--write-out", out];
        let all = [&common[..], &out[..], args].concat();
        Program::start("curl", all, LIMIT).finish().ok()
    };
    let large = "http://10.99.0.2/bytes/20000000";
    assert_eq!(fetch(&[large]).trim(), "20000000");
    // HTTP/2 without TLS.
    assert_eq!(
        fetch(&["--http2-prior-knowledge", large]).trim(),
        "20000000"
    );
    let body = "x".repeat(100_000);
    assert_eq!(fetch(&["--data", &body, "http://10.99.0.2/"]).trim(), "7");
}

#[test]
fn curl_and_hyper() {
    examples::build();
    let main = |org: &OrgSpec| {
        // The runtime has several threads.
        if !org.single_threaded() {
            curl(org);
        }
    };
    each_family(&["curl"], Load::Works, main);
}
