//! A run on a machine that is busy with something else is flagged.
#![cfg(target_os = "linux")]

use perimeter_measure::{
    Settings, host,
    session::{self, Slot},
    workload::{Configuration, Raw},
};
use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Processes that use every core, for as long as this lives.
struct Noise(Vec<Child>);

impl Noise {
    fn make() -> Noise {
        let hog = |_| {
            Command::new("sh")
                // Ends by itself should the test be killed.
                .args(["-c", "i=0; while [ $i -lt 20000000 ]; do i=$((i+1)); done"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        Noise((0..2 * host::cores()).map(hog).collect())
    }
}

impl Drop for Noise {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_busy_machine_is_noticed() {
    let organization = perimeter_measure::backends::parse("up").unwrap();
    let settings = Settings {
        organizations: vec![organization.clone()],
        connections: vec![6],
        threads: 1,
        nics: 1,
        ..Settings::default()
    };
    let configuration = Configuration {
        organization,
        connections: 6,
        threads: 1,
    };
    let slot = Slot::new(Duration::from_millis(100), Duration::from_millis(600));
    let _noise = Noise::make();
    let mut backend = perimeter_measure::backends::backend_for(&settings, &configuration);
    let (sample, _) =
        session::once(&mut *backend, &settings, &configuration, slot, None, None).unwrap();
    let signs = Raw::from(&sample).disturbances;
    assert!(
        signs.iter().any(|s| s.contains("other processes used")),
        "{signs:?}"
    );
}
