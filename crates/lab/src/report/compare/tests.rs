use super::*;
use crate::{
    record::Outcome,
    report::tests::{example, stored},
};

/// The example with msgp half as fast again at 6 connections, and a third slower at 16,384.
fn changed() -> Stored {
    stored(&[
        ("UP", "up", [4000.0, 4000.0, 2000.0]),
        ("MsgP", "msgp", [4920.0, 5000.0, 660.0]),
        ("ConnP-L(128)", "connp-l:128", [4010.0, 8000.0, 4520.0]),
    ])
}

#[test]
fn changes_beyond_noise_are_told_with_the_largest_first() {
    let found = compare(&example(), &changed(), ["monday", "friday"]).unwrap();
    let lines: Vec<&str> = found.answer.lines().collect();
    assert_eq!(lines[0], "friday against monday");
    assert!(
        lines[1].starts_with("Of 9 points that both have, 1 are better, 1 worse, 7 without"),
        "{}",
        found.answer
    );
    let said =
        "  worse  small: msgp at 16,384 connections: 1.02, now 0.673 Gb/s (0.66 ×, 0.63–0.69)";
    assert_eq!(lines[2], said);
    assert!(lines[3].contains("better small: msgp at 6 connections: 3.35, now 5.02 Gb/s (1.50 ×"));
    assert_eq!(lines.len(), 4, "{}", found.answer);
    for part in [
        "Perimeter lab: friday against monday",
        "times before",
        ">worse<",
        "id=\"small-now\"",
    ] {
        assert!(found.html.contains(part), "{part}");
    }
    assert!(!found.html.contains("<script"));
    // The other way round, what was gained is lost.
    let back = compare(&changed(), &example(), ["friday", "monday"])
        .unwrap()
        .answer;
    assert!(back.contains("better small: msgp at 16,384"), "{back}");
    // Nothing changes from a folder to itself.
    let same = compare(&example(), &example(), ["a", "a"]).unwrap().answer;
    assert!(same.contains("0 are better, 0 worse, 9 without"), "{same}");
}

#[test]
fn few_runs_tell_nothing() {
    let mut few = changed();
    few.rows.retain(|r| r.repeat < 3);
    let found = compare(&example(), &few, ["a", "b"]).unwrap().answer;
    assert!(
        found.contains("0 are better, 0 worse, 0 without"),
        "{found}"
    );
    assert!(found.contains("and 9 have too few runs"), "{found}");
}

#[test]
fn another_machine_is_said_and_nothing_in_common_is_refused() {
    let mut other = changed();
    other.header.host.cores = 64;
    let found = compare(&example(), &other, ["a", "b"]).unwrap();
    assert!(
        found.answer.contains("note: other machine: A CPU, 2 cores"),
        "{}",
        found.answer
    );
    assert!(found.html.contains("64 cores"));
    let mut none = example();
    for row in &mut none.rows {
        row.outcome = Outcome::Failed("no".into());
    }
    let error = compare(&example(), &none, ["a", "b"]).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(
        error.to_string().contains("no measured point in common"),
        "{error}"
    );
}
