//! Packet scripts against one connection.
#![allow(missing_docs)]

#[path = "common/script.rs"]
mod script;

use script::{Options, Script};

/// Runs the scripts (files with the suffix `.pkt`) in the directories that `TCP_SCRIPTS`
/// lists, separated by colons, and prints a verdict for each: a tool for trying the connection
/// against foreign scripts without the adapter.
#[test]
fn foreign_scripts() {
    let Some(dirs) = std::env::var_os("TCP_SCRIPTS") else {
        return;
    };
    let mut passed = 0;
    let mut total = 0;
    for dir in std::env::split_paths(&dirs) {
        let mut files: Vec<_> = std::fs::read_dir(&dir)
            .expect("directory of scripts")
            .filter_map(|e| e.ok().map(|e| e.path()))
            .filter(|p| p.extension().is_some_and(|e| e == "pkt"))
            .collect();
        files.sort();
        for file in files {
            let text = std::fs::read_to_string(&file).expect("script");
            let mut o = Options::default();
            o.cfg.rcv_buf = 540_000 / 2;
            o.cfg.slow_start_after_idle = text.contains("slow_start_after_idle=1");
            o.cfg.timestamps = !text.contains("tcp_timestamps=0");
            total += 1;
            match Script::new(o).run(&text) {
                Ok(()) => {
                    passed += 1;
                    println!("ok   {}", file.display());
                }
                Err(e) => println!("FAIL {}\n  {e}", file.display()),
            }
        }
    }
    println!("{passed} of {total}");
}
