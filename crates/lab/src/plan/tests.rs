use super::*;

const GOOD: &str = r#"
name = "mine"
title = "A title"
asks = "Why?"
published = "throughput"
metric = "goodput"

[x]
setting = "connections"
values = [6, 192]
quick = [6]

[settings]
rtt = "100us"

[quick]
seconds = 0.5
repeats = 5

[normal]
seconds = 2
repeats = 3

[full]
seconds = 180
warm-up = 120
repeats = 2

[[series]]
org = "up"
as = "UP"

[[series]]
org = "connp-l:8"
times = 0.5
settings = { inbound = "affine", write-size = 1024 }
"#;

#[test]
fn cells_of_a_plan() {
    let plan = Plan::parse("mine.toml", GOOD).unwrap();
    let quick = plan.cells(Mode::Quick, None).unwrap();
    assert_eq!(quick.len(), 2);
    let cells = plan.cells(Mode::Full, None).unwrap();
    assert_eq!(cells.len(), 4);
    let last = &cells[3];
    assert_eq!((last.series, last.x), (1, 192));
    assert_eq!(last.settings.inbound.to_string(), "affine");
    assert_eq!(last.settings.write_size, 1024);
    assert_eq!(last.settings.rtt(), Duration::from_micros(100));
    assert_eq!(last.slot.measure, Duration::from_secs(90));
    assert_eq!(last.slot.warm_up, Duration::from_secs(120));
    assert_eq!(last.configuration.connections, 192);
    assert_eq!(cells[0].configuration.threads, 1, "up has one thread");
    assert_eq!(cells[0].settings.inbound, Settings::default().inbound);
    let tap = plan.cells(Mode::Quick, Some(Device::Tap)).unwrap();
    assert_eq!(tap[0].settings.device, Device::Tap);
}

/// As many protocol threads as the machine has cores that a plan is carried out or predicted for;
/// what is stored with runs says how many that were.
#[test]
fn an_organization_may_go_by_the_number_of_cores() {
    let text = GOOD.replacen("org = \"up\"", "org = \"connp-t:{cores}\"", 1);
    let plan = Plan::parse("mine.toml", &text).unwrap();
    let of = |cells: Vec<Cell>| cells[0].configuration.organization.to_string();
    let here = format!("connp-t:{}", crate::host::cores());
    assert_eq!(of(plan.cells(Mode::Quick, None).unwrap()), here);
    assert_eq!(of(plan.cells_on(Mode::Quick, 8, 6).unwrap()), "connp-t:8");
    assert!(plan.text_here().contains(&here), "{}", plan.text_here());
    assert!(plan.text.contains("{cores}"));
}

