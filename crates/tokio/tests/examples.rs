//! The examples, over memory.
#![allow(
    clippy::duplicate_mod,
    reason = "each example is a program of its own, and takes the library's examples' arguments"
)]

use clap::Parser;
use std::process::ExitCode;
use std::time::Duration;

macro_rules! examples {
    ($($name:ident = $path:literal, $args:expr;)*) => {$(
        #[path = $path]
        #[allow(dead_code, reason = "its `main` is not called here")]
        mod $name;

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let args: &[&str] = &$args;
            let args = $name::Args::parse_from([&[stringify!($name)], args].concat());
            let done = tokio::time::timeout(Duration::from_secs(60), $name::example(args)).await;
            assert_eq!(done.expect("in a minute"), ExitCode::SUCCESS);
        }
    )*};
}

examples! {
    tokio_echo = "../examples/tokio_echo.rs", ["--clients", "50"];
    tokio_http = "../examples/tokio_http.rs", ["--org", "connp-l:4"];
    tokio_tls = "../examples/tokio_tls.rs", ["--org", "squeue"];
    tokio_quic = "../examples/tokio_quic.rs", ["--clients", "2", "--streams", "4"];
}
