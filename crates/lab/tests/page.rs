//! The report in a browser, at the width of a desk, of a tablet and of a phone, in the dark and on paper: the answer is
//! on the first screen, nothing overflows, every figure is there to be seen, also what is predicted, no label is cut off,
//! text and curves stand out from what is behind them, links lead somewhere, legends hide curves, no error. A whole
//! recorded run is short. The screenshots stay as artefacts.
//!
//! Without a browser (Debian: `chromium`) the test is skipped with a note.

use perimeter_lab::{
    plan::{Mode, Plan, embedded},
    predict::Predictions,
    record::{self, Header, Measured, Outcome, Row, SCHEMA, Stored},
    report, trace,
};
use perimeter_measure::{
    bench::report::{Asked, Build},
    host::Host,
    misses::{Component, Counts, Machine, Modelled, Share, geometry::Caches},
    workload::{LockTimes, Locks, Raw},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Widths of the viewports, px.
const WIDTHS: [u32; 3] = [1280, 768, 390];
/// Width of the page that is seen in the dark, px.
const DARK: u32 = 1000;
/// Width of a page of paper less its margins (A4), px.
const PAPER: u32 = 718;

/// Screens of 1280 × 800 px that a whole run may fill.
const SCREENS: u32 = 12;

/// What the browser is asked: for each viewport, what is wrong with the page.
const QUESTIONS: &str = r#"
const wrong = [], seen = [];
// Contrast of two colours (WCAG 2, 1.4.3).
const channels = (colour) => {
  const all = colour.match(/[\d.]+/g).map(Number);
  return colour.startsWith("color") ? all.map((c, i) => (i < 3 ? 255 * c : c)) : all;
};
const light = (colour) => {
  const linear = channels(colour).slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
};
const contrast = (a, b) => {
  const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
};
const behind = (e) => {
  for (; e; e = e.parentElement) {
    const colour = getComputedStyle(e).backgroundColor, alpha = channels(colour)[3];
    if (alpha === undefined || alpha > 0) return colour;
  }
  return "rgb(255, 255, 255)";
};
const tell = () => {
  document.getElementById("verdict").textContent = JSON.stringify({seen, wrong});
};
window.onerror = (text, file, line) => { wrong.push("error: " + text + " in line " + line); tell(); };
window.onload = () => {
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, width = frame.clientWidth;
    seen.push(width);
    const say = (text) => wrong.push(width + " px: " + text);
    const all = (what) => [...page.querySelectorAll(what)];
    const bottom = (what) => page.querySelector(what).getBoundingClientRect().bottom;
    const end = bottom("body"), screens = end / 800;
    if (frame.id === "whole" && screens > SCREENS) say(screens + " screens");
    // Who sees no more than the first screen has the answer.
    if (width !== PAPER && bottom("p.plain") > 500) say("the answer is too far down");
    if (width === 1280 && bottom("table.answer") > 800) say("the table is too far down");
    for (const a of all("a[href^='#']")) {
      if (!page.getElementById(a.hash.slice(1))) say("nowhere leads " + a.hash);
    }
    if (frame.id === "whole") continue;
    for (const details of all("details")) details.open = true;
    if (bottom("body") < end + 500) say("nothing was folded");
    const box = page.querySelector(".k0"), curve = box.closest(".body").querySelector(".row .s0");
    for (const shown of [false, true]) {
      box.checked = shown;
      if ((getComputedStyle(curve).display !== "none") !== shown) say("the legend hides nothing");
    }
    for (const link of all("figcaption a[download]")) {
      const lines = decodeURIComponent(link.href).trim().split("\n").length - 1;
      const marks = link.closest("figure").querySelectorAll(".pt, .fill").length;
      if (!lines || (marks !== lines && !link.download.includes("components"))) {
        say(lines + " lines of data for " + marks + " marks: " + link.download);
      }
    }
    const dim = new Set();
    const stands = (e, colour, on, least) => {
      if (contrast(colour, on) < least) {
        dim.add(e.tagName + "." + e.getAttribute("class") + " " + colour + " on " + on);
      }
    };
    for (const e of all("p, li, td, th, h1, h2, h3, summary, a, span.pill, figcaption, label, code, strong")) {
      if (e.textContent.trim()) stands(e, getComputedStyle(e).color, behind(e), 4.5);
    }
    for (const e of all("svg text, svg [class^=c-] path, svg .mk")) {
      const style = getComputedStyle(e), page = behind(e.closest("svg").parentElement);
      // A letter stands in a disc.
      const on = e.matches(".letter:not(.hollow)") ? getComputedStyle(e.previousElementSibling).fill : page;
      const drawn = [style.stroke, style.fill].filter((c) => /^(rgb|color)/.test(c) && channels(c)[3] !== 0);
      // A mark has a rim in the page's colour; what is to be seen of it is the other.
      const ink = drawn.sort((a, b) => contrast(b, on) - contrast(a, on))[0];
      if (ink) stands(e, ink, on, e.tagName === "text" ? 4.5 : 2);
    }
    for (const what of dim) say("is hardly seen: " + what);
    if (page.documentElement.scrollWidth > width) {
      say("the page is " + page.documentElement.scrollWidth + " px wide");
    }
    for (const table of page.querySelectorAll("table")) {
      if (width === PAPER && table.getBoundingClientRect().right > width) {
        say("a table is cut off: " + table.textContent.slice(0, 40));
      }
    }
    const pictures = page.querySelectorAll("figure svg");
    if (pictures.length !== EXPECTED) say(pictures.length + " figures");
    for (const svg of pictures) {
      const box = svg.getBoundingClientRect(), name = svg.querySelector("title").textContent;
      if (box.width < 200 || box.height < 100) say(name + " is too small to be seen");
      if (box.left < 0 || box.right > width + 1) say(name + " sticks out");
      const title = svg.querySelector("text.label[transform]")?.getBoundingClientRect();
      for (const text of svg.querySelectorAll("text")) {
        const t = text.getBoundingClientRect();
        if (title && t.left > title.left && t.left < title.right - 1 &&
            t.bottom > title.top && t.top < title.bottom) {
          say(text.textContent + " is on the axis' title: " + svg.querySelector("text.label[transform]").textContent);
        }
        if (t.left < box.left - 1 || t.right > box.right + 1 || t.bottom > box.bottom + 1) {
          say("a label of " + name + " is cut off: " + text.textContent);
        }
        if (t.height < 8.9) say("a label of " + name + " is too small: " + t.height);
      }
      const ticks = [...svg.querySelectorAll(".tick[text-anchor=middle] text")];
      if (ticks.length) ticks.reduce((before, tick) => {
        const [a, b] = [before, tick].map((e) => e.getBoundingClientRect());
        if (a.right > b.left) say("labels of " + name + " overlap at " + tick.textContent);
        return tick;
      });
      const shown = svg.querySelector("[class^=c-] .mk, [class^=c-] .fill, .held");
      if (!shown || getComputedStyle(shown).fill === "none") say(name + " shows nothing");
    }
  }
  tell();
};
"#;