/// Each damage, with the line and the field that its message must name, and what it must say.
#[test]
fn a_broken_plan_names_line_and_field() {
    let table: &[(&str, &str, &str, &str)] = &[
        (
            "metric = \"goodput\"",
            "metric = \"speed\"",
            ":6: metric: ",
            "goodput",
        ),
        ("metric = \"goodput\"", "", ":1: ", "missing field `metric`"),
        ("metric = \"goodput\"", "metric = goodput", ":6: ", "string"),
        ("title = \"A title\"", "title = 7", ":3: title: ", "string"),
        (
            "title = \"A title\"",
            "titel = 7",
            ":3: titel: ",
            "unknown field `titel`",
        ),
        ("name = \"mine\"", "name = \"../x\"", ":2: name: ", "../x"),
        (
            "name = \"mine\"",
            "name = \"all\"",
            ":2: name: ",
            "every plan",
        ),
        (
            "\"throughput\"",
            "\"fig9\"",
            ":5: published: ",
            "contention",
        ),
        ("[6, 192]", "[192, 6]", ":10: x.values: ", "ascend"),
        ("[6, 192]", "[0, 6]", ":10: x.values: ", "0 is not from 1"),
        ("[6, 192]", "[]", ":10: x.values: ", "0 values"),
        (
            "quick = [6]",
            "quick = [7]",
            ":11: x.quick: ",
            "7 is none of x.values",
        ),
        ("\"connections\"", "\"colour\"", ":9: x.setting: ", "colour"),
        ("\"100us\"", "\"100\"", ":14: settings.rtt: ", "unit"),
        ("\"100us\"", "\"2h\"", ":14: settings.rtt: ", "unit"),
        ("rtt =", "ttr =", ":14: settings.ttr: ", "unknown field"),
        (
            "seconds = 0.5",
            "seconds = 0",
            ":17: quick.seconds: ",
            "0.1",
        ),
        (
            "repeats = 3",
            "repeats = 0",
            ":22: normal.repeats: ",
            "from 1 to 1000",
        ),
        ("repeats = 3", "repeats = -3", ":22: normal.repeats: ", "-3"),
        ("\"up\"\n", "\"upp\"\n", ":30: series[0].org: ", "upp"),
        (
            "as = \"UP\"",
            "as = \"DOWN\"",
            ":31: series[0].as: ",
            "DOWN",
        ),
        ("times = 0.5", "times = 0", ":33: series[1].times: ", "0.01"),
        (
            "\"connp-l:8\"",
            "\"up\"",
            ":33: series[1].label: ",
            "two series `up`",
        ),
        (
            "\"connp-l:8\"",
            "\"connp-l:{}\"",
            ":34: series[1].org: ",
            "groups",
        ),
        (
            "\"affine\"",
            "\"sideways\"",
            ":36: series[1].settings.inbound: ",
            "affine",
        ),
        (
            "write-size = 1024",
            "write-size = 0",
            ":36: series[1].settings.write-size: ",
            "from 1",
        ),
        ("[quick]", "[quick", ":16: ", ""),
    ];
    for (from, to, at, says) in table {
        assert!(GOOD.contains(from), "{from}");
        let error = match Plan::parse("mine.toml", &GOOD.replacen(from, to, 1)) {
            Err(Error::Input(line)) => line,
            other => panic!("{from} -> {to}: {other:?}"),
        };
        let start = format!("mine.toml{at}");
        assert!(error.starts_with(&start), "{from} -> {to}: {error}");
        assert!(error.contains(says), "{from} -> {to}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn a_missing_or_huge_file_is_an_input_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.toml");
    assert!(matches!(Plan::load(&path), Err(Error::Input(_))));
    std::fs::write(&path, vec![b' '; 2 << 20]).unwrap();
    assert!(matches!(Plan::load(&path), Err(Error::Input(_))));
    std::fs::write(&path, [0xff, 0xfe]).unwrap();
    let error = Plan::load(&path).unwrap_err().to_string();
    assert!(error.contains("x.toml"), "{error}");
}

/// On few cores as on many: an organization that takes a number of them may know no number so large.
#[test]
fn the_embedded_plans_run_on_any_number_of_cores() {
    for plan in embedded() {
        for cores in [1, 2, 3, 32, 64, 256] {
            let cells = plan.cells_on(Mode::Normal, cores, cores);
            assert!(cells.is_ok(), "{} on {cores}: {cells:?}", plan.name);
        }
    }
}

#[test]
fn the_embedded_plans_are_sound() {
    let plans = embedded();
    let mut names = HashSet::new();
    for (plan, (name, _)) in plans.iter().zip(EMBEDDED) {
        assert_eq!(plan.name, *name);
        assert!(names.insert(*name));
        // Five repeats are what an interval needs to be evidence.
        for mode in [Mode::Quick, Mode::Normal, Mode::Full] {
            assert!(plan.repeats(mode) >= 5, "{name} {mode}");
            assert!(!plan.cells(mode, None).unwrap().is_empty());
        }
    }
    let quick: Duration = plans.iter().map(|p| p.estimate(Mode::Quick)).sum();
    assert!(
        quick < Duration::from_secs(570),
        "all --quick takes {quick:?}"
    );
}

/// What the papers claim can be answered by some plan.
#[test]
fn every_claim_has_a_plan() {
    let plans = embedded();
    for e in &published().experiments {
        let planned = |p: &Plan| p.published.is_some_and(|x| x.id == e.id);
        assert_eq!(plans.iter().any(planned), e.missing.is_none(), "{}", e.id);
        for c in &e.claims {
            let answers = |p: &Plan| {
                p.published.is_some_and(|x| x.id == e.id)
                    && [&c.a, &c.b].into_iter().all(|side| {
                        p.series
                            .iter()
                            .any(|s| s.published.as_ref() == Some(&side.series))
                            && side
                                .x
                                .is_none_or(|x| p.values(Mode::Full).iter().any(|&v| v as f64 == x))
                    })
            };
            assert!(plans.iter().any(answers), "{}: {}", e.id, c.id);
        }
    }
}