fn browser() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths)
        .flat_map(|directory| names.map(|name| directory.join(name)))
        .find(|path| path.is_file())
}

/// A measurement that depends on what is measured, so that curves differ.
fn measured(series: usize, x: u64, repeat: u32) -> Measured {
    let goodput =
        3000.0 + 900.0 * series as f64 + 40.0 * (x as f64).sqrt() + 25.0 * f64::from(repeat);
    Measured {
        raw: Raw {
            seconds: 1.0,
            goodput_mbps: goodput,
            segments: goodput * 1e6 / 8.0 / 1448.0,
            thread_ns: 2_000_000_000,
            thread_cpu_ns: 2_000_000_000,
            app_ns: 1_000_000,
            stack_ns: Some(60_000_000 + 9_000_000 * series as u64),
            peer_ns: Some(1_000_000),
            spin_ns: 0,
            idle_ns: 0,
            preempted_ns: 0,
            cpu_ns: 2_000_000_000,
            retransmits: 0,
            context_switches: 1000 * (series as u64 + 1),
            migrations: Some(2),
            core_round_trip_ns: Some(52.0),
            paths: Vec::new(),
            involuntary_context_switches: 10,
            connection_bytes_min: 1,
            connection_bytes_median: 1,
            rounds: 0,
            latency: None,
            lost: None,
            valid: true,
            disturbances: match repeat {
                0 => vec!["other processes used 25 % of the cores".into()],
                _ => Vec::new(),
            },
        },
        verified_bytes: 1,
        locks: vec![Locks {
            class: "group".into(),
            acquisitions: 10_000,
            contended: 3000 / (series as u64 + 1) + x % 97 + u64::from(repeat),
            wait_ns: 1_000_000,
            hold_ns: 1_000_000,
            times: Some(LockTimes {
                wait: serde_json::from_str("[[4096,30],[40960,3]]").unwrap(),
                hold: serde_json::from_str("[[64,9000],[1024,900],[98304,100]]").unwrap(),
            }),
        }],
        modelled: Some(modelled(series, x)),
        counted: None,
    }
}

/// Cache misses, of which each component has its share.
fn modelled(series: usize, x: u64) -> Modelled {
    let part = |component: Component| Share {
        component,
        counts: Counts {
            coherence: (component as u64 + 1) * 100 * (series as u64 + 1) + x % 97,
            ..Counts::default()
        },
    };
    Modelled {
        cores: 4,
        bytes: 100 * 1024,
        seed: 1,
        records: 1,
        items: Vec::new(),
        machines: vec![Machine {
            caches: Caches::opteron_275(),
            parts: Component::ALL.map(part).to_vec(),
            upgrades: 1,
        }],
    }
}

/// Runs of some plans that show every kind of figure.
fn stored() -> Stored {
    let plans: Vec<Plan> = embedded()
        .into_iter()
        .filter(|p| {
            let shown = [
                "throughput",
                "contention",
                "locks",
                "cache",
                "one-connection",
            ];
            shown.contains(&&*p.name)
        })
        .collect();
    let header = Header {
        schema: SCHEMA.into(),
        mode: Mode::Full,
        device: None,
        seed: 1,
        plans: plans.iter().map(|p| p.name.clone()).collect(),
        host: Host::read(),
        build: Build {
            version: "0.0.0".into(),
            commit: None,
            debug: false,
        },
        started_unix: 1_700_000_000,
    };
    let mut rows = Vec::new();
    for plan in &plans {
        for cell in plan.cells(header.mode, None).unwrap() {
            for repeat in 0..plan.repeats(header.mode) {
                rows.push(Row {
                    plan: plan.name.clone(),
                    series: plan.series[cell.series].label.clone(),
                    org: cell.configuration.organization.to_string(),
                    x: cell.x,
                    repeat,
                    outcome: Outcome::Measured(Box::new(measured(cell.series, cell.x, repeat))),
                    device: "mem".into(),
                    inbound: "thread".into(),
                    comparable: true,
                    notes: vec!["a remark on the configuration".into()],
                    threads: 2,
                    settings: Asked::from(&cell.settings),
                    seed: 1,
                    started_unix: header.started_unix,
                    build: header.build.clone(),
                    host: header.host.clone(),
                });
            }
        }
    }
    Stored {
        sends: ["msgp", "msgp-modern", "connp-l:4", "connp-l:128"]
            .map(|org| trace::record(&org.parse().unwrap()).unwrap())
            .into(),
        header,
        plans,
        rows,
        notes: Vec::new(),
    }
}

/// What was predicted for the study's machine.
fn predicted() -> Predictions {
    let file = "../../docs/runs/2026-11-30-2core-vm/predicted-opteron-275.json";
    Predictions::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// Runs the browser over `page`; what it printed, and the picture that it made.
fn look(browser: &Path, page: &Path, picture: &Path, dump: bool) -> String {
    let home = tempfile::tempdir().unwrap();
    let output = fs::File::create(home.path().join("out")).unwrap();
    let mut command = Command::new(browser);
    command
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
        ])
        .args([
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-extensions",
        ])
        .args(["--window-size=5570,1600", "--virtual-time-budget=2000"])
        .arg(format!(
            "--user-data-dir={}",
            home.path().join("profile").display()
        ));
    match dump {
        true => command.arg("--dump-dom"),
        false => command.arg(format!("--screenshot={}", picture.display())),
    };
    let mut child = command
        .arg(format!("file://{}", page.display()))
        .stdout(output)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(240);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            let _ = child.kill();
            panic!("the browser did not end");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    fs::read_to_string(home.path().join("out")).unwrap()
}

#[test]
fn the_page_is_sound_on_a_desk_on_a_phone_in_the_dark_and_on_paper() {
    let Some(browser) = browser() else {
        eprintln!("note: skipped, as there is no browser here (Debian: chromium)");
        return;
    };
    let page = report::render_with(&stored(), vec![predicted()]).html;
    assert!(page.contains("Predicted: ") && page.contains("class=\"band\""));
    let figures = page.matches("role=\"img\"").count();
    // A page cannot see into a file's frame, but into one that it holds itself.
    let frame = |width: u32, page: &str| {
        let inner = page.replace('&', "&amp;").replace('"', "&quot;");
        format!(
            "<iframe width={width} height=1600 style=\"border:0;flex:none\" srcdoc=\"{inner}\"></iframe>"
        )
    };
    let mut frames: String = WIDTHS.iter().map(|w| frame(*w, &page)).collect();
    let dark = page.replace("(prefers-color-scheme: dark)", "all");
    assert_ne!(dark, page);
    frames += &frame(DARK, &dark);
    let pictures =
        format!("<!doctype html><body style=\"margin:0;display:flex;gap:20px\">{frames}");
    let whole =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/runs/2026-11-22-2core-vm/lab");
    let whole = report::render(&record::read_rows(&whole).unwrap()).html;
    frames += &frame(1280, &whole).replace("<iframe ", "<iframe id=whole ");
    frames += &frame(PAPER, &page.replace("@media print", "@media all"));
    let questions = QUESTIONS
        .replace("EXPECTED", &figures.to_string())
        .replace("SCREENS", &SCREENS.to_string())
        .replace("PAPER", &PAPER.to_string());
    let around = format!(
        "<!doctype html><meta charset=utf-8><body style=\"margin:0;display:flex;gap:20px\">\
         <script>{questions}</script>{frames}<pre id=verdict></pre>"
    );
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report");
    fs::create_dir_all(&directory).unwrap();
    let path = directory.join("frames.html");
    fs::write(&path, around).unwrap();
    let picture = directory.join("report-1280-768-390-dark.png");
    let printed = look(&browser, &path, &picture, true);
    let verdict = printed
        .rsplit("<pre id=\"verdict\">")
        .next()
        .unwrap_or_default();
    let verdict = verdict.split("</pre>").next().unwrap_or_default();
    assert_eq!(
        verdict,
        r#"{"seen":[1280,768,390,1000,1280,718],"wrong":[]}"#
    );
    let _ = fs::remove_file(&picture);
    fs::write(&path, pictures).unwrap();
    look(&browser, &path, &picture, false);
    assert!(
        fs::metadata(&picture).unwrap().len() > 10_000,
        "no screenshot"
    );
}
